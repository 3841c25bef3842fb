"""A compressed stream, read forwards; of one that is cut, all that is whole is read."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import sys
import zlib
from collections.abc import Callable
from typing import IO, Any, Final, NamedTuple

from winkfs.archive.items import Ratio
from winkfs.errors import need

INPUT: Final = 1 << 18  # bytes read at a time
OUTPUT_BYTES: Final = 1 << 16  # decompressed at a time; before damage, up to so many are lost
GZIP: Final = 16 + zlib.MAX_WBITS
ZSTD: Final = b"\x28\xb5\x2f\xfd"
ZSTD_INPUT: Final = 1 << 11  # bytes decompressed at a time, which become 64 MiB at most


class Compression(NamedTuple):
    """A way to compress.

    begins  first bytes of a stream, as a regular expression
    make    returns what decompresses one: as `bz2.BZ2Decompressor`, or zlib's
    kind    its name
    tool    the program that decompresses
    """

    begins: re.Pattern[bytes]
    make: Callable[[], Any]
    kind: str
    tool: str


def _zstd() -> Any:
    """Return what decompresses zstd. Raises Refusal if there is nothing."""
    if sys.version_info >= (3, 14):
        from compression.zstd import ZstdDecompressor

        return ZstdDecompressor()
    return _Zstd(need("zstandard", "a zstd file (zstd -dc FILE | winkfs pack - BASE does without)"))


COMPRESSIONS: Final = (
    Compression(re.compile(rb"\x1f\x8b"), lambda: zlib.decompressobj(GZIP), "gzip", "gunzip"),
    Compression(re.compile(b"BZh"), bz2.BZ2Decompressor, "bzip2", "bunzip2"),
    Compression(re.compile(rb"\xfd7zXZ\0"), lzma.LZMADecompressor, "xz", "unxz"),
    # A frame to be skipped may come before: pzstd writes one.
    Compression(re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), _zstd, "zstd", "unzstd"),
)
MAGIC_BYTES: Final = 6  # at most


def compression_of(start: bytes) -> Compression | None:
    """Return how a file that begins so is compressed; None: it is not."""
    return next((one for one in COMPRESSIONS if one.begins.match(start)), None)


class _Zstd:
    """A frame, decompressed by the package zstandard, as `bz2.BZ2Decompressor` does it."""

    def __init__(self, library: Any) -> None:
        self._state = library.ZstdDecompressor().decompressobj()
        self._error = library.ZstdError
        self._input = self._output = memoryview(b"")
        self.eof, self.unused_data = False, b""

    @property
    def needs_input(self) -> bool:
        return not (self._input or self._output)

    def decompress(self, data: bytes, most: int) -> bytes:
        """Return at most so many bytes. Raises ValueError for damage."""
        self._input = memoryview(bytes(self._input) + data) if data else self._input
        while not self._output and self._input and not self._state.eof:
            try:
                self._output = memoryview(self._state.decompress(self._input[:ZSTD_INPUT]))
            except self._error as error:
                raise ValueError(str(error)) from None
            rest = self._input[ZSTD_INPUT:]
            self._input = memoryview(self._state.unused_data + rest) if self._state.eof else rest
        found, self._output = bytes(self._output[:most]), self._output[most:]
        if self._state.eof and not self._output:
            self.eof, self.unused_data = True, bytes(self._input)
        return found


DAMAGE: Final = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)


class Decompressed(io.RawIOBase):
    """The content of one or more concatenated compressed streams.

    file     the compressed bytes, read forwards
    compression  how they are compressed
    ratio    limit of the decompressed bytes
    cut      why it ended early; None: it did not, or not yet
    damage   why its bytes are wrong; bytes before may be wrong, too
    """

    def __init__(self, file: IO[bytes], compression: Compression, ratio: Ratio) -> None:
        self._file, self._ratio = file, ratio
        self._begins, self._make, self._kind, self.tool = compression
        self._state: Any = self._make()
        self._input = b""
        self._full = False  # there may be more without any input
        self._read = self._made = 0
        self.cut: str | None = None
        self.damage: str | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        size = min(len(into), OUTPUT_BYTES)
        while self.cut is None and self.damage is None:
            if not self._ready():
                break
            data = self._step(size)
            if data:
                into[: len(data)] = data
                return len(data)
        return 0

    def _ready(self) -> bool:
        """Return whether there is something to decompress; else this is the end, or the cut."""
        if self._state is None:
            return self._next_stream()
        if not (self._input or self._full or self._fill()):
            self.cut = f"the {self._kind} data are cut after {self._read:,} bytes"
            return False
        return True

    def _fill(self) -> bool:
        more = self._file.read(INPUT)
        self._read += len(more)
        self._input += more
        return bool(more)

    def _next_stream(self) -> bool:
        """Begin the next stream, where there is one behind padding."""
        self._input = self._input.lstrip(b"\0")
        while len(self._input) < MAGIC_BYTES and self._fill():
            self._input = self._input.lstrip(b"\0")
        if self._begins.match(self._input):
            self._state = self._make()
            return True
        if self._input:
            self.cut = f"behind the {self._kind} data are bytes that are none: not read"
        return False

    def _step(self, size: int) -> bytes:
        state = self._state
        try:
            data: bytes = state.decompress(self._input, size)
        except DAMAGE as error:
            self.damage = f"damaged {self._kind} data before byte {self._read:,}: {error}"
            return b""
        self._made += len(data)
        if state.eof:
            self._input, self._full, self._state = state.unused_data, False, None
        else:
            self._input = getattr(state, "unconsumed_tail", b"")
            self._full = len(data) == size or not getattr(state, "needs_input", True)
        if self._ratio.is_exceeded(self._made, self.read_bytes):
            self.cut = self._ratio.reason(self.read_bytes)
            return b""
        return data

    @property
    def read_bytes(self) -> int:
        """Bytes of the file that were decompressed."""
        return self._read - len(self._input)
