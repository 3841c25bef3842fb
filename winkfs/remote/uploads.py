"""Uploads in parts to S3, and stores that speak its protocol. Each request is signed by itself."""

from __future__ import annotations

import base64
import errno
import threading
from collections.abc import Sequence
from typing import Final, Protocol
from urllib.parse import quote
from xml.etree import ElementTree

import urllib3

from winkformats.disk.objects import ObjectInfo
from winkformats.disk.parts import Part
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.remote import control

XML_BYTES: Final = 4 << 20  # of an answer
SIGNED_TOGETHER: Final = 16  # URLs for parts


class Sender(Protocol):
    """A transport that makes requests: see `RangeTransport`."""

    url: str

    def name(self, key: str) -> str: ...

    def head(self, key: str) -> ObjectInfo | None: ...

    def final(
        self, method: str, url: str, key: str, body: bytes, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse: ...


class S3Parts:
    """The uploads of a bucket of S3, by requests that are signed one by one: a `PartStore`."""

    def __init__(self, transport: Sender, seconds: int) -> None:
        """seconds: for which URLs are signed."""
        self._transport, self.head, self._seconds = transport, transport.head, seconds
        self._signed: dict[tuple[str, int], str] = {}  # upload and number -> URL
        self._lock = threading.Lock()

    def uploads(self, key: str) -> list[str]:
        text = self._ask("GET", "", f"uploads=&prefix={quote(key, safe='')}", about=key).data
        return [
            _text(upload, "UploadId")
            for upload in _xml(text).iter("Upload")
            if _text(upload, "Key") == key
        ]

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        found, after, more = dict[int, Part](), "0", True
        while more:
            asked = f"part-number-marker={after}&uploadId={quote(upload, safe='')}"
            page = _xml(self._ask("GET", key, asked).data)
            for part in page.iter("Part"):
                etag = _text(part, "ETag").strip('"')
                found[int(_text(part, "PartNumber"))] = Part(int(_text(part, "Size")), etag)
            before, after = after, _text(page, "NextPartNumberMarker")
            more = _text(page, "IsTruncated") == "true" and after != before
        return found

    def begin(self, key: str) -> str:
        return _text(_xml(self._ask("POST", key, "uploads=").data), "UploadId")

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        headers = {"Content-MD5": base64.b64encode(md5).decode()}
        url = self._part_url(key, upload, number)
        answer = self._ask("PUT", key, url=url, body=data, headers=headers)
        etag: str = answer.headers.get("ETag", "").strip('"')
        if not etag:
            raise Refusal(f"an answer to part {number} without ETag", self._transport.name(key))
        return etag

    def _part_url(self, key: str, upload: str, number: int) -> str:
        """Return the URL for a part; those of the next are signed with it."""
        with self._lock:
            if (upload, number) not in self._signed:
                numbers = range(number, number + SIGNED_TOGETHER)
                asked = [
                    ["PUT", f"partNumber={n}&uploadId={quote(upload, safe='')}"] for n in numbers
                ]
                urls = control.call("sign_each", self._transport.url, key, asked, self._seconds)
                self._signed = {(upload, n): url for n, url in zip(numbers, urls, strict=True)}
            return self._signed[upload, number]

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
        asked = f"uploadId={quote(upload, safe='')}"
        page = _xml(self._ask("POST", key, asked, body=body, headers=headers).data)
        made = self.head(key)
        if page.tag == "Error" or made is None:  # an error that came after the status
            what = _text(page, "Message") or "the object is not there"
            raise Refusal(what, self._transport.name(key))
        return made

    def abort(self, key: str, upload: str) -> None:
        self._ask("DELETE", key, f"uploadId={quote(upload, safe='')}")

    def _ask(
        self,
        method: str,
        key: str,
        asked: str = "",
        *,
        url: str = "",
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        about: str = "",
    ) -> urllib3.BaseHTTPResponse:
        """Make a request that is signed, until its answer is final. key: "" is the bucket."""
        there, transport = key or about, self._transport
        if not url:
            (url,) = control.call("sign_each", transport.url, key, [[method, asked]], self._seconds)
        answer = transport.final(method, url, there, body, headers or {})
        _refuse(answer, transport.name(there))
        return answer


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
