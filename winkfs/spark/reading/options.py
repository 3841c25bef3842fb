"""Options and columns of the source. Options are text; their names are case-insensitive.

    option         default     meaning
    path                       containers and data sets: BASE or DIR, several with commas, * ? [..]
    columns        see schema  which columns, in this order, with commas
    content        inline      inline: a column `content`; ref: where it lies, for `fetch_content`;
                               none: neither; lazy, of `winkfs.spark.read` alone: a column
                               `content` that is read where a query uses it, see `lazy`
    prefix                     only names that begin so (`path` as the column has it)
    glob                       only names that match (as `path` has them); * also crosses /. A JSON
                               list: one of them
    paths                      only these names, a JSON list; pathsFile: a file, a name a line
    mtimeFrom                  only files of that time or later: seconds, or ISO 8601 (local time)
    mtimeTo                    only files of before that time
    minSize, maxSize           only files of so many bytes, both inclusive; 4k, 1m and the like
    where                      only files of which it is true, as WHERE of SQL: lang = 'de' and
                               size > 1000; on columns, path, size and mtime, see `container.where`
    orderBy        offset      offset, path, mtime, or perm:DIR, an order: `winkfs.results.orders`
    asOf                       generation of a data set, or a time: what was there then
    readChanges    false       of a data set what its commits changed, a row for each file that was
                               put or deleted, see `_change` and `_generation`; compactions change
                               nothing
    startingGeneration         readChanges: the first commit; the oldest that is kept
    endingGeneration           readChanges: the last commit; the newest
    includeDirs    false       directories and symbolic links too, see the column `ftype`
    splitBytes     512m        bytes of a task, at most; fewer where there are idle cores
    minPartitions  1           tasks, at least, where no document is larger than one
    batchBytes     4m          bytes of content in an Arrow batch; a larger document is alone in its
    maxContentBytes 2g - 1     a larger document cannot be read: see mode
    mode           FAILFAST    what is damaged or too large FAILFAST: ends the job; PERMISSIVE: is a
                               row with the reason in `_error`; DROPMALFORMED: is left out
    verify         true        false: do not check the checksums of contents
    pushdown       off         native: filters of a query choose files; not with every Spark
    schemaStyle    winkfs      binaryFile: path, modificationTime, length, content

Columns of the source, and which of them a DataFrame has.

column      type       meaning
path        string     name in the container, bytes that are no UTF-8 as in `paths`
size        bigint     bytes; alias length
mtime       timestamp  microseconds, rounded down; alias modificationTime
content     binary     the bytes of the file
name_raw    binary     the name, exactly
mtime_ns    bigint     nanoseconds since the epoch
ftype       int        winkfs.FileType: 102 a file, 112 an executable one, 100 a directory,
                       108 a link (its content is the target)
mode        int        permission bits
_error      string     null, or why there is no content
_container  string     path of the container, without .data; these four and `size` are what
_contid     bigint     its CONTID                              `fetch_content` needs
_pos        bigint     kv_pointer of the inode
_pointer    bigint     kv_pointer of the data entry, see `winkfs.container.table`
_ref        bigint     number of the container in the plan << 44 | _pos, see `lazy`
_generation bigint     of the data set, as of the plan, or of the commit; 0 for a container
_change     string     put or, with no more than the name, delete

Behind these stand the columns of the user that container or data set have: see `ondisk.typed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from winkformats.disk.schemes import is_far
from winkfs.container.selection import Selection
from winkfs.names import to_name, to_str
from winkfs.units import parse_size, parse_time

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from winkfs.container.where import Condition

LARGEST: Final = (1 << 31) - 1  # bytes of a value that Arrow and Spark can hold
LEAST_SPLIT: Final = 1 << 16
STREAMING: Final = ("startingOffset", "maxFilesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")
"""Options that only streams have, see `streaming`."""
MODES: Final = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")
OF_HIVE: Final = "serialization.format"  # an option of every table in a catalog of Hive
OF_TABLES: Final = (
    "; a table in a catalog knows it if CREATE TABLE .. USING winkfs OPTIONS (path 'DIR') made it "
    "without columns; else write t WITH (path = 'DIR'), or .option('path', DIR) before .table('t')"
)
IN_TABLES: Final = (
    "; Spark does not give it to the writer of a table in its catalog: write INSERT INTO t WITH "
    "(path = 'DIR'), or .option('path', DIR) before .saveAsTable('t') or after .writeTo('t')"
)
SELECTION: Final = frozenset(f.name for f in fields(Selection))
FIELDS: Final = {
    "path": "string",
    "size": "bigint",
    "mtime": "timestamp",
    "content": "binary",
    "name_raw": "binary",
    "mtime_ns": "bigint",
    "ftype": "int",
    "mode": "int",
    "_error": "string",
    "_container": "string",
    "_contid": "bigint",
    "_pos": "bigint",
    "_pointer": "bigint",
    "_ref": "bigint",
    "_generation": "bigint",
    "_change": "string",
}
TYPED: Final = {
    "string": "string", "binary": "binary", "bool": "boolean", "int64": "bigint",
    "float64": "double", "timestamp": "timestamp", "list<string>": "array<string>", "date": "date",
    "datetime": "timestamp_ntz", "list<int64>": "array<bigint>", "list<float64>": "array<double>",
}  # fmt: skip
"""Types of the columns of the user; decimal(p,s) is that in both, see `sql_of`."""
ALIASES: Final = {"length": "size", "modificationtime": "mtime"}
REFS: Final = ("_container", "_contid", "_pos", "_pointer")


Readers = Mapping[str, tuple[str, Callable[[str], Any]]]
"""Option -> the attribute that it sets, and the function that converts its value."""


class Seen(dict[Any, Any]):
    """Stores and snapshots that a plan has read, by a key. A copy for another process is empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Seen, ()


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a read. Times are nanoseconds, sizes bytes.

    sources     as given, not searched yet
    split       None: not given
    seen        stores and snapshots that were read for them, which are not read again
    """

    sources: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    content: str = "inline"
    selection: Selection = field(default_factory=Selection)
    order: str = "offset"
    as_of: str | None = None
    include_dirs: bool = False
    split: int | None = None
    partitions: int = 1
    batch: int = 4 << 20
    largest: int = LARGEST
    mode: str = "FAILFAST"
    verify: bool = True
    pushdown: str = "off"
    binary_file: bool = False
    changes: bool = False
    first: int | None = None
    last: int | None = None
    seen: Seen = field(default_factory=Seen, compare=False, repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str], others: Iterable[str] = ()) -> Self:
        """Check the options of Spark. Raises ValueError of one line with the allowed values.

        others  names of options that are checked elsewhere
        """
        given = given_of(options)
        check_names(given, [*READERS, *others])
        if "path" not in given and "paths" in given:  # that is how Spark hands on load([a, b])
            given["path"] = given.pop("paths")
        values = values_of(given, READERS)
        if not values.get("sources"):
            raise ValueError(f"no path: give a container or data set: .load(BASE){OF_TABLES}")
        if "paths_file" in values:
            values["paths"] = values.get("paths", ()) + values.pop("paths_file")
        chosen = {name: values.pop(name) for name in SELECTION if name in values}
        low, high = chosen.get("since"), chosen.get("until")
        if low is not None and high is not None and low > high:
            raise ValueError("option mtimeFrom is later than mtimeTo")
        made = cls(**values, selection=Selection(**chosen))
        if not made.changes and (made.first, made.last) != (None, None):
            raise ValueError("startingGeneration and endingGeneration go with readChanges=true")
        if made.changes and (chosen or made.as_of or made.order != "offset"):
            raise ValueError("readChanges reads all changes: filter the DataFrame instead")
        return made


def given_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the user gave, with names in lower case.

    For CREATE TABLE Spark also passes `provider`, `owner`, `location` and the like, all
    TBLPROPERTIES, and each of the OPTIONS twice: as NAME and as option.NAME.
    """
    given = {name.lower(): value for name, value in options.items()}
    if given.get("provider", "").lower() != "winkfs":
        return given
    named = {name for name in given if f"option.{name}" in given} - {OF_HIVE} | {"path"}
    return {name: value for name, value in given.items() if name in named}


