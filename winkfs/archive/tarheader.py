"""Headers of a tar file: ustar, old GNU, star, V7, and the records of pax.

    offset  size  field       meaning
    0       100   name        ends with NUL, if it is shorter
    100     8     mode        octal digits, or base 256 (first bit set), as all numbers
    108     8     uid
    116     8     gid
    124     12    size        bytes of data behind the header, padded to 512
    136     12    mtime       seconds since the epoch
    148     8     chksum      sum of all bytes of the block, this field taken as blanks
    156     1     typeflag
    157     100   linkname
    257     8     magic       "ustar" NUL "00"; "ustar" and two blanks: old GNU
    345     155   prefix      of the name, in ustar only: old GNU has atime, ctime, offset and a map
                              of holes there, star a prefix of 131 bytes, atime and ctime

Nothing here raises for wrong bytes: a number that is none is None.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from winkfs.units import FAR_NS, NANO

BLOCK: Final = 512
ZEROS: Final = bytes(BLOCK)
END: Final = bytes(2 * BLOCK)  # of an archive
RECORD: Final = 20 * BLOCK  # to whose multiple tools fill an archive
OLD_GNU: Final = b"ustar  \0"
STAR: Final = b"tar\0"  # at the end of a header of star
STAR_PREFIX: Final = 131

FILES: Final = frozenset((b"0", b"\0", b"7"))  # b"7": contiguous
HARD_LINK, LINK, DIR, SPARSE_GNU = b"1", b"2", b"5", b"S"
DUMPDIR, LABEL, CONTINUED = b"D", b"V", b"M"  # of GNU tar: -g, -V, -M
LONG_NAME, LONG_LINK = b"L", b"K"
PAX, PAX_SOLARIS, PAX_GLOBAL = b"x", b"X", b"g"
DEVICES: Final = {b"3": "a device", b"4": "a device", b"6": "a fifo"}
FILE: Final = b"0"
FIELD: Final = 100  # bytes of a name, of the target of a link
MOST_ID: Final = 0o7777777  # uid, gid; a larger number goes into the pax header, as do these:
MOST_NUMBER: Final = 0o77777777777  # size, mtime
USTAR: Final = b"ustar\00000".ljust(255, b"\0")  # from the magic to the end
XATTR: Final = b"SCHILY.xattr."  # the start of a key of pax, before the name of an attribute
PAX_NAME: Final = b"././@PaxHeader"
EMPTY: Final = frozenset((HARD_LINK, LINK, DIR, *DEVICES))
"""Types whose size counts no data behind the header, though some tools write such."""

NUMBERS_KEPT: Final = 1024  # fields whose numbers are remembered: most members have the same
DIGITS: Final = 19  # of a number of 64 bits
NUMBER: Final = re.compile(rb"([+-]?)0*(\d*)(?:\.(\d*))?")


class Header(NamedTuple):
    """One block. Numbers that are none are None.

    full  the name fills its field: it may be the start of a longer one
    """

    name: bytes
    full: bool
    mode: int | None
    uid: int | None
    gid: int | None
    size: int | None
    mtime: int | None
    kind: bytes
    link: bytes


def is_header(block: bytes) -> bool:
    """Return whether the checksum of a block is right, with bytes signed or not."""
    written = number(block[148:156])
    if written is None or len(block) < BLOCK or block == ZEROS:
        return False
    # An Adler-32 checksum has the sum of up to 256 bytes, and 1, in its low half.
    halves = zlib.adler32(block[:256]) & 0xFFFF, zlib.adler32(block[256:]) & 0xFFFF
    found = sum(halves) - 2 - sum(block[148:156]) + 8 * 32
    if written == found:
        return True
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return written == found - 256 * high


def decode(block: bytes) -> Header:
    """Return the fields of a block, whatever its checksum is."""
    name, magic = block[:100].partition(b"\0")[0], block[257:265]
    full = len(name) == 100
    if magic[:5] == OLD_GNU[:5] and magic != OLD_GNU:
        star = block[508:] == STAR and not block[345 + STAR_PREFIX - 1]
        prefix = block[345 : 345 + STAR_PREFIX if star else 500].partition(b"\0")[0]
        if prefix:
            name = prefix + b"/" + name
    return Header(
        name, full, number(block[100:108]), number(block[108:116]), number(block[116:124]),
        number(block[124:136]), number(block[136:148]), block[156:157],
        block[157:257].partition(b"\0")[0],
    )  # fmt: skip


def encode(
    name: bytes,
    mode: int,
    uid: int,
    gid: int,
    size: int,
    mtime: int,
    kind: bytes,
    link: bytes = b"",
) -> bytes:
    """Return a block of ustar. What does not fit is cut, or 0: its pax header has it.

    mtime  seconds since the epoch
    """
    ids = (uid if uid <= MOST_ID else 0, gid if gid <= MOST_ID else 0)
    size = size if size <= MOST_NUMBER else 0
    mtime = mtime if 0 <= mtime <= MOST_NUMBER else 0
    head = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%b" % (
        name[:FIELD].ljust(FIELD, b"\0"), mode, *ids, size, mtime, kind,
        link[:FIELD].ljust(FIELD, b"\0") + USTAR,
    )  # fmt: skip
    # Below 65521 the low half of this checksum is the sum of the bytes, and 1: two full names, with
    # all else, have less.
    total = (zlib.adler32(head) & 0xFFFF) - 1
    return b"%b%06o\0 %b" % (head[:148], total, head[156:])


@lru_cache(NUMBERS_KEPT)
def number(field: bytes) -> int | None:
    """Return the number of a field: octal digits, none of them is 0; or base 256."""
    if field[:1] > b"\x7f":
        bits = 8 * len(field) - 1
        value = int.from_bytes(field, "big") & ((1 << bits) - 1)
        return value - (1 << bits) if value >> (bits - 1) else value
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:  # an 8, a 9
        return None


# --- pax ---


def pax_records(data: bytes) -> Iterator[tuple[bytes, bytes] | None]:
    """Yield key and value of each record; None, at the end, where what follows is no record."""
    at = 0
    while at < len(data) and data[at]:
        blank = data.find(b" ", at, at + DIGITS)
        digits = data[at:blank] if blank > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = data[blank + 1 : end - 1].partition(b"=")
        if not (at < end <= len(data) and data[end - 1] == 10 and key and equals):
            yield None
            return
        yield key, value
        at = end


def pax_bytes(values: dict[bytes, bytes]) -> bytes:
    """Return these as records, as `pax_records` reads them."""
    found = b""
    for key, value in values.items():
        body = b" %b=%b\n" % (key, value)
        size = len(body) + 2
        while len(b"%d" % size) + len(body) != size:
            size = len(b"%d" % size) + len(body)
        found += b"%d%b" % (size, body)
    return found


@lru_cache(256)
def _pax_head(size: int) -> bytes:
    return encode(PAX_NAME, 0o644, 0, 0, size, 0, PAX)


def pax_header(values: dict[bytes, bytes]) -> bytes:
    """Return a pax header with these records, to precede a member."""
    records = pax_bytes(values)
    return _pax_head(len(records)) + records + bytes(-len(records) % BLOCK)


def pax_time_text(ns: int) -> bytes:
    """Return nanoseconds as `pax_time` reads them."""
    whole, part = divmod(abs(ns), NANO)
    sign = b"-" if ns < 0 else b""
    return b"%b%d.%09d" % (sign, whole, part) if part else b"%b%d" % (sign, whole)


def pax_number(value: bytes) -> int | None:
    """Return a whole number; one of too many digits as the nearest of DIGITS digits."""
    found = NUMBER.fullmatch(value)
    if found is None or found[3] is not None or not value.strip(b"+-"):
        return None
    digits = found[2] if len(found[2]) <= DIGITS else b"9" * DIGITS
    return int(found[1] + (digits or b"0"))


def pax_time(value: bytes) -> int | None:
    """Return nanoseconds, rounded down; FAR_NS for more than any file has."""
    found = NUMBER.fullmatch(value)
    if found is None or not value.strip(b"+-."):
        return None
    sign, whole, part = found[1] == b"-", found[2], found[3] or b""
    if len(whole) > DIGITS:
        return -FAR_NS if sign else FAR_NS
    ns = int(whole or b"0") * NANO + int(part[:9].ljust(9, b"0"))
    return -ns - bool(part[9:].strip(b"0")) if sign else ns


# --- holes ---


def gnu_map(block: bytes, at: int, count: int) -> list[tuple[int, int]] | None:
    """Return (offset, bytes) of what is no hole, of the old GNU format: up to `count` pairs at
    `at` of a block, until one that is empty."""
    found: list[tuple[int, int]] = []
    for start in range(at, at + 24 * count, 24):
        if not block[start]:
            break
        pair = number(block[start : start + 12]), number(block[start + 12 : start + 24])
        if pair[0] is None or pair[1] is None:
            return None
        found.append((pair[0], pair[1]))
    return found


def pairs_of(numbers: list[bytes]) -> list[tuple[int, int]] | None:
    """Return the pairs of a map, given as one list of numbers; None: they are no pairs."""
    values = [int(one) if one.isdigit() and len(one) <= DIGITS else -1 for one in numbers]
    if len(values) % 2 or -1 in values:
        return None
    return list(zip(values[::2], values[1::2], strict=True))


def is_map(pairs: list[tuple[int, int]], size: int, stored: int) -> bool:
    """Return whether the parts ascend within a file of `size` bytes and have `stored` bytes."""
    end = total = 0
    for start, length in pairs:
        if not end <= start <= start + length <= size or length < 0:
            return False
        end, total = start + length, total + length
    return total == stored
