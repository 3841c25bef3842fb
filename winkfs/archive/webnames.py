"""Names of web documents, by which a site is browsed: `host/path?query`.

    http://A.Example:80/d/x?q=a/b   a.example/d/x?q=a%2Fb
    https://a.example:8443/d/       a.example:8443/d/index.html
    ftp://a.example/x               ftp:/a.example/x

The host is in lower case, with its port if that is not the default; userinfo is left out. Empty
parts of a path are left out, `.` and `..` become %2E and %2E%2E, and control characters are
escaped as in URLs. A part has at most 255 bytes: a longer one is cut, and ~ and the XXH3 of the
whole part appended. Of captures of one URL the newest has this name; to that of older ones, `@` and
the 14 digits of their time are appended. Of URLs that would share a name, all but the first in byte
order get ~ and the XXH3 of the URL, before the time.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import xxhash

from winkfs.container.ondisk.typed import EPOCH
from winkfs.names import MAX_COMPONENT

INDEX: Final = b"index.html"  # appended to a URL that ends with a /
MAX_BYTES: Final = 3500  # of a name, after which the rest becomes one part
_URL: Final = re.compile(
    rb"([A-Za-z][A-Za-z0-9+.-]*):(?://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/?#:]*)(?::(\d*))?)?", re.DOTALL
)
_PORTS: Final = {b"http": b"80", b"https": b"443", b"ftp": b"21"}
_WEB: Final = (b"http", b"https")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")
_DERIVED: Final = re.compile(rb"(?:@\d{14}|~[0-9a-f]{16})\Z")


class Place(NamedTuple):
    """A document among others. `url`: normalized, so that it identifies the document; `name`: its
    name if no other document has it."""

    url: bytes
    name: bytes


def place_of(url: bytes) -> Place:
    """Return normalized URL and name of a document."""
    found = _URL.match(url)
    scheme = found[1].lower() if found else b""
    if found is None or found[2] is None:
        same, parts = url, [url]
    else:
        host, port = found[2].lower(), found[3] or b""
        if port and port != _PORTS.get(scheme):
            host += b":" + port
        path, mark, query = url[found.end() :].partition(b"?")
        same = scheme + b"://" + host + (path or b"/") + mark + query
        host = _safe(host)
        parts = [host] if scheme in _WEB else [scheme + b":", host]
        parts += [_safe(part) for part in path.split(b"/")]
        last = parts.pop() if len(parts) > 1 and path else b""
        parts.append((last or INDEX) + (mark + query).replace(b"/", b"%2F"))
    parts = [_CONTROL.sub(_escaped, part.replace(b"/", b"%2F")) for part in parts if part]
    name = _joined(parts)
    taken = len(parts[-1]) <= MAX_COMPONENT and _DERIVED.search(name) if parts else None
    return Place(same, apart(name, same) if taken else name)


def apart(name: bytes, url: bytes) -> bytes:
    """Return the name of a document if another has its `name`. `url`: as in Place."""
    return _with(name, b"~" + _hash(url))


def at_time(name: bytes, when: int | None, mark: int | None = None) -> bytes:
    """Return the name of an older capture.

    when    microseconds since 1970; None: not known
    mark    XXH3 of its content, if another capture of that second has the name
    """
    digits = b"0" * 14
    if when is not None:
        digits = (
            b"%04d%02d%02d%02d%02d%02d" % (EPOCH + timedelta(microseconds=when)).timetuple()[:6]
        )
    return _with(name, b"@" + digits + (b"" if mark is None else b"~%016x" % mark))


def microseconds(moment: datetime | None) -> int | None:
    """Return a time as microseconds since 1970, None for None."""
    return None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)


def _joined(parts: list[bytes]) -> bytes:
    name = b""
    for i, part in enumerate(parts):
        if len(name) > MAX_BYTES:
            return name + b"/" + _cut(b"%2F".join(parts[i:]), MAX_COMPONENT)
        name += (b"/" if name else b"") + _cut(part, MAX_COMPONENT)
    return name or INDEX


def _safe(part: bytes) -> bytes:
    return part.replace(b".", b"%2E") if part in (b".", b"..") else part


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]


def _with(name: bytes, suffix: bytes) -> bytes:
    folder, slash, part = name.rpartition(b"/")
    return folder + slash + _cut(part, MAX_COMPONENT - len(suffix)) + suffix


def _cut(part: bytes, room: int) -> bytes:
    if len(part) <= room:
        return part
    start = room - 17
    while start > room - 20 and part[start] & 0xC0 == 0x80:  # within a character of UTF-8
        start -= 1
    return part[:start] + b"~" + _hash(part)


def _hash(data: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(data).encode()
