"""MDS, the format of MosaicML Streaming: a folder of shards, and index.json about them.

A shard of n samples, all numbers little-endian:

    offset     size     type  field    meaning
    0          4        I     samples  n
    4          4(n+1)   I     offsets  of each sample, and the end of the last one
    8 + 4n              text  config   JSON: names, encodings and sizes of the columns
                              samples  one after another

A sample has the size of each value of no fixed size, 4 bytes each, then all values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np

from winkformats.errors import FormatError

VERSION: Final = 2
INDEX: Final = "index.json"
MOST_BYTES: Final = (1 << 32) - 1  # of a shard: its offsets have 4 bytes
MOST_INDEX: Final = 1 << 30  # bytes of an index that is read
FIXED: Final = {
    "int": "int64", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32", "uint64": "uint64",
    "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "float16": "float16",
    "float32": "float32", "float64": "float64",
}  # fmt: skip
"""Encodings of a fixed size, and their types of numpy."""
TEXTS: Final = {
    "str": "string",
    "str_int": "int64",
    "str_float": "float64",
    "str_decimal": "string",
}
"""Encodings as text, and the types of column that take them."""
CONTENTS: Final = {
    "bytes": "", "pil": "pil", "jpeg": "jpg", "jpeg_array": "jpegs", "jpegarray": "jpegs",
    "list[jpeg]": "jpegs", "list[pil]": "pils", "list[png]": "pngs", "png": "png", "pkl": "pkl",
    "json": "json", "ndarray": "ndarray",
}  # fmt: skip
"""Encodings whose bytes become a file as they are, and its extension."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a shard. size: bytes of each value; 0: each has its own size."""

    name: str
    encoding: str
    size: int

    @property
    def extension(self) -> str | None:
        """The extension of a file with its bytes, "": it has none; None: its values are no file."""
        return CONTENTS.get(self.encoding.partition(":")[0])

    @property
    def kind(self) -> str | None:
        """The type of a column that takes its values; None: they are no values of a column."""
        if self.encoding in FIXED:
            return "float64" if self.encoding.startswith("float") else "int64"
        return TEXTS.get(self.encoding)


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard, from the index.

    basename     of the plain file, below the folder; it may be missing if it is also compressed
    size         bytes of that file
    packed       of the compressed file; "": there is none
    packed_size  bytes of that
    compression  how, such as zstd:7
    hashes       (algorithm, hexadecimal digits) of the plain file
    """

    basename: str
    size: int
    packed: str
    packed_size: int
    compression: str
    samples: int
    columns: tuple[Column, ...]
    hashes: tuple[tuple[str, str], ...] = ()


def shard_record(
    basename: str, size: int, samples: int, columns: Sequence[Column], limit: int
) -> dict[str, Any]:
    """Return the record of a shard in the index."""
    file = {"basename": basename, "bytes": size, "hashes": {}}
    more = {"raw_data": file, "samples": samples, "zip_data": None}
    return dict(sorted((config_of(columns, limit) | more).items()))


def config_of(columns: Sequence[Column], limit: int) -> dict[str, Any]:
    """Return the configuration of shards, each of about `limit` bytes."""
    return {
        "column_encodings": [column.encoding for column in columns],
        "column_names": [column.name for column in columns],
        "column_sizes": [column.size or None for column in columns],
        "compression": None, "format": "mds", "hashes": [], "size_limit": limit,
        "version": VERSION,
    }  # fmt: skip


def encode_head(sizes: Sequence[int], config: bytes) -> bytes:
    """Return a shard up to its samples. sizes: bytes of each of them."""
    start = 4 * (len(sizes) + 2) + len(config)
    offsets = start + np.cumsum([0, *sizes], dtype=np.int64)
    return b"".join([
        len(sizes).to_bytes(4, "little"), offsets.astype("<u4").tobytes(), config
    ])  # fmt: skip


def index_text(shards: Sequence[dict[str, Any]]) -> bytes:
    """Return index.json."""
    return json.dumps({"shards": list(shards), "version": VERSION}, sort_keys=True).encode()


# --- reading ---


def read_index(data: bytes, where: str) -> list[ShardInfo]:
    """Return the shards of an index.

    where   its path, for messages
    raises  FormatError in one line, also for an encoding that is not known and for paths outside
            of the folder
    """
    try:
        found = json.loads(data)
        version = found["version"]
        if version != VERSION:
            raise FormatError(f"{where}: version {version!r} of MDS: only {VERSION} is known")
        return [_shard(shard, where) for shard in found["shards"]]
    except FormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__} {error}".splitlines()[0]
        raise FormatError(f"{where}: not an index of MDS: {what}") from None


def _shard(record: dict[str, Any], where: str) -> ShardInfo:
    if record["format"] != "mds":
        raise FormatError(f"{where}: shards are {record['format']!r}, only mds is known")
    raw, packed = record["raw_data"], record.get("zip_data") or {"basename": "", "bytes": 0}
    names = record["column_names"], record["column_encodings"], record["column_sizes"]
    columns = tuple(
        Column(str(name), str(code), int(size or 0))
        for name, code, size in zip(*names, strict=True)
    )
    for column in columns:
        if column.kind is None and column.extension is None:
            raise FormatError(
                f"{where}: column {column.name} is {column.encoding!r}, which is no known encoding "
                "of MDS: write the data set without it"
            )
        fixed = np.dtype(FIXED[column.encoding]).itemsize if column.encoding in FIXED else None
        if column.size < 0 or (fixed is not None and column.size != fixed):
            raise FormatError(f"{where}: column {column.name} has {column.size} bytes a value")
    if len({column.name for column in columns}) < len(columns):
        raise FormatError(f"{where}: a column is there twice")
    info = ShardInfo(
        str(raw["basename"]), int(raw["bytes"]), str(packed["basename"]), int(packed["bytes"]),
        str(record.get("compression") or ""), int(record["samples"]), columns,
        tuple((str(name), str(digits)) for name, digits in (raw.get("hashes") or {}).items()),
    )  # fmt: skip
    for name in filter(None, (info.basename, info.packed)):
        if "\0" in name or name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise FormatError(f"{where}: a shard outside of the folder: {name!r}")
    if not 0 <= info.samples < 1 << 32 or not 0 <= info.size <= MOST_BYTES:
        raise FormatError(
            f"{where}: {info.basename}: {info.samples:,} samples, {info.size:,} bytes"
        )
    return info


def read_offsets(data: memoryview, samples: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the offsets of samples and the end of the last one, int64[n + 1], of a whole shard or
    of its start.

    raises  FormatError if it has another number of samples, or is cut in the middle of these
    """
    found = int.from_bytes(data[:4], "little")
    if len(data) < 4 or found != samples:
        raise FormatError(f"it has {found:,} samples, and the index {samples:,}")
    if len(data) < 4 * (samples + 2):
        raise FormatError(f"cut: its offsets end at byte {len(data):,}")
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    offsets = np.frombuffer(data, "<u4", samples + 1, 4).astype(np.int64)
    return offsets


def decode(data: memoryview, columns: Sequence[Column]) -> list[memoryview]:
    """Return the bytes of each column of a sample. Raises FormatError for impossible sizes."""
    at, sizes = 0, []
    for column in columns:
        if column.size:
            sizes.append(column.size)
            continue
        if at + 4 > len(data):
            raise FormatError("cut in its sizes")
        sizes.append(int.from_bytes(data[at : at + 4], "little"))
        at += 4
    if at + sum(sizes) != len(data):
        raise FormatError(f"its values have {at + sum(sizes):,} bytes, and it has {len(data):,}")
    found = []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return found


def text_of(column: Column, value: memoryview) -> bytes:
    """Return the value of a column as the text of one of its type, see `ondisk.typed`."""
    if column.encoding not in FIXED:
        return bytes(value)
    number = np.frombuffer(value, np.dtype(FIXED[column.encoding]).newbyteorder("<"))[0].item()
    return repr(number).encode()
