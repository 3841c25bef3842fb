"""The compiled module. Its functions are described in the C sources; arrays are contiguous."""

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from winkformats.arrays import Bools, Int64, UInt64
from winkformats.disk.storage import Buffer
from winkformats.native import Found, Read, ReadAt

_Name = TypeVar("_Name")
_Draft = TypeVar("_Draft")

VERSION: int

# _native.c
def hash_each(buffers: Iterable[Buffer], seeds: UInt64 | None, /) -> bytearray: ...
def hash_at(
    data: Buffer, starts: Int64, stops: Int64, seeds: UInt64 | None, into: UInt64, /
) -> None: ...
def walk(data: Buffer, /) -> tuple[bytearray, int]: ...
def lines(data: Buffer, literals: tuple[bytes, ...], folded: bool, /) -> bytearray: ...
def headed(
    data: Buffer, lines: Int64, of: Int64, heads: list[bytes], starts: Int64 | None, /
) -> bytearray: ...
def find_many(
    cells: npt.NDArray[np.void],
    htsize: int,
    htfree: int,
    htdel: int,
    s: UInt64,
    bits: UInt64,
    pointers: Int64,
    slots: Int64,
    /,
) -> int: ...

# _catalog.c
def blocks(
    data: Buffer, at: Int64, lengths: Int64, into: Int64, ends: Int64, /
) -> bytearray | None: ...
def paths(data: Buffer, ends: Int64, before: bytes, found: Int64, /) -> None: ...

# _get.c
def inodes(
    data: Buffer,
    limit: int,
    isz: int,
    pairoff: bool,
    contid: int,
    keys: list[bytes],
    pos: Int64,
    pointers: Int64,
    sizes: Int64,
    /,
) -> None: ...
def contents(
    data: Buffer,
    limit: int,
    isz: int,
    pairoff: bool,
    contid: int,
    pointers: Int64,
    sizes: Int64,
    found: list[bytes | None],
    /,
) -> None: ...
def gather(
    data: Buffer,
    at: Int64,
    pos: Int64,
    sizes: Int64,
    contid: int,
    into: Buffer,
    good: Bools,
    /,
) -> None: ...
def files(
    data: Buffer,
    limit: int,
    isz: int,
    pairoff: bool,
    contid: int,
    at: Int64,
    pos: Int64,
    names: list[str | bytes | None],
    contents: list[bytes | None] | None,
    words: list[bytes | None] | None,
    sizes: Int64,
    mtimes: Int64,
    /,
) -> None: ...
def table(
    data: Buffer,
    at: Int64,
    pos: Int64,
    pairoff: bool,
    contid: int,
    unit: int,
    numbers: Int64,
    attrs: Int64,
    ends: Int64,
    /,
) -> bytearray | None: ...
def reader(
    data: Buffer,
    limits: array[int],
    isz: int,
    pairoff: bool,
    contid: int,
    table: Buffer,
    first: int,
    htsize: int,
    htfree: int,
    htdel: int,
    sums: Buffer | None,
    overlay: dict[bytes, int],
    drafts: dict[bytes, _Draft],
    doubts: tuple[Collection[object], ...],
    data_fd: int,
    table_fd: int,
    before: int,
    filesize_at: int,
    filesize: int,
    due: int,
    decode: Callable[[bytes, int], bytes],
    /,
) -> tuple[
    Read,
    Callable[[object], bool | None],
    Callable[[object], Found | Literal[False] | None],
    ReadAt,
    Callable[[int], tuple[bytes, Found] | None],
]: ...

# _files.c
def read_files(
    directories: Int64,
    names: list[bytes],
    kinds: bytes,
    everything: bool,
    device: int,
    inode: int,
    large: int,
    sparse: int,
    buffer: bytearray | memoryview,
    /,
) -> tuple[int, bytearray]: ...
def names_in(directory: int, /) -> list[bytes] | None: ...

# _put.c
def pairs(
    files: list[tuple[_Name, bytes]], key_lengths: Int64, lengths: Int64, /
) -> tuple[list[bytes], list[bytes]] | None: ...
def encode(
    base: int,
    least: int,
    pairoff: bool,
    contid: int,
    fileids: Int64,
    mtimes: Int64,
    ftypes: Int64,
    lengths: Int64,
    keys: Sequence[Buffer],
    data: Sequence[Buffer],
    words: Sequence[Buffer] | None,
    framed: npt.NDArray[np.bool_] | None,
    apart: bool,
    positions: Int64,
    firsts: Int64,
    /,
) -> list[Buffer]: ...
def entries(
    pos: int,
    least: int,
    pairoff: bool,
    contid: int,
    fileid: int,
    mtime: int,
    ftype: int,
    key: bytes,
    data: Buffer,
    word: bytes,
    length: int,
    framed: bool,
    /,
) -> tuple[bytes, int, int]: ...
