"""HTTP responses in archives of the web: status and decoded body.

The body is decoded as browsers do it: line ends are LF or CRLF, and an encoding that is named but
not used leaves the body as it is. A body that is shorter than its header states is an error, never
a short document.
"""

from __future__ import annotations

import io
import re
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from winkfs.archive.items import Ratio
from winkfs.errors import Refusal, need

QUOTED: Final = 40  # bytes of a wrong line that a message quotes
OUTPUT_BYTES: Final = 1 << 20  # decompressed at a time
_STATUS: Final = re.compile(rb"[A-Z]+[/\d.]*[ \t]+(\d{3})(?!\d)")
_BLANK: Final = re.compile(rb"\n\r?\n")
_HEADER: Final = re.compile(rb"\n([^\n:]+):[ \t]*([^\r\n]*)")
_FOLD: Final = re.compile(rb"\r?\n[ \t]+")
_CHUNK: Final = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*?)?(\r?\n)")
_END: Final = re.compile(rb"\r?\n")
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Undecodable(Exception):
    """The body of a response cannot be decoded; the message is the reason."""


class Bound(NamedTuple):
    """A limit of the bytes of a decoded body. `packed`: its bytes in the archive, before any of its
    encodings is undone."""

    packed: int
    ratio: Ratio

    @property
    def most(self) -> int:
        """Bytes that it may become."""
        return self.ratio.limit(self.packed)

    def check(self, unpacked: int) -> None:
        """Raise Undecodable if the limit is exceeded."""
        if unpacked > self.most:
            raise Undecodable(self.ratio.reason(self.packed))


