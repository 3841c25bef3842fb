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

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from winkformats import hashing
from winkfs.spark.read.options import (
    IN_TABLES,
    check_names,
    count,
    flag,
    given_of,
    local_path,
    one_of,
    size_of,
    value_of,
)

OF_SPARK: Final = ("checkpointLocation", "queryName")
LEAST_SHARD: Final = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What was asked for, checked.

    checkpoint  of a stream, where Spark was told it as an option
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
        given = given_of(options)
        check_names(given, (*READERS, "path", *OF_SPARK))
        if not given.get("path"):
            raise ValueError(f"no path: say where to: .save(DIR){IN_TABLES}")
        values: dict[str, Any] = {"path": os.path.abspath(value_of(given, "path", local_path))}
        for name, (attribute, read) in READERS.items():
            if name.lower() in given:
                values[attribute] = value_of(given, name, read)
        return cls(**values, checkpoint=given.get("checkpointlocation", ""))


READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "onConflict": ("error_on_conflict", one_of(newest=False, error=True)),
    "ao": ("ao", flag),
    "timemp": ("timemp", count),
    "htalgo": ("htalgo", one_of(**{"1": 1, "2": 2, "3": 3})),
    "maxShardBytes": ("max_shard_bytes", lambda text: size_of(text, LEAST_SHARD)),
    "ignoreExtra": ("ignore_extra", flag),
}
