"""Compressed content: zstd frames in data entries, and the record of level and dictionary.

With bit 32 of INCOMPAT, a container may have frames. An extent with bit 62 of its skip set
(`inode.FRAME`) then belongs to an entry whose value is one frame: skip and size count bytes of its
decompressed content, and so does LSIZE. A frame records the size of that content, 1 MiB at most,
and the ID of the dictionary that it was made with, 0 for none. Compression does not change the
FTYPE of a file.

The value of the entry "compress/Z0" whose position is the variable COMPRESS of BASE.data:

    offset  size    type  field    meaning
    0       8       q     codec    1: zstd
    8       8       q     level    new content is compressed so, 1 to 22; 0: not at all
    16      8       q     tried    1: whether a dictionary pays has been tried; 0: not yet
    24      8       q     dictid   ID of the dictionary, 0: none
    32      8       q     dsize    bytes of the dictionary, 0: none
    40      dsize         dict     the dictionary, as zstd has it

Big-endian. A later entry of that key supersedes it; it has the dictionary of the one before it, if
that had one. So there is one dictionary, and a frame with the ID of another is damaged.
"""

from __future__ import annotations

import errno
import struct
from typing import Any, Final, NamedTuple, Self

from winkformats.errors import CorruptError
from winkfs.errors import Refusal, advice
from winkfs.units import shown

COMPRESSED: Final = 32  # bit of INCOMPAT
COMPRESS: Final = "COMPRESS"
KEY: Final = b"compress/Z0"
HEAD: Final = struct.Struct(">5q")
assert HEAD.size == 40
ZSTD: Final = 1  # codec
FRAME_CONTENT_BYTES: Final = 256 << 10  # in a frame of a writer: any read decompresses a whole one
MAX_FRAME_CONTENT: Final = 1 << 20  # bytes of content that a frame can have
MIN_FRAME_ENTRY: Final = 32  # bytes of an entry with a frame
LARGEST_DICTIONARY: Final = 16 << 20
LEVEL: Final = 9
LEVELS: Final = range(1, 23)
NONE: Final = "none"


class Compression(NamedTuple):
    """The compression of new content.

    level       0: it is stored as it is
    tried       whether a dictionary was tried
    dictionary  b"": none
    """

    level: int
    tried: bool = False
    dictid: int = 0
    dictionary: bytes = b""

    def encode(self) -> bytes:
        size = len(self.dictionary)
        head = HEAD.pack(ZSTD, self.level, self.tried, self.dictid, size)
        return head + self.dictionary

    @classmethod
    def decode(cls, value: bytes, *, file: str, offset: int) -> Self:
        """Decode the value of the entry. Raises CorruptError."""
        if len(value) < HEAD.size:
            raise CorruptError("what content is compressed with, cut short", file=file,
                               offset=offset, found=len(value))  # fmt: skip
        codec, level, tried, dictid, size = HEAD.unpack_from(value)
        right = codec == ZSTD and (level == 0 or level in LEVELS) and tried in (0, 1)
        right = right and 0 <= size <= LARGEST_DICTIONARY and len(value) == HEAD.size + size
        if not right or (dictid > 0) != (size > 0):
            what = f"codec {codec}, level {level}, tried {tried}, ID {dictid}, {size} bytes"
            raise CorruptError("what content is compressed with", file=file, offset=offset,
                               found=what)  # fmt: skip
        return cls(level, tried == 1, dictid, value[HEAD.size :])


def level_of(text: str) -> int:
    """Return the level of `zstd` or `zstd:LEVEL`, 0 of `none`. Raises ValueError; TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"compress is a text such as 'zstd:3', not {shown(text)}")
    codec, colon, level = text.partition(":")
    if text == NONE:
        return 0
    if codec != "zstd" or (colon and not level.isascii()):
        raise ValueError(f"content is compressed with zstd, zstd:LEVEL or none, not {text!r}")
    if not colon:
        return LEVEL
    if not level.isdigit() or int(level) not in LEVELS:
        raise ValueError(f"the level of zstd is 1 to {LEVELS[-1]}, not {level!r}")
    return int(level)


def word_of(level: int) -> str:
    """Return the option for a level: the inverse of `level_of`; "" for 0."""
    return f"zstd:{level}" if level else ""


def level_for(compress: str | None, base: str, *, classic: bool) -> int:
    """Return the level at which a new container compresses, 0: not at all.

    raises  ValueError; Refusal if the library is missing
    """
    level = level_of(NONE if compress is None else compress)
    if level and classic:
        raise ValueError("a classic container cannot have compressed content")
    if level:
        zstd(base)
    return level


def zstd(file: str) -> Any:
    """Return the library. Raises Refusal EOPNOTSUPP that names `file` if it is not installed."""
    try:
        import zstandard
    except ImportError:
        what = f"compressed content {advice('zstandard')}"
        raise Refusal(what, file, number=errno.EOPNOTSUPP) from None
    return zstandard
