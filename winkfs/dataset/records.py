"""Records of a manifest: a shard, and one generation. JSON with a checksum.

    format      "winkfs-dataset"
    version     1.1 if a record has columns or compress, which writers that know only 1 leave out;
                1.2 if it has columns of types that 0.2.0 does not know
                of checkpoints; else 1. A reader refuses a higher one
    generation  number of the manifest, as in its name
    time_ns     of the commit, nanoseconds since the epoch; later than that of the one before
    operation   create, append, overwrite, compact, rebalance, vacuum
    job         folder of the shards added
    added       records of shards; removed: their paths
    streams     {query: batch} that the commit finishes
    metrics     any values of the writer
    oldest      the oldest generation that can still be read
    checkpoint  every 64th, of many shards every 128th, and so on: {shards: [all records],
                streams: {query: [batch, generation]}}
    xxh3        of all bytes before this field, 16 hex digits

Version 2, on object storage, has no checkpoint, but the whole difference to one:

    writer      version of winkfs
    base        null, or {generation: of the checkpoint, parts: [[path, bytes, XXH3-64, records]]}
    since       records of shards that were added after the checkpoint; added: their paths
    gone        paths of shards of the parts that were removed after it
    hidden      two of [path, bytes, bytes of its header, XXH3-64 of the header] or null, the hidden
                rows at the checkpoint, and those since
    unsure      paths of shards whose hidden rows may not be complete
    streams     {query: [batch, generation]}, all

Names in it are UTF-8, other bytes as surrogates \\udcXX.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import xxhash

from winkformats import version as winkformats_version
from winkformats.errors import CorruptError, FormatError
from winkfs.container.ondisk.compressed import NONE, level_of
from winkfs.container.ondisk.typed import is_new, parse_schema
from winkfs.names import to_bytes

FORMAT: Final = "winkfs-dataset"
PLAIN_VERSION: Final = 1  # of manifests whose records have none of LATER
TYPED_VERSION: Final = 1.1
NEW_TYPES_VERSION: Final = 1.2
VERSION: Final = 2  # on object storage, see `Whole`
TAIL: Final = len(',"xxh3":"0123456789abcdef"}\n')
MAX_RECORDED_NAME: Final = 256  # bytes of a first or last name that is recorded
REWRITES: Final = frozenset({"compact", "rebalance", "vacuum", "create", "repair"})
JOB: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}", re.ASCII)  # of a job, of an attempt
PATH: Final = re.compile(f"{JOB.pattern}/{JOB.pattern}", re.ASCII)  # of a shard: JOB/ATTEMPT
PART_PATH: Final = re.compile(rf"{JOB.pattern}/\d{{20}}-\d+\.part", re.ASCII)
HIDDEN_PATH: Final = re.compile(rf"{JOB.pattern}/\d{{20}}\.hidden", re.ASCII)
WRITER: Final = f"winkfs {winkformats_version.VERSION}"
NUMBERS: Final = (int,) * 8
INTEGERS: Final = frozenset({int, type(None)})
TEXTS: Final = frozenset({str, type(None)})
_BY_RANK: Final = attrgetter("rank", "path")
Rank = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Record of a shard in a manifest.

    path        below the data set, without .data, see PATH
    contid      CONTID; size: FILESIZE, bytes. Both identify the shard
    files       number of files, hidden ones included; -1: not known (a plain container)
    content     bytes of their content
    tombstones  number of entries, from position tombs_at on, that delete names of older shards
    mtime_min   mtime of the oldest file, mtime_max: of the youngest, nanoseconds; None: not known
    first       the least name, last: the greatest; None: not known
    rank        the shard with the higher rank wins; a rewritten shard keeps the rank
    columns     columns of the user in the form of `ondisk.typed`: "lang:string score:float64"
    compress    compression of new content, "zstd:9"; "": none, or written by an older version.
                Existing content may be stored otherwise, so records are compared without it
    etag        of its data file on object storage; "": not known
    unknown     fields of later versions, which are written back
    """

    path: str
    contid: int
    size: int
    files: int = -1
    content: int = 0
    tombstones: int = 0
    tombs_at: int = 0
    mtime_min: int | None = None
    mtime_max: int | None = None
    ao: bool = False
    first: str | None = None
    last: str | None = None
    rank: Rank = (0, 0)
    columns: str = ""
    compress: str = field(default="", compare=False)
    etag: str = field(default="", compare=False)
    unknown: dict[str, Any] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build a record from JSON. Raises KeyError, TypeError, ValueError."""
        known = {name: values[name] for name in RECORD_FIELDS if name in values}
        if len(known) < len(values):
            known["unknown"] = {name: values[name] for name in values if name not in known}
        generation, place = known["rank"]
        known["rank"] = (generation, place)
        made = cls(**known)
        checked_path(made.path)
        numbers = (
            type(made.contid), type(made.size), type(made.files), type(made.content),
            type(made.tombstones), type(made.tombs_at), type(generation), type(place),
        )  # fmt: skip
        if (
            numbers != NUMBERS
            or type(made.ao) is not bool
            or not {type(made.mtime_min), type(made.mtime_max)} <= INTEGERS
            or not {type(made.first), type(made.last)} <= TEXTS
            or {type(made.columns), type(made.compress), type(made.etag)} != {str}
        ):
            raise TypeError(f"a field of {made.path}")
        _schema(made.columns)
        for end in (made.first, made.last):
            if end is not None and not end.isascii():
                to_bytes(end)  # raises if it cannot be encoded
        return made

    @property
    def schema(self) -> dict[str, str]:
        """Its columns: name -> type."""
        return dict(_schema(self.columns))

    @property
    def level(self) -> int:
        """The level of `compress`; 0: not compressed, or with a codec of a later version."""
        try:
            return level_of(self.compress or NONE)
        except ValueError:
            return 0

    @property
    def names(self) -> tuple[bytes, bytes] | None:
        """The least and the greatest name; None if they are not known."""
        first, last = self.first, self.last
        if first is None or last is None:
            return None
        if first.isascii() and last.isascii():
            return first.encode(), last.encode()
        return to_bytes(first), to_bytes(last)


RECORD_FIELDS: Final = [f.name for f in fields(ShardRecord) if f.name != "unknown"]
LATER: Final = ("columns", "compress", "etag")  # fields that are left out if they are empty


class Stored(NamedTuple):
    """A file beside the shards that a manifest of version 2 names.

    path    below the data set: JOB/NAME
    size    bytes
    digest  XXH3-64, 16 hex digits: of a part, or of the header of hidden rows
    number  of the records of a part, or bytes of the header of hidden rows
    """

    path: str
    size: int
    digest: str
    number: int


@dataclass(frozen=True, slots=True)
class Whole:
    """The difference of a generation to a checkpoint, see the docstring of the module.

    base     generation of the checkpoint; -1: there is none
    parts    of the checkpoint: all its records, by rank
    hidden   at the checkpoint, and since
    records  those of each part; None before they are read
    """

    base: int = -1
    parts: tuple[Stored, ...] = ()
    since: tuple[ShardRecord, ...] = ()
    gone: tuple[str, ...] = ()
    hidden: tuple[Stored | None, Stored | None] = (None, None)
    unsure: tuple[str, ...] = ()
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    records: tuple[tuple[ShardRecord, ...], ...] | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Build it from the JSON of a manifest. Raises KeyError, TypeError, ValueError."""
        base, parts = -1, list[Stored]()
        if values["base"] is not None:
            base = values["base"]["generation"]
            parts = [_stored(part, PART_PATH) for part in values["base"]["parts"]]
        if type(base) is not int or not -1 <= base < values["generation"]:
            raise ValueError("the generation of the checkpoint")
        first, second = values["hidden"]
        hidden = [file and _stored(file, HIDDEN_PATH, swapped=True) for file in (first, second)]
        return cls(
            base, tuple(parts), _records(values["since"]),
            tuple(map(checked_path, values["gone"])), (hidden[0], hidden[1]),
            tuple(map(checked_path, values.get("unsure", ()))), _stream_states(values["streams"]),
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        base = None
        if self.base >= 0:
            base = {"generation": self.base, "parts": self.parts}
        hidden = [file and (file.path, file.size, file.number, file.digest) for file in self.hidden]
        values = {"base": base, "since": list(map(as_values, self.since)), "gone": self.gone,
                  "hidden": hidden, "streams": dict(self.streams)}  # fmt: skip
        return values | ({"unsure": self.unsure} if self.unsure else {})

    @property
    def shards(self) -> tuple[ShardRecord, ...]:
        """All shards, by rank. The parts have been read."""
        found = {record.path: record for part in self.records or () for record in part}
        for path in self.gone:
            found.pop(path, None)
        return by_rank((found | {record.path: record for record in self.since}).values())


def _stored(values: Sequence[Any], pattern: re.Pattern[str], *, swapped: bool = False) -> Stored:
    path, size, *rest = values
    digest, number = reversed(rest) if swapped else rest
    if (
        not pattern.fullmatch(path)
        or (type(size), type(number)) != (int, int)
        or min(size, number) < 0
        or not re.fullmatch("[0-9a-f]{16}", digest)
    ):
        raise ValueError(f"the file {path!r}")
    return Stored(path, size, digest, number)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a data set in one generation.

    shards   by rank, the winner last
    streams  query -> (last batch, generation that has it)
    digest   checksum of the manifest, which distinguishes it from others of its number
    whole    of version 2, its parts read; None: of version 1
    """

    generation: int
    time_ns: int
    shards: tuple[ShardRecord, ...] = ()
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    oldest: int = 0
    digest: str = ""
    whole: Whole | None = None

    @property
    def compress(self) -> str | None:
        """Compression of new shards: that of the last compressed shard; None: none."""
        return next((r.compress for r in reversed(self.shards) if r.compress and r.level), None)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One generation: its changes, and in a checkpoint also the whole state after them.

    digest  its checksum; "" before it is encoded
    whole   of version 2, the parts not read; None: of version 1
    """

    generation: int
    time_ns: int
    operation: str
    job: str = ""
    added: tuple[ShardRecord, ...] = ()
    removed: tuple[str, ...] = ()
    streams: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    oldest: int = 0
    checkpoint: State | None = None
    digest: str = ""
    whole: Whole | None = None

    @property
    def rewrites(self) -> bool:
        """True if it changes no visible file, so that streams skip it."""
        return self.operation in REWRITES

    def apply(self, before: State) -> State:
        """Return the state after it. Raises FormatError if it does not follow `before`."""
        return applied(before, [self])

    @classmethod
    def _of_whole(cls, values: Mapping[str, Any], digest: str) -> Self:
        whole, generation = Whole.of(values), values["generation"]
        since = {record.path: record for record in whole.since}
        return cls(
            generation, values["time_ns"], values["operation"], values["job"],
            tuple(since[path] for path in values["added"]),
            tuple(map(checked_path, values["removed"])),
            {query: batch for query, (batch, number) in whole.streams.items()
             if number == generation},
            values["metrics"], values["oldest"], digest=digest, whole=whole,
        )  # fmt: skip

    def encode(self) -> bytes:
        if self.whole is not None:
            return _encoded({"format": FORMAT, "version": VERSION, "writer": WRITER} | {
                name: getattr(self, name)
                for name in ("generation", "time_ns", "operation", "job", "metrics", "oldest")
            } | {"added": [record.path for record in self.added], "removed": self.removed}
              | self.whole.as_json())  # fmt: skip
        version: float = PLAIN_VERSION
        whole = () if self.checkpoint is None else self.checkpoint.shards
        if any(r.columns or r.compress for r in (*self.added, *whole)):
            version = TYPED_VERSION
        if any(is_new(r.columns.encode()) for r in (*self.added, *whole)):
            version = NEW_TYPES_VERSION
        values = {"format": FORMAT, "version": version} | _as_json(self)
        return _encoded(values)

    @classmethod
    def decode(cls, data: bytes, *, file: str) -> Self:
        """Decode a manifest. Raises CorruptError, or FormatError for a later version."""
        if not is_whole(data):
            raise CorruptError("checksum of the manifest", file=file, offset=0)
        return cls.parse(data[:-TAIL] + b"}", file=file, digest=digest_of(data))

    @classmethod
    def parse(cls, text: bytes, *, file: str, digest: str = "") -> Self:
        """Build a manifest from JSON without a check of its checksum. Raises as `decode`."""
        try:
            values = json.loads(text)
            if values["format"] != FORMAT or values["version"] > VERSION:
                raise FormatError(f"{file}: a manifest of a later version: update winkfs")
            _check_head(values)
            if values["version"] >= 2:
                return cls._of_whole(values, digest)
            return cls(
                values["generation"], values["time_ns"], values["operation"], values["job"],
                _records(values["added"]), tuple(map(checked_path, values["removed"])),
                _batches(values["streams"]), values["metrics"], values["oldest"],
                _state(values, digest), digest,
            )  # fmt: skip
        except FormatError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CorruptError(f"manifest: {error!r}", file=file, offset=0) from None


def applied(before: State, manifests: Sequence[Manifest]) -> State:
    """Return the state after manifests that follow a state. Raises FormatError if they do not.

    cost    a look at each shard, once
    """
    if not manifests:
        return before
    shards, streams = {record.path: record for record in before.shards}, dict(before.streams)
    last: State | Manifest = before
    added, removed = list[ShardRecord](), False
    for made in manifests:
        if made.generation != last.generation + 1 or made.time_ns <= last.time_ns:
            raise FormatError(f"manifest {made.generation} does not follow {last.generation}")
        for path in made.removed:
            if shards.pop(path, None) is None:
                raise FormatError(f"manifest {made.generation} removes {path}, which is not there")
            removed = True
        for record in made.added:
            if record.path in shards:
                raise FormatError(f"manifest {made.generation} adds {record.path} again")
            shards[record.path] = record
            added.append(record)
        streams |= {query: (batch, made.generation) for query, batch in made.streams.items()}
        last = made
    added.sort(key=_BY_RANK)
    ends = [*before.shards[-1:], *added[:1]]
    if removed or (len(ends) > 1 and _BY_RANK(ends[1]) < _BY_RANK(ends[0])):
        records = by_rank(shards.values())
    else:
        records = (*before.shards, *added)
    end = manifests[-1]
    return State(
        end.generation, end.time_ns, records, streams, end.oldest, end.digest, end.whole
    )  # fmt: skip


def _encoded(values: Mapping[str, Any]) -> bytes:
    text = json.dumps(values, separators=(",", ":"))[:-1].encode()
    return text + b',"xxh3":"%016x"}\n' % xxhash.xxh3_64_intdigest(text)


def job_of(data: bytes) -> str:
    """Return the job of a manifest; "" of a damaged one."""
    if not is_whole(data):
        return ""
    return str(json.loads(data).get("job", ""))


def is_whole(data: bytes) -> bool:
    """Return whether the checksum of a manifest is right."""
    return data[-TAIL:] == b',"xxh3":"%016x"}\n' % xxhash.xxh3_64_intdigest(data[:-TAIL])


def digest_of(data: bytes) -> str:
    """Return the checksum stored in a manifest, 16 hex digits."""
    return data[8 - TAIL : -3].decode("ascii")


def checked_path(path: str) -> str:
    """Return the path of a shard unchanged. Raises ValueError, TypeError for any other path."""
    if not PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no path of a shard")
    return path


def _check_head(values: Mapping[str, Any]) -> None:
    """Check the plain fields of a manifest. Raises KeyError, TypeError, ValueError."""
    if {type(values[name]) for name in ("generation", "time_ns", "oldest")} != {int}:
        raise TypeError("a number of the manifest")
    if not 0 <= values["oldest"] <= values["generation"]:
        raise ValueError("the oldest generation")
    if values["job"] and not JOB.fullmatch(values["job"]):
        raise ValueError(f"{values['job']!r} is no name of a job")
    if type(values["operation"]) is not str or type(values["metrics"]) is not dict:
        raise TypeError("operation or metrics")


def _batches(streams: Mapping[str, int]) -> Mapping[str, int]:
    """Return the batches of streams unchanged. Raises TypeError if they are not integers."""
    if type(streams) is not dict or {type(batch) for batch in streams.values()} - {int}:
        raise TypeError("the batch of a stream")
    return streams


def _stream_states(values: Mapping[str, Any]) -> Mapping[str, tuple[int, int]]:
    streams = {query: (batch, number) for query, (batch, number) in values.items()}
    _batches({query: sum(pair) for query, pair in streams.items()})
    return streams


def by_rank(records: Iterable[ShardRecord]) -> tuple[ShardRecord, ...]:
    return tuple(sorted(records, key=_BY_RANK))


@lru_cache(256)
def _schema(columns: str) -> Mapping[str, str]:
    """Return the columns of a record. Raises ValueError."""
    return MappingProxyType(parse_schema(columns.encode()))


def _as_json(manifest: Manifest) -> dict[str, Any]:
    values = {f.name: getattr(manifest, f.name) for f in fields(manifest)}
    del values["digest"], values["whole"]
    values["added"] = list(map(as_values, manifest.added))
    whole = values.pop("checkpoint")
    if whole is not None:
        shards = list(map(as_values, whole.shards))
        values["checkpoint"] = {"shards": shards, "streams": dict(whole.streams)}
    return values


def as_values(record: ShardRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in RECORD_FIELDS}
    for later in LATER:  # left out if empty, so that older versions can read it
        if not values[later]:
            del values[later]
    return values | (record.unknown or {})


def union(schemas: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the columns of several shards. If the types of a column differ, the last one counts,
    or float64 if one is int64 and the other float64."""
    found: dict[str, str] = {}
    for schema in schemas:
        for name, kind in schema.items():
            numbers = {found.get(name), kind} == {"int64", "float64"}
            found[name] = "float64" if numbers else kind
    return found


def columns_of(records: Iterable[ShardRecord]) -> dict[str, str]:
    """Return the columns of shards, as `union` joins them."""
    return union(_schema(text) for text, _ in groupby(records, attrgetter("columns")))


def misfit(
    known: Mapping[str, str],
    schema: Mapping[str, str],
    shown: Callable[[str], str] = str,
    advice: str = "convert it",
) -> str | None:
    """Return a message on the first column that cannot be in a data set with the known ones; None:
    all can.

    shown   returns the name of a type to print
    advice  what the user can do about such a column
    """
    spelt = {name.lower(): name for name in known}
    for name, kind in schema.items():
        one, there = spelt.get(name.lower(), name), known.get(name, kind)
        if name not in known and one != name:
            return f"column {name!r} is {one!r} in the data set: rename it"
        if there != kind and {there, kind} != {"int64", "float64"}:
            what = f"column {name!r} is {shown(there)} in the data set, not {shown(kind)}"
            return f"{what}: {advice}"
    return None


def _records(values: Any) -> tuple[ShardRecord, ...]:
    return tuple(map(ShardRecord.of, values))


def _state(values: Mapping[str, Any], digest: str) -> State | None:
    whole = values.get("checkpoint")
    if whole is None:
        return None
    streams = _stream_states(whole["streams"])
    shards = by_rank(_records(whole["shards"]))
    return State(
        values["generation"], values["time_ns"], shards, streams, values["oldest"], digest
    )  # fmt: skip
