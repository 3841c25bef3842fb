"""Options of the sink.

option         default   meaning
path                     the folder of the data set; `save(path)` and `start(path)` set it
onConflict     newest    of files with one name the last one counts; error: the job fails
ao             false     shards that only append: files in order of mtime, with a time index
timemp         60        seconds between time marks (ao)
htalgo         2         hash of the index: 1 MD5, 2 XXH3-64, 3 MurmurHash3
maxShardBytes  64 GiB    a task goes on in a further shard; 4g, 512m and the like are understood
ignoreExtra    false     leave out columns that a file has no place for
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Self

from winkformats import hashing

UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
OF_SPARK: Final = ("checkpointLocation", "queryName")
LEAST_SHARD: Final = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What was asked for, checked.

    job_tag     of a stream: what its attempts share with their commit, see `streamsink`
    """

    path: str
    error_on_conflict: bool = False
    ao: bool = False
    timemp: int = 60
    htalgo: int = hashing.XXH3
    max_shard_bytes: int = 64 << 30
    ignore_extra: bool = False
    checkpoint: str = ""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """From Spark's options, in any case. Raises ValueError: one line with what is allowed."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in (*READERS, *OF_SPARK, "path")}
        for name in given:
            if name not in known:
                near = [known[found] for found in get_close_matches(name, known, 1)]
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(READERS)}"
                raise ValueError(f"the winkfs sink has no option {name!r}: {hint}")
        path = given.get("path", "")
        if not path:
            raise ValueError("where to? Give the folder of the data set: .save(DIR)")
        values: dict[str, Any] = {"path": local_path(path)}
        for name, (attribute, read) in READERS.items():
            if name.lower() in given:
                try:
                    values[attribute] = read(given[name.lower()].strip().lower())
                except (ValueError, KeyError) as error:
                    raise ValueError(
                        f"option {name} is {given[name.lower()]!r}: it takes {error.args[0]}"
                    ) from None
        return cls(**values, checkpoint=given.get("checkpointlocation", ""))


def local_path(path: str) -> str:
    """A path, or a file: URI of one. Raises ValueError for another kind of URI."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    if scheme is None:
        return path
    if scheme[1].lower() != "file":
        raise ValueError(f"{path}: winkfs needs a path of a file system, not {scheme[1]}:")
    return re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE)


def _one_of(**values: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(" or ".join(values))
        return values[text]

    return read


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", text)
    if found is None or (size := int(found[1]) * UNITS[found[2]]) < LEAST_SHARD:
        raise ValueError("a number of bytes such as 4g, 1m at least")
    return size


def _seconds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("a number of seconds, 1 at least")
    return int(text)


_flag: Final = _one_of(true=True, false=False)
READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "onConflict": ("error_on_conflict", _one_of(newest=False, error=True)),
    "ao": ("ao", _flag),
    "timemp": ("timemp", _seconds),
    "htalgo": ("htalgo", lambda text: _one_of(**{"1": 1, "2": 2, "3": 3})(text)),
    "maxShardBytes": ("max_shard_bytes", _size),
    "ignoreExtra": ("ignore_extra", _flag),
}
