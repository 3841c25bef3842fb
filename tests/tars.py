"""Bytes of tar files, good and odd ones, written by hand."""

from __future__ import annotations


def header(
    name: bytes,
    size: int | bytes = 0,
    kind: bytes = b"0",
    *,
    uid: bytes = b"0000000\0",
    gid: bytes = b"0000000\0",
    mode: bytes = b"0000644\0",
    mtime: bytes = b"00000000000\0",
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """A block of a header. prefix: the bytes from 345 on."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108], block[108:116], block[116:124] = mode, uid, gid
    block[124:136] = b"%011o\0" % size if isinstance(size, int) else size
    block[136:148], block[156:157], block[157 : 157 + len(link)] = mtime, kind, link
    block[257:265], block[345 : 345 + len(prefix)] = magic, prefix
    return summed(bytes(block))


def summed(block: bytes) -> bytes:
    """The header with its checksum."""
    rest = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % rest + block[156:]


def signed(block: bytes) -> bytes:
    """The header with the checksum of signed bytes, as some old tools write it."""
    rest = sum(byte - 256 * (byte > 127) for byte in block[:148] + block[156:]) + 8 * 32
    return block[:148] + b"%06o\0 " % rest + block[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def member(name: bytes, data: bytes = b"", kind: bytes = b"0", **options: bytes) -> bytes:
    return header(name, len(data), kind, **options) + padded(data)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """A pax header of these records."""
    found = b""
    for key, value in records:
        body = b" " + key + b"=" + value + b"\n"
        size = len(body) + 1
        while len(b"%d" % size) + len(body) != size:
            size = len(b"%d" % size) + len(body)
        found += b"%d" % size + body
    return member(b"PaxHeader", found, kind)


END = bytes(1024)
OLD_GNU = b"ustar  \0"


def around(*middle: bytes) -> bytes:
    """A whole archive: a good member, these, a good member."""
    return member(b"before", b"bb") + b"".join(middle) + member(b"after", b"aa") + END
