"""Uploads in parts to S3, and stores that speak its protocol. Each request is signed by itself."""

from __future__ import annotations

import base64
import errno
import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import parse_qs, quote
from xml.etree import ElementTree

import urllib3

from winkformats.disk.objects import ObjectInfo
from winkformats.disk.parts import Part
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.remote import control

XML_BYTES: Final = 4 << 20  # of an answer
USED: Final = 0.8  # of its time, for which a URL is used
SIGNED_TOGETHER: Final = 16  # URLs for parts
BEGIN: Final = "POST", "uploads="  # method and query
HEAD: Final = "HEAD", ""


class Sender(Protocol):
    """A transport that makes requests: see `RangeTransport`."""

    url: str

    def name(self, key: str) -> str: ...

    def final(
        self, method: str, url: str, key: str, body: bytes, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse: ...


class S3Parts:
    """The uploads of an object of S3, by requests that are signed one by one: a `PartStore`."""

    def __init__(self, transport: Sender, seconds: int) -> None:
        """seconds: for which URLs are signed."""
        self._transport, self._seconds = transport, seconds
        self._urls: dict[tuple[str, str], tuple[float, str]] = {}  # method, query -> until, URL
        self._lock = threading.Lock()

    def uploads(self, key: str) -> list[str]:
        page = _xml(self._ask(key, "GET", _listing(key)).data)
        return [_text(one, "UploadId") for one in page.iter("Upload") if _text(one, "Key") == key]

    def head(self, key: str) -> ObjectInfo | None:
        try:
            answer = self._ask(key, *HEAD)
        except NoSuchFile:
            return None
        size = answer.headers.get("Content-Length", "")
        return ObjectInfo(int(size) if size.isdecimal() else -1, answer.headers.get("ETag", ""))

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        found, after, more = dict[int, Part](), "0", True
        while more:
            asked = f"part-number-marker={after}&{_of(upload)}"
            page = _xml(self._ask(key, "GET", asked).data)
            for part in page.iter("Part"):
                etag = _text(part, "ETag").strip('"')
                found[int(_text(part, "PartNumber"))] = Part(int(_text(part, "Size")), etag)
            before, after = after, _text(page, "NextPartNumberMarker")
            more = _text(page, "IsTruncated") == "true" and after != before
        return found

    def begin(self, key: str) -> str:
        return _text(_xml(self._ask(key, *BEGIN).data), "UploadId")

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        headers = {"Content-MD5": base64.b64encode(md5).decode()}
        answer = self._ask(key, "PUT", _part(upload, number), data, headers)
        etag: str = answer.headers.get("ETag", "").strip('"')
        if not etag:
            raise Refusal(f"an answer to part {number} without ETag", self._transport.name(key))
        return etag

    def complete(
        self, key: str, upload: str, etags: Sequence[str], *, absent: bool, like: ObjectInfo | None
    ) -> ObjectInfo:
        listed = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        headers = {"If-None-Match": "*"} if absent else {"If-Match": like.etag} if like else {}
        if absent or like is not None:  # a store that ignores the condition is asked before
            need_unchanged(self.head(key), self._transport.name(key), like)
        page = _xml(self._ask(key, "POST", _of(upload), body, headers).data)
        made = self.head(key)
        if page.tag == "Error" or made is None:  # an error that came after the status
            what = _text(page, "Message") or "the object is not there"
            raise Refusal(what, self._transport.name(key))
        return made

    def abort(self, key: str, upload: str) -> None:
        self._ask(key, "DELETE", _of(upload))

    def _ask(
        self,
        key: str,
        method: str,
        query: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Make a request until its answer is final. Raises Refusal, NoSuchFile, NotAllowed."""
        url = self._url(key, method, query)
        answer = self._transport.final(method, url, key, body, headers or {})
        _refuse(answer, self._transport.name(key))
        return answer

    def _url(self, key: str, method: str, query: str) -> str:
        """Return the URL of a request. What will be asked for next is signed with it: in a forked
        child, that takes a process."""
        now = time.monotonic()
        with self._lock:
            until, url = self._urls.pop((method, query), (0.0, ""))
            if until < now:
                wanted = [(method, query), *_after(key, method, query)]
                asked = [[m, "" if q == _listing(key) else key, q] for m, q in wanted]
                urls = control.call("sign_each", self._transport.url, key, asked, self._seconds)
                until = now + self._seconds * USED
                self._urls.update(
                    zip(wanted, zip([until] * len(urls), urls, strict=True), strict=True)
                )
                url = urls[0]
            if method != "PUT":  # a part is sent once
                self._urls[method, query] = until, url
            return url


def _after(key: str, method: str, query: str) -> list[tuple[str, str]]:
    """Return the requests, method and query, that will follow one."""
    if query == _listing(key):
        return [BEGIN, HEAD]
    if method != "PUT":
        return []
    number, upload = int(parse_qs(query)["partNumber"][0]), parse_qs(query)["uploadId"][0]
    later = range(number + 1, number + SIGNED_TOGETHER)
    return [*(("PUT", _part(upload, n)) for n in later), ("POST", _of(upload))]


def _listing(key: str) -> str:
    return f"uploads=&prefix={quote(key, safe='')}"


def _of(upload: str) -> str:
    return f"uploadId={quote(upload, safe='')}"


def _part(upload: str, number: int) -> str:
    return f"partNumber={number}&{_of(upload)}"


def need_unchanged(found: ObjectInfo | None, name: str, like: ObjectInfo | None) -> None:
    """Raise FileExists or StalePlan if an object is not as it is to be; like None: missing."""
    if like is None and found is not None:
        raise FileExists("is there already", name)
    if like is not None and (found is None or found.etag != like.etag):
        raise StalePlan("was replaced since it was opened: open it again", name)


def _refuse(answer: urllib3.BaseHTTPResponse, name: str) -> None:
    """Raise what an answer to a request of S3 reports."""
    if answer.status < 300:
        return
    what = f"HTTP {answer.status}: {_text(_xml(answer.data), 'Message') or 'refused'}"
    if answer.status == 404:
        raise NoSuchFile(what, name)
    if answer.status in (401, 403):
        raise NotAllowed(what, name, number=errno.EACCES)
    if answer.status in (409, 412):
        raise StalePlan("was written meanwhile: try again", name)
    raise Refusal(what, name)


def _xml(data: bytes) -> ElementTree.Element:
    """Return the root of an answer without namespaces; one without children for other bytes."""
    try:
        if len(data) > XML_BYTES or b"<!" in data:  # no answer of S3 declares anything
            raise ElementTree.ParseError
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return ElementTree.Element("nothing")
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _text(element: ElementTree.Element, name: str) -> str:
    return element.findtext(name) or ""
