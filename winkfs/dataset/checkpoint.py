"""Checkpoints of a data set on object storage: files beside the shards that its manifests name.

JOB/C-i.part   records of shards at generation C: a JSON list, deflated, ascending by rank
JOB/N.hidden   hidden rows, at generation N or of some generations up to N:

    offset  size  type  field    meaning
    0       8           magic    WINKHID2
    8       8     Q     cksum    XXH3-64 of all that follows
    16      8     q     length   bytes of the header
    24      ..          header   JSON: {"shards": [[path, number of its hidden rows, XXH3-64 of
                                 them], ...]}, padded with spaces to a multiple of 8
    ..      8n    q     rows     positions of inodes, ascending, shard by shard

A manifest has the whole difference to the checkpoint before it, so its state is the manifest and
the parts, which are read at once: no chain of manifests is followed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import xxhash

from winkformats.arrays import Int64
from winkformats.disk.objects import ObjectDirectory
from winkformats.errors import CorruptError
from winkfs.dataset.folder import DIGITS, far_files, read_files
from winkfs.dataset.records import Manifest, ShardRecord, State, Stored, Whole, as_values
from winkfs.errors import StalePlan

MAGIC: Final = b"WINKHID2"
HEADER_START: Final = 24  # offset of the JSON header
PART_RECORDS: Final = 1024  # of a part, at most
PART_BYTES: Final = 1 << 20  # of JSON of a part, at most
SPARE: Final = 8 << 10  # bytes of JSON that may be free in a full part
SINCE_BYTES: Final = 128 << 10  # of JSON of the changes since a checkpoint
HIDDEN_BYTES: Final = 1 << 20  # of the hidden rows since a checkpoint
GENERATIONS: Final = 64  # from a checkpoint to the last manifest that names it, fewer than
Hidden = Mapping[str, Int64]
"""Path of a shard -> positions of its hidden rows, ascending."""


# --- reading ---


def with_records(root: str, whole: Whole, known: Mapping[str, tuple[ShardRecord, ...]]) -> Whole:
    """Read the parts, at once. `known`: by path, those read before. Raises CorruptError; StalePlan;
    OSError."""
    todo = [part for part in whole.parts if part.path not in known]
    files = read_files(root, [part.path for part in todo])
    read = {part.path: _records(root, part, data) for part, data in zip(todo, files, strict=True)}
    return replace(
        whole, records=tuple(known.get(p.path) or read[p.path] for p in whole.parts)
    )  # fmt: skip


def _records(root: str, part: Stored, data: bytes | None) -> tuple[ShardRecord, ...]:
    path = f"{root}/{part.path}"
    if data is None:
        raise StalePlan("a part of the checkpoint is gone: it was vacuumed, or lost", path)
    if (len(data), xxhash.xxh3_64_hexdigest(data)) != (part.size, part.digest):
        raise CorruptError("checksum of a part of the checkpoint", file=path, offset=0)
    unpack = zlib.decompressobj()
    text = unpack.decompress(data, 2 * PART_BYTES)
    try:
        records = tuple(map(ShardRecord.of, json.loads(text)))
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"part of the checkpoint: {error!r}", file=path, offset=0) from None
    if len(records) != part.number:
        raise CorruptError("number of records of a part", file=path, offset=0,
                           expected=part.number, found=len(records))  # fmt: skip
    return records


def hidden_rows_of(root: str, whole: Whole) -> dict[str, Int64]:
    """Read the hidden rows. Raises CorruptError; StalePlan; OSError."""
    stored = [file for file in whole.hidden if file is not None]
    files = read_files(root, [file.path for file in stored])
    found = dict[str, Int64]()
    for file, data in zip(stored, files, strict=True):
        path = f"{root}/{file.path}"
        if data is None:
            raise StalePlan("the hidden rows are gone: they were vacuumed, or lost", path)
        for name, rows in _decoded(file, data, path):
            found[name] = np.union1d(found[name], rows) if name in found else rows
    return found


def _decoded(file: Stored, data: bytes, path: str) -> Iterator[tuple[str, Int64]]:
    start = HEADER_START + int.from_bytes(data[16:24], "little")
    if (
        data[:8] != MAGIC
        or xxhash.xxh3_64_intdigest(memoryview(data)[16:]) != int.from_bytes(data[8:16], "little")
        or (len(data), start, xxhash.xxh3_64_hexdigest(data[:start]))
        != (file.size, file.number, file.digest)
    ):
        raise CorruptError("checksum of hidden rows", file=path, offset=0)
    try:
        shards = json.loads(data[HEADER_START:start])["shards"]
        rows = np.frombuffer(data, "<i8", offset=start)
        ends = np.cumsum([0, *(number for _, number, _ in shards)])
        if ends[-1] != len(rows) or (np.diff(ends) < 0).any():
            raise ValueError("the number of rows")
        parts = np.split(rows, ends[1:-1])
        yield from ((name, part) for (name, *_), part in zip(shards, parts, strict=True))
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptError(f"hidden rows: {error!r}", file=path, offset=0) from None


# --- writing ---


def advanced(root: str, before: State, made: Manifest, rows: Hidden, unsure: Sequence[str]
             ) -> Manifest:  # fmt: skip
    """Return a manifest with the whole difference to a checkpoint. Writes hidden rows, and a
    checkpoint of the state before if one is due, below the job of the manifest.

    rows    that are hidden by this commit
    unsure  shards of which more rows may be hidden
    """
    assert before.whole is not None
    old, removed = before.whole, set(made.removed)
    stored = {record.path for part in old.records or () for record in part}
    new = replace(
        old,
        since=(*(record for record in old.since if record.path not in removed), *made.added),
        gone=(*old.gone, *(path for path in made.removed if path in stored)),
        unsure=tuple(sorted({*old.unsure, *unsure} - removed)),
        streams={**before.streams} | {q: (b, made.generation) for q, b in made.streams.items()},
    )
    second, files = old.hidden[1], far_files(root)
    more = 8 * sum(map(len, rows.values()))
    if (
        made.generation - max(old.base, 0) >= GENERATIONS
        or sum(map(_size, new.since)) + len(json.dumps(new.gone)) > SINCE_BYTES
        or more + (second.size if second else 0) > HIDDEN_BYTES
    ):
        base = f"{made.job}/{made.generation - 1:0{DIGITS}}"
        parts, records = _parts(files, base, old)
        both = hidden_rows_of(root, old)
        new = replace(
            new, base=made.generation - 1, parts=parts, records=records, since=made.added,
            gone=made.removed, hidden=(put_hidden(files, base, _kept(both, before)), None),
        )  # fmt: skip
    if more:
        known = hidden_rows_of(root, replace(new, hidden=(None, new.hidden[1])))
        joined = dict(known) | {
            path: np.union1d(known.get(path, found), found) for path, found in rows.items()
        }
        name = f"{made.job}/{made.generation:0{DIGITS}}"
        new = replace(new, hidden=(new.hidden[0], put_hidden(files, name, joined)))
    return replace(made, whole=new)


def _kept(hidden: Hidden, state: State) -> Hidden:
    """Return the rows of shards that are still there."""
    there = {record.path for record in state.shards}
    return {path: rows for path, rows in hidden.items() if path in there}


def _parts(files: ObjectDirectory, base: str, whole: Whole
           ) -> tuple[tuple[Stored, ...], tuple[tuple[ShardRecord, ...], ...]]:  # fmt: skip
    """Write the parts of a checkpoint -> all its parts, and their records. Those that are full and
    have lost no shard are used again."""
    touched = {*whole.gone, *(record.path for record in whole.since)}
    parts, records = list[Stored](), list[tuple[ShardRecord, ...]]()
    left = {record.path for record in whole.shards}
    for part, found in zip(whole.parts, whole.records or (), strict=True):
        full = len(found) >= PART_RECORDS or sum(map(_size, found)) > PART_BYTES - SPARE
        if full and touched.isdisjoint(record.path for record in found):
            parts.append(part)
            records.append(found)
            left.difference_update(record.path for record in found)
    for part, found in put_parts(files, base, [r for r in whole.shards if r.path in left]):
        parts.append(part)
        records.append(found)
    return tuple(parts), tuple(records)


def put_parts(
    files: ObjectDirectory, base: str, records: Sequence[ShardRecord]
) -> Iterator[tuple[Stored, tuple[ShardRecord, ...]]]:
    """Write parts with these records, by rank -> each part, and its records."""
    for number, chunk in enumerate(_chunks(records)):
        text = json.dumps([as_values(record) for record in chunk], separators=(",", ":"))
        data = zlib.compress(text.encode())
        path = f"{base}-{number}.part"
        files.put(path, data)
        yield Stored(path, len(data), xxhash.xxh3_64_hexdigest(data), len(chunk)), tuple(chunk)


def _chunks(records: Sequence[ShardRecord]) -> Iterator[list[ShardRecord]]:
    """Yield records for parts."""
    chunk, size = list[ShardRecord](), 0
    for record in records:
        more = _size(record)
        if chunk and (len(chunk) == PART_RECORDS or size + more > PART_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += more
    if chunk:
        yield chunk


def _size(record: ShardRecord) -> int:
    return len(json.dumps(as_values(record)))


def put_hidden(files: ObjectDirectory, name: str, hidden: Hidden) -> Stored | None:
    """Write hidden rows; None: there are none."""
    rows = {path: found.astype("<i8") for path, found in hidden.items() if len(found)}
    if not rows:
        return None
    shards = [[path, len(found), xxhash.xxh3_64_hexdigest(found.tobytes())]
              for path, found in rows.items()]  # fmt: skip
    header = json.dumps({"shards": shards}).encode()
    header += b" " * (-len(header) % 8)
    body = b"".join([len(header).to_bytes(8, "little"), header,
                     *(found.tobytes() for found in rows.values())])  # fmt: skip
    data = MAGIC + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body
    start, path = HEADER_START + len(header), f"{name}.hidden"
    files.put(path, data)
    return Stored(path, len(data), xxhash.xxh3_64_hexdigest(data[:start]), start)