def check_names(given: Mapping[str, str], names: Iterable[str]) -> None:
    """Raise ValueError for an unknown option; the given names are in lower case."""
    known = {name.lower(): name for name in names}
    for name in given:
        if name not in known:
            near = [known[found] for found in get_close_matches(name, known, 1)]
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known.values())}"
            raise ValueError(f"format winkfs has no option {name!r}: {hint}")


def value_of(given: Mapping[str, str], name: str, read: Callable[[str], Any]) -> Any:
    """Return the value of an option, None if it is not given. Raises ValueError that names it."""
    text = given.get(name.lower())
    try:
        return None if text is None else read(text)
    except (ValueError, KeyError) as error:
        raise ValueError(f"option {name} is {text!r}: it takes {error.args[0]}") from None


def values_of(given: Mapping[str, str], readers: Readers) -> dict[str, Any]:
    """Return the attributes that the given options set. Raises ValueError."""
    return {
        attribute: value_of(given, name, read)
        for name, (attribute, read) in readers.items()
        if name.lower() in given
    }


# --- conversion of values: the text of a ValueError follows "it takes" ---


def local_path(path: str) -> str:
    """Return the absolute path of a path or file: URI, because executors run in other folders.

    raises  ValueError for another kind of URI
    """
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/", path)
    if scheme is not None and scheme[1].lower() != "file":
        raise ValueError(f"paths of a file system, not {scheme[1]}:")
    return os.path.abspath(re.sub(r"^file:/+", "/", path, flags=re.IGNORECASE)) if path else ""