class Response(NamedTuple):
    """A response. `headers`: names in lower case; `body`: decoded; `short`: it is shorter than its
    header states."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes
    short: bool

    @property
    def kind(self) -> str:
        """The Content-Type."""
        return self.headers.get(b"content-type", b"").decode("utf-8", "replace")


def parse(raw: bytes, *, ok: range, ratio: Ratio) -> Response:
    """Parse a response; only a body with a status in `ok` is decoded, any other is left empty.

    ratio   bound of what a body is decoded to, against its bytes here
    raises  Undecodable
    """
    raw = raw.lstrip(b"\r\n") if raw[:1] in (b"\r", b"\n") else raw
    found = _STATUS.match(raw)
    if found is None:
        raise Undecodable(f"no status line of HTTP: {quoted(raw)}")
    status, end = int(found[1]), _BLANK.search(raw)
    headers = headers_of(raw[: end.start() if end else len(raw)])
    if status not in ok:
        return Response(status, headers, b"", False)
    if end is None:
        raise Undecodable("its HTTP header does not end")
    body = raw[end.end() :]
    size = headers.get(b"content-length", b"")
    codings = _words(headers, b"transfer-encoding")
    short = size.isdigit() and len(size) < 19 and len(body) < int(size) and not codings
    bound = Bound(len(body), ratio)
    for header, name in ((b"transfer-encoding", "Transfer"), (b"content-encoding", "Content")):
        for word in reversed(_words(headers, header)):
            body = _decoded(body, word, f"{name}-Encoding", bound)
    return Response(status, headers, body, short)


def headers_of(head: bytes) -> dict[bytes, bytes]:
    """Parse the header lines after the first line -> values by names in lower case; the values of a
    repeated name are joined by commas."""
    if b"\n " in head or b"\n\t" in head:  # lines that go on
        head = _FOLD.sub(b" ", head)
    found: dict[bytes, bytes] = {}
    for name, value in _HEADER.findall(head):
        key, value = name.strip().lower(), value.strip()
        found[key] = found[key] + b", " + value if key in found else value
    return found


def quoted(raw: bytes) -> str:
    """Return the start of a wrong line, for a message."""
    line = raw[: QUOTED + 1].partition(b"\n")[0].rstrip(b"\r")
    return repr(line[:QUOTED])[1:] + ("..." if len(line) > QUOTED else "")


def _words(headers: dict[bytes, bytes], name: bytes) -> list[str]:
    if name not in headers:
        return []
    words = headers[name].decode("latin-1").lower().split(",")
    return [word for part in words if (word := part.partition(";")[0].strip(' \t"'))]


def _decoded(body: bytes, word: str, header: str, bound: Bound) -> bytes:
    decode = _DECODERS.get(word.removeprefix("x-"))
    if decode is None or not body:  # identity, none, utf-8 and other names are no encodings
        return body
    try:
        return decode(body, bound)
    except Undecodable as error:
        what = str(error)
    except (zlib.error, OSError) as error:
        if _is_text(body[:QUOTED]):  # which nothing packed is
            return body
        what = str(error).rpartition(": ")[2]
    raise Undecodable(f"{header} {word}: {what}")


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text = start[: error.start].decode()
    return all(char.isprintable() or char in "\t\r\n" for char in text)


# --- encodings ---


def _dechunked(body: bytes, _: Bound) -> bytes:
    """Join chunks. A body that does not begin with one was joined already."""
    parts: list[bytes] = []
    at = 0
    while True:
        head = _CHUNK.match(body, at)
        if head is None:
            if not at:
                return body
            what = (
                f"no chunk: {quoted(body[at:])}" if at < len(body) else "the last chunk is missing"
            )
            raise Undecodable(f"{what} (byte {at} of the body)")
        size, start = int(head[1], 16), head.end()
        if not size:
            return b"".join(parts)  # what follows are trailers
        end = _END.match(body, start + size)
        if end is None and not at and head[2] == b"\n":
            return body  # a text whose first line is a number
        if start + size > len(body):
            raise Undecodable(f"cut short: a chunk has {len(body) - start} of {size} bytes")
        if end is None and start + size < len(body):
            raise Undecodable(f"a chunk of {size} bytes does not end at byte {start + size}")
        parts.append(body[start : start + size])
        at = end.end() if end else len(body)


def _gunzipped(body: bytes, bound: Bound) -> bytes:
    parts: list[bytes] = []
    rest, size = body, 0
    while rest.startswith(_GZIP):
        unpacker = zlib.decompressobj(31)
        parts.append(_unpacked(unpacker, rest, bound, size))
        rest, size = unpacker.unused_data, size + len(parts[-1])
    return b"".join(parts) if parts else body


def _inflated(body: bytes, bound: Bound) -> bytes:
    """Unpack deflate, which comes with the header of zlib or without it."""
    zlib_header = body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _unpacked(zlib.decompressobj(15 if zlib_header else -15), body, bound)


def _unpacked(unpacker: Any, packed: bytes, bound: Bound, before: int = 0) -> bytes:
    """Unpack a stream; `before`: bytes that came of the ones before it."""
    data: bytes = unpacker.decompress(packed, min(bound.most - before + 1, sys.maxsize))
    bound.check(before + len(data))
    if not unpacker.eof:
        raise Undecodable(f"cut short after {len(packed):,} bytes")
    return data


def _by_fastwarc(name: str, body: bytes, bound: Bound) -> bytes:
    """Unpack with a reader of FastWARC. Raises OSError; Undecodable where it is missing."""
    try:
        stream_io = need("fastwarc.stream_io", "it")
    except Refusal as error:
        raise Undecodable(str(error)) from None
    reader, parts, size = getattr(stream_io, name)(io.BytesIO(body)), list[bytes](), 0
    while data := reader.read(OUTPUT_BYTES):
        parts.append(data)
        size += len(data)
        bound.check(size)
    return b"".join(parts)


def _unzstd(body: bytes, bound: Bound) -> bytes:
    return _by_fastwarc("ZstdReader", body, bound) if body.startswith(_ZSTD) else body


_DECODERS: Final[dict[str, Callable[[bytes, Bound], bytes]]] = {
    "chunked": _dechunked, "gzip": _gunzipped, "deflate": _inflated, "zstd": _unzstd,
    "br": partial(_by_fastwarc, "BrotliReader"),
}  # fmt: skip
