"""Checksums of files as sha256sum and its like write them: `verify --checksum`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import winkfs
from winkfs.cli._common import (
    PIECE,
    Failures,
    Progress,
    bytes_to_read,
    emit,
    opened,
)
from winkfs.entry import Entry, FileType
from winkfs.names import shown, to_bytes, to_str

ESCAPES = (b"\\", b"\\\\"), (b"\n", b"\\n"), (b"\r", b"\\r")


def print_checksums(base: str, algorithm: str, as_json: bool, quiet: bool) -> int:
    """Print the checksum of each file -> exit status. Names are paths that `unpack` makes."""
    failures = Failures(base)
    with (
        opened(base) as reader,
        Progress("reading", "bytes", bytes_to_read(base), quiet=quiet) as bar,
    ):
        for entry in reader.scan(problem=failures.damage):
            if entry.ftype in (FileType.DIR, FileType.LINK):
                continue
            found = hashlib.new(algorithm, usedforsecurity=False)
            try:
                for data in _contents(reader, entry):
                    found.update(data)
                    bar(len(data))
            except winkfs.FormatError as error:
                failures.add(entry.name, str(error))
                continue
            path = shown(to_bytes(entry.name))
            if as_json:
                emit({"name": to_str(path), "algorithm": algorithm, "checksum": found.hexdigest()})
            else:
                sys.stdout.buffer.write(_line(found.hexdigest(), path))
    return failures.status


def _contents(reader: winkfs.Reader, entry: Entry) -> Iterator[bytes]:
    """Yield the content of a file, in pieces if it is large."""
    if entry.size <= PIECE:
        yield entry.read()
        return
    with reader.open_file(entry.name) as file:
        while data := file.read(PIECE):
            yield data


def _line(checksum: str, path: bytes) -> bytes:
    """Return a line of a list; one with an escaped name begins with a backslash."""
    escaped = path
    for char, escape in ESCAPES:
        escaped = escaped.replace(char, escape)
    return b"\\" * (escaped != path) + f"{checksum}  ".encode() + escaped + b"\n"
