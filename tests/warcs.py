"""WARC records, made by hand: shares no code with the library that reads them."""

from __future__ import annotations

DATE = b"2024-01-02T03:04:05Z"


def record(kind: bytes, url: bytes, block: bytes, content_type: bytes = b"text/plain") -> bytes:
    """A record of WARC 1.0."""
    head = [b"WARC/1.0", b"WARC-Type: " + kind, b"WARC-Date: " + DATE]
    head += [b"WARC-Target-URI: " + url] if url else []
    head += [b"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-000000000000>"]
    head += [b"Content-Type: " + content_type, b"Content-Length: %d" % len(block)]
    return b"\r\n".join(head) + b"\r\n\r\n" + block + b"\r\n\r\n"


def response(url: bytes, body: bytes, headers: bytes = b"", status: bytes = b"200 OK") -> bytes:
    """What a server answered. headers: further lines of HTTP, each with its end."""
    http = b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\n" + headers + b"\r\n" + body
    return record(b"response", url, http, b"application/http; msgtype=response")
