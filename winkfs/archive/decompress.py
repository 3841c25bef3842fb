"""A compressed stream, read forwards; of one that is cut, all that is whole is read."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from winkfs.archive.items import Ratio

INPUT: Final = 1 << 18  # bytes read at a time
OUTPUT_BYTES: Final = 1 << 16  # decompressed at a time; before damage, up to so many are lost
GZIP: Final = 16 + zlib.MAX_WBITS
COMPRESSION: Final[dict[bytes, tuple[Callable[[], Any], str, str]]] = {
    b"\x1f\x8b": (lambda: zlib.decompressobj(GZIP), "gzip", "gunzip"),
    b"BZh": (bz2.BZ2Decompressor, "bzip2", "bunzip2"),
    b"\xfd7zXZ\0": (lzma.LZMADecompressor, "xz", "unxz"),
}
"""How compressed files begin; what decompresses them, name of the kind, tool."""
DAMAGE: Final = (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError)


class Decompressed(io.RawIOBase):
    """The content of one or more concatenated compressed streams.

    file     the compressed bytes, read forwards
    magic    a key of COMPRESSION
    ratio    limit of the decompressed bytes
    cut      why it ended early; None: it did not, or not yet
    damage   why its bytes are wrong; bytes before may be wrong, too
    """

    def __init__(self, file: BinaryIO, magic: bytes, ratio: Ratio) -> None:
        self._file, self._magic, self._ratio = file, magic, ratio
        self._make, self._kind, self.tool = COMPRESSION[magic]
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
        while len(self._input) < len(self._magic) and self._fill():
            self._input = self._input.lstrip(b"\0")
        if self._input.startswith(self._magic):
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
