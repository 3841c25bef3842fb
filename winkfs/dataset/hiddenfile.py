"""Hidden rows: the files of each shard that a shard of a higher rank has replaced or deleted.

Derived, one file a generation, `_winkfs/<generation>.hidden`; made anew where it is missing or bad:

    offset  size  type  field    meaning
    0       8           magic    WINKHID1
    8       8     Q     cksum    XXH3-64 of all that follows
    16      8     q     length   bytes of the header
    24      ..          header   JSON: {"manifest": checksum of the manifest of that generation,
                                 "shards": [[path of a shard, number of its hidden rows], ...]}
    ..      8n    q     rows     positions of inodes, ascending, shard by shard

Little-endian. One that is not of the manifest of its number is not believed: manifests are moved
away, and their numbers used again. That of a later generation is made from it: only shards that
came since are looked at. Files are found to have one name by the hashes in the indexes, then by
their names.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.errors import FormatError
from winkfs.dataset.manifest import FOLDER, Log
from winkfs.dataset.manifestfolder import Folder
from winkfs.dataset.records import REWRITES, ShardRecord, State
from winkfs.errors import StalePlan

MAGIC: Final = b"WINKHID1"
HIDDEN: Final = ".hidden"
HEAD: Final = 24
BUILDS: Final = REWRITES | {"append"}  # operations after which hidden rows stay hidden
Hidden = dict[str, Int64]


def hidden_of(log: Log, state: State) -> Hidden:
    """Path of a shard -> positions of its hidden rows, ascending; of some shards none.

    cost    none where the names of shards do not overlap; else the derived file, or 0.5 us for
            each file of the shards that came since the last one
    """
    if not clusters(state.shards):
        return {}
    folder = Folder(f"{log.root}/{FOLDER}")
    generation, known = _nearest(log, folder, state)
    if generation == state.generation:
        return known
    from winkfs.dataset.hidden import hidden_rows  # not needed where it was done before

    damage: list[str] = []
    made = hidden_rows(log.root, state.shards, known, damage.append)
    for line in damage:
        log.note(f"{line}: older files that were replaced or deleted there may be seen again")
    if not damage:  # once it is mended they are hidden
        write_hidden(folder, state, made)
    return made


def clusters(shards: Sequence[ShardRecord]) -> list[list[ShardRecord]]:
    """Groups of two or more shards that may have a name in common, each in the order of ranks."""
    ranges = [(record.names or (b"", None), i) for i, record in enumerate(shards)
              if record.files or record.tombstones]  # fmt: skip
    groups: list[list[int]] = []
    end: bytes | None = b""
    for (first, last), i in sorted(ranges, key=lambda item: item[0][0]):
        if groups and (end is None or first <= end):
            groups[-1].append(i)
            end = None if end is None or last is None else max(end, last)
        else:
            groups.append([i])
            end = last
    return [[shards[i] for i in sorted(group)] for group in groups if len(group) > 1]


def _nearest(log: Log, folder: Folder, state: State) -> tuple[int, Hidden]:
    """The youngest file, up to that of a generation, from which its hidden rows can be made."""
    upper = state.generation
    for number in sorted(folder.named(HIDDEN), reverse=True):
        if not state.oldest <= number <= state.generation:
            continue
        try:
            if any(m.operation not in BUILDS for m in log.manifests(upper, number + 1)):
                break
            digest = state.digest if number == state.generation else log.read(number).digest
        except (StalePlan, FormatError):
            break
        upper = number
        with contextlib.suppress(OSError, FormatError):
            return number, read_hidden(folder, number, digest)
    return -1, {}


def read_hidden(folder: Folder, number: int, digest: str) -> Hidden:
    """What a derived file has that was made for the manifest with this checksum.

    raises  FormatError where it is damaged, or was made for another; OSError
    """
    name = folder.name(number, HIDDEN)
    path = f"{folder.path}/{name}"
    try:
        with folder.files.open(name) as storage:
            return _decoded(storage.read(0, storage.size()), digest, path)
    except FormatError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from None


def _decoded(data: bytes, digest: str, path: str) -> Hidden:
    length = int.from_bytes(data[16:24], "little")
    cksum = int.from_bytes(data[8:16], "little")
    if data[:8] != MAGIC or xxhash.xxh3_64_intdigest(memoryview(data)[16:]) != cksum:
        raise FormatError(f"{path}: damaged")
    header = json.loads(data[HEAD : HEAD + length])
    if header["manifest"] != digest:
        raise FormatError(f"{path}: of another manifest")
    counts = header["shards"]
    rows = np.frombuffer(data, "<i8", offset=HEAD + length)
    ends = np.cumsum([0, *(count for _, count in counts)])
    if ends[-1] != len(rows) or (np.diff(ends) < 0).any():
        raise FormatError(f"{path}: damaged")
    return dict(zip([path for path, _ in counts], np.split(rows, ends[1:-1]), strict=True))


def write_hidden(folder: Folder, state: State, hidden: Mapping[str, Int64]) -> None:
    """Where the disk does not take it, the next who needs it computes it again."""
    counts = [[name, len(rows)] for name, rows in hidden.items()]
    header = json.dumps({"manifest": state.digest, "shards": counts}).encode()
    header += b" " * (-len(header) % 8)
    parts = [len(header).to_bytes(8, "little"), header]
    body = b"".join([*parts, *(rows.astype("<i8").tobytes() for rows in hidden.values())])
    cksum = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    with (
        contextlib.suppress(OSError),
        folder.written(state.generation, MAGIC + cksum + body, sync=False) as file,
    ):
        folder.files.rename(file, folder.name(state.generation, HIDDEN))