def store_path(path: str) -> str:
    """Return the path of a store as `local_path`, or its URL on object storage.

    raises  ValueError for another kind of URI
    """
    url = re.sub(r"^s3[an]://", "s3://", path)  # as Hadoop names it
    if is_far(url):
        return url.rstrip("/")
    return local_path(path)


def _sources(text: str) -> tuple[str, ...]:
    if text.startswith("["):
        listed = _list(text, "paths with commas between them, or a JSON list of them")
        return tuple(map(store_path, listed))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > 1 and any(map(is_far, parts)):
        return tuple(map(store_path, parts))
    whole = store_path(text)
    if "," in text and not os.path.exists(whole) and not os.path.exists(whole + ".data"):
        return tuple(map(store_path, parts))
    return (whole,) if whole else ()


def _list(text: str, what: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ValueError(what)
    return found


def _words(text: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    if not found:
        raise ValueError("names of columns with commas between them")
    return found


def _globs(text: str) -> tuple[str, ...]:
    globs = [text]
    if text.startswith("["):
        with contextlib.suppress(ValueError):  # a glob may begin so, too
            globs = _list(text, "")
    return tuple(to_str(to_name(glob.encode())) for glob in globs)


def _names(text: str) -> tuple[bytes, ...]:
    return tuple(to_name(name.encode()) for name in _list(text, "a JSON list of names"))


def _names_file(text: str) -> tuple[bytes, ...]:
    try:
        data = Path(local_path(text)).read_bytes()
    except OSError as error:
        raise ValueError(f"a file of names, one a line ({error.strerror})") from None
    return tuple(to_name(line) for line in data.removesuffix(b"\n").split(b"\n"))


def _where(text: str) -> Condition:
    from winkfs.container.where import parse  # late: most queries do not need it

    try:
        return parse(text).named(lambda path: to_str(to_name(path.encode())))
    except ValueError as error:
        raise ValueError(f"a condition as lang = 'de' and size > 1000 ({error})") from None


def one_of(**values: Any) -> Callable[[str], Any]:
    """Return a conversion that takes these words, in any case."""
    known = {name.lower(): value for name, value in values.items()}

    def read(text: str) -> Any:
        if text.strip().lower() not in known:
            raise ValueError(" or ".join(values))
        return known[text.strip().lower()]

    return read


def size_of(text: str, least: int = 0, most: int = (1 << 63) - 1) -> int:
    """Parse a number of bytes, as 4096, 4k, 128m, 1g. Raises ValueError."""
    size = parse_size(text)
    if size is None or not least <= size <= most:
        raise ValueError(
            f"a number of bytes from {least} to {most}, as 4096 or 64k or 128m"
            if least or most < 1 << 62 else "a number of bytes, as 4096 or 64k or 128m"
        )  # fmt: skip
    return size


def count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError("a number, 1 at least")
    return int(text)


def number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("a number, 0 at least")
    return int(text)


def time_of(text: str) -> int:
    """Parse a time -> nanoseconds, limited to 64 bits. Raises ValueError."""
    ns = parse_time(text, exponent=True)
    if ns is None:
        raise ValueError("seconds since the epoch, or a time as 2026-11-21T08:30Z")
    return max(-(1 << 63), min(ns, (1 << 63) - 1))


def _order(text: str) -> str:
    kind, _, file = text.partition(":")
    if kind.lower() == "perm" and file:
        return f"perm:{local_path(file)}"
    if file or kind.lower() not in ("offset", "path", "mtime"):
        raise ValueError("offset, path, mtime or perm:DIR")
    return kind.lower()


def _split(text: str) -> int:
    return size_of(text, LEAST_SPLIT)


flag: Final = one_of(true=True, false=False)
READERS: Final[Readers] = {
    "path": ("sources", _sources),
    "columns": ("columns", _words),
    "content": ("content", one_of(inline="inline", lazy="lazy", ref="ref", none="none")),
    "prefix": ("prefix", lambda text: to_name(text.encode())),
    "glob": ("globs", _globs),
    "paths": ("paths", _names),
    "pathsFile": ("paths_file", _names_file),
    "mtimeFrom": ("since", time_of),
    "mtimeTo": ("until", time_of),
    "minSize": ("min_size", size_of),
    "maxSize": ("max_size", size_of),
    "where": ("where", _where),
    "orderBy": ("order", _order),
    "asOf": ("as_of", str),
    "includeDirs": ("include_dirs", flag),
    "readChanges": ("changes", flag),
    "startingGeneration": ("first", count),
    "endingGeneration": ("last", count),
    "splitBytes": ("split", _split),
    "minPartitions": ("partitions", count),
    "batchBytes": ("batch", lambda text: size_of(text, 1, 1 << 30)),
    "maxContentBytes": ("largest", lambda text: size_of(text, 0, LARGEST)),
    "mode": ("mode", one_of(**{mode: mode for mode in MODES})),
    "verify": ("verify", flag),
    "pushdown": ("pushdown", one_of(off="off", native="native", untried="untried")),
    "schemaStyle": ("binary_file", one_of(winkfs=False, binaryFile=True)),
}


def column_of(name: str, typed: Mapping[str, str] | None = None) -> str:
    """Return the column for a name in a schema. Raises ValueError.

    typed  the columns of the user
    """
    known: dict[str, str] = {field.lower(): field for field in (*(typed or ()), *FIELDS)} | ALIASES
    found = known.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), known, 1)
        there = ", ".join([*FIELDS, *(typed or ())])
        hint = f"did you mean {near[0]}?" if near else f"there are {there}"
        raise ValueError(f"format winkfs has no column {name!r}: {hint}")
    return found


def type_of(column: str, typed: Mapping[str, str]) -> str:
    """Return the SQL type of a column."""
    return FIELDS[column] if column in FIELDS else sql_of(typed[column])


def sql_of(kind: str) -> str:
    """Return the SQL type of a column of the user."""
    return TYPED.get(kind, kind)


def arrow_schema(fields: StructType) -> Any:
    """Return the only pyarrow.Schema that Spark accepts for these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(fields, timezone="UTC")
    except TypeError:  # up to Spark 4.1, which has no such argument
        return to_arrow_schema(fields)
