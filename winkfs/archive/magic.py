"""Magic: which kind of file it is, by its first bytes, and what packs it."""

from __future__ import annotations

import io
from typing import IO, Any, Final

HEAD_BYTES: Final = 512  # of a file, by which nearly all kinds are recognised
ISO_AT: Final = 0x8001  # offset of the mark of an ISO 9660 image
ISO: Final = b"CD001"
BSDTAR: Final = "bsdtar -cf - --format=pax @FILE | winkfs pack - BASE"
INGEST: Final = "winkfs pipeline ingest FILE DATASET"
PARQUET: Final = f"write it as Parquet, then {INGEST}"
READABLE: Final = {
    b"PK\3\4": ("zip", "a zip file"),
    b"PK\5\6": ("zip", "an empty zip file"),
    b"PK\7\x08": ("zip", "a zip file"),
    b"hsqs": ("squashfs", "a SquashFS image"),
    b"SQLite format 3\0": ("sqlar", "an SQLite file"),
}
"""The first bytes of files that are read at many places; module in this package that reads them."""
OTHERS: Final = {
    b"\x04\x22\x4d\x18": "an lz4 file: lz4 -dc FILE | winkfs pack - BASE",
    b"LZIP": "an lzip file: lzip -dc FILE | winkfs pack - BASE",
    b"\x1f\x9d": "a compress file: zcat FILE | winkfs pack - BASE",
    b"7z\xbc\xaf\x27\x1c": f"a 7z file: {BSDTAR}",
    b"Rar!": f"a rar file: {BSDTAR}",
    b"xar!": f"a xar file: {BSDTAR}",
    b"MSCF": f"a cabinet file: {BSDTAR}",
    b"!<arch>\n": f"an ar file: {BSDTAR}",
    b"\xed\xab\xee\xdb": f"an rpm file: {BSDTAR}",
    b"0707": f"a cpio file: {BSDTAR}",
    b"\xc7\x71": f"a cpio file: {BSDTAR}",
    b"\x71\xc7": f"a cpio file: {BSDTAR}",
    b"WARC/": f"a WARC file: {INGEST}",
    b"PAR1": f"a Parquet file: {INGEST}",
    b"ARROW1": f"an Arrow file: {PARQUET}",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file: write what is in it as files or Parquet, and pack that",
    b"SEQ\6": f"a SequenceFile of Hadoop: {PARQUET}",
    b"Obj\1": f"an Avro file: {PARQUET}",
    b"#!WINKME": "a file of a container: winkfs dataset add joins containers",
}
"""The first bytes of files that are not read, and what to do with them."""
PUT: Final = "winkfs put BASE NAME FILE stores a single file"


def reader_of(start: bytes) -> str | None:
    """Return the module that reads such a file, which has to be seekable; None: no module does."""
    for magic, (module, _) in READABLE.items():
        if start.startswith(magic):
            return module
    return None


def kind_of_start(start: bytes) -> str | None:
    """Return the kind of a file that is no stream of tar, and what to do; None: not known.

    start   its first bytes, at least HEAD_BYTES unless it is shorter
    """
    for magic, (_, kind) in READABLE.items():
        if start.startswith(magic):
            return f"{kind}, which is read at many places: winkfs pack FILE BASE, not from a pipe"
    for magic, what in OTHERS.items():
        if start.startswith(magic):
            return what
    if start[ISO_AT : ISO_AT + len(ISO)] == ISO:
        return f"an ISO 9660 image: {BSDTAR}"
    return None


def is_text(start: bytes) -> bool:
    """Return whether a file that begins so is text in UTF-8."""
    try:
        start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # else a letter that is cut
            return False
    return bool(start) and not any(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in start)


def beginning(file: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """Return the first bytes of a file, and a file that begins with them.

    cost    waits for HEAD_BYTES, and of zeros, as images begin with, for those up to their mark
    """
    at = file.tell() if file.seekable() else None
    start = file.read(HEAD_BYTES)
    if len(start) == HEAD_BYTES and not any(start):
        start += file.read(ISO_AT + len(ISO) - HEAD_BYTES)
    if at is None:
        return start, io.BufferedReader(_Continued(start, file))
    file.seek(at)
    return start, file


class _Continued(io.RawIOBase):
    """A stream of which the first bytes have been read."""

    def __init__(self, start: bytes, file: IO[bytes]) -> None:
        self._start, self._file = start, file

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        data = self._start[: len(into)] or self._file.read1(len(into))  # type: ignore[attr-defined]
        self._start = self._start[len(data) :]
        into[: len(data)] = data
        return len(data)
