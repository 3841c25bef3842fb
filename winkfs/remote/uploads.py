"""Uploads in parts to S3, and stores that speak its protocol, and to Azure, by signed URLs."""

from __future__ import annotations

import base64
import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import parse_qs, quote
from xml.etree import ElementTree

import urllib3

from winkformats.disk.objects import ObjectInfo
from winkformats.disk.parts import Part, is_equal
from winkfs.errors import FileExists, NoSuchFile, NotAllowed, Refusal, StalePlan
from winkfs.remote import control

XML_BYTES: Final = 4 << 20  # of an answer
USED: Final = 0.8  # of its time, for which a URL is used
SIGNED_TOGETHER: Final = 16  # URLs for parts
BLOCKS: Final = "comp=blocklist"  # a query
After = Callable[[str, str], list[tuple[str, str]]]


class Sender(Protocol):
    """A transport that makes requests: see `RangeTransport`."""

    url: str

    def name(self, key: str) -> str: ...

    def final(
        self, method: str, url: str, key: str, body: bytes, headers: dict[str, str]
    ) -> urllib3.BaseHTTPResponse: ...


class Requests:
    """Signed requests for one object; several threads may make them.

    key    of the object
    bucket the queries of requests for its bucket
    """

    def __init__(self, transport: Sender, key: str, seconds: int, after: After) -> None:
        """
        seconds  for which URLs are signed
        after    query -> method and query of the requests that will follow: they are signed with
                 it, for in a forked child that takes a process
        """
        self.key, self._transport, self._seconds, self._after = key, transport, seconds, after
        self.name = transport.name(key)
        self.bucket = set[str]()
        self._urls: dict[tuple[str, str], tuple[float, str]] = {}  # method, query -> until, URL
        self._lock = threading.Lock()

    def ask(
        self, method: str, query: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """Make a request until its answer is final. Raises Refusal, NoSuchFile, NotAllowed,
        StalePlan."""
        url = self._url(method, query)
        answer = self._transport.final(method, url, self.key, body, headers or {})
        _refuse(answer, self.name)
        return answer

    def xml(self, method: str, query: str) -> ElementTree.Element:
        return _xml(self.ask(method, query).data)

    def head(self) -> ObjectInfo | None:
        try:
            answer = self.ask("HEAD", "")
        except NoSuchFile:
            return None
        size = answer.headers.get("Content-Length", "")
        return ObjectInfo(int(size) if size.isdecimal() else -1, answer.headers.get("ETag", ""))

    def _url(self, method: str, query: str) -> str:
        now = time.monotonic()
        with self._lock:
            until, url = self._urls.pop((method, query), (0.0, ""))
            if until < now:
                wanted = [(method, query), *self._after(method, query)]
                asked = [[m, "" if q in self.bucket else self.key, q] for m, q in wanted]
                root = self._transport.url
                urls = control.call("sign_each", root, self.key, asked, self._seconds)
                until, url = now + self._seconds * USED, urls[0]
                for request, signed in zip(wanted, urls, strict=True):
                    self._urls[request] = until, signed
            self._urls[method, query] = until, url
            return url


class S3Parts:
    """The uploads of an object of S3: a `PartStore`."""

    def __init__(self, transport: Sender, key: str, seconds: int) -> None:
        """seconds: for which URLs are signed."""
        self._listing = f"uploads=&prefix={quote(key, safe='')}"
        self._requests = Requests(transport, key, seconds, self._later)
        self._requests.bucket.add(self._listing)

    def _later(self, method: str, query: str) -> list[tuple[str, str]]:
        if query == self._listing:
            return [("POST", "uploads="), ("HEAD", "")]
        if method != "PUT":
            return []
        number, upload = int(parse_qs(query)["partNumber"][0]), parse_qs(query)["uploadId"][0]
        later = range(number + 1, number + SIGNED_TOGETHER)
        return [*(("PUT", _part(upload, n)) for n in later), ("POST", _of(upload))]

    def uploads(self, key: str) -> list[str]:
        page = self._requests.xml("GET", self._listing)
        return [_text(one, "UploadId") for one in page.iter("Upload") if _text(one, "Key") == key]

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        found, after, more = dict[int, Part](), "0", True
        while more:
            page = self._requests.xml("GET", f"part-number-marker={after}&{_of(upload)}")
            for part in page.iter("Part"):
                etag = _text(part, "ETag").strip('"')
                found[int(_text(part, "PartNumber"))] = Part(int(_text(part, "Size")), etag)
            before, after = after, _text(page, "NextPartNumberMarker")
            more = _text(page, "IsTruncated") == "true" and after != before
        return found

    def begin(self, key: str) -> str:
        return _text(self._requests.xml("POST", "uploads="), "UploadId")

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        answer = self._requests.ask("PUT", _part(upload, number), data, _md5_header(md5))
        etag: str = answer.headers.get("ETag", "").strip('"')
        if not etag:
            raise Refusal(f"an answer to part {number} without ETag", self._requests.name)
        return etag

    def complete(
        self, key: str, upload: str, etags: Sequence[str], *, absent: bool, like: ObjectInfo | None
    ) -> ObjectInfo:
        listed = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        if absent or like is not None:  # a store that ignores the condition is asked before
            need_unchanged(self._requests.head(), self._requests.name, like)
        answer = self._requests.ask("POST", _of(upload), body, _condition(absent, like))
        page, made = _xml(answer.data), self._requests.head()
        if page.tag == "Error" or made is None:  # an error that came after the status
            what = _text(page, "Message") or "the object is not there"
            raise Refusal(what, self._requests.name)
        return made

    def made(self, key: str, etags: Sequence[str], whole: ObjectInfo) -> ObjectInfo | None:
        there = self._requests.head()
        return there if is_equal(there, whole) else None

    def abort(self, key: str, upload: str) -> None:
        self._requests.ask("DELETE", _of(upload))


class AzureParts:
    """The blocks of an object of Azure: a `PartStore`. Number and MD5 are the id of a block, so
    also blocks of the object that is there need not be sent again."""

    def __init__(self, transport: Sender, key: str, seconds: int) -> None:
        """seconds: for which URLs are signed."""
        self._requests = Requests(transport, key, seconds, self._later)

    def _later(self, method: str, query: str) -> list[tuple[str, str]]:
        return [("PUT", BLOCKS), ("HEAD", "")] if method == "GET" else []

    def uploads(self, key: str) -> list[str]:
        return ["blocks"]

    def parts(self, key: str, upload: str) -> dict[int, Part]:
        try:
            page = self._requests.xml("GET", f"{BLOCKS}&blocklisttype=all")
        except NoSuchFile:
            return {}
        found = dict[int, Part]()
        for block in page.iter("Block"):
            number, _, md5 = base64.b64decode(_text(block, "Name")).decode("latin-1").partition("-")
            if number.isdecimal() and len(md5) == 32:  # others are of other programs
                found[int(number)] = Part(int(_text(block, "Size")), md5)
        return found

    def begin(self, key: str) -> str:
        return "blocks"

    def put_part(self, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        query = f"comp=block&blockid={quote(_block(number, md5.hex()), safe='')}"
        self._requests.ask("PUT", query, data, _md5_header(md5))
        return md5.hex()

    def complete(
        self, key: str, upload: str, etags: Sequence[str], *, absent: bool, like: ObjectInfo | None
    ) -> ObjectInfo:
        listed = "".join(f"<Latest>{_block(n, etag)}</Latest>" for n, etag in enumerate(etags, 1))
        body = f"<BlockList>{listed}</BlockList>".encode()
        answer = self._requests.ask("PUT", BLOCKS, body, _condition(absent, like))
        made = self._requests.head()
        if made is None or made.etag != answer.headers.get("ETag", made.etag):
            raise StalePlan("was replaced at once: try again", self._requests.name)
        return made

    def made(self, key: str, etags: Sequence[str], whole: ObjectInfo) -> ObjectInfo | None:
        page, there = (
            self._requests.xml("GET", f"{BLOCKS}&blocklisttype=all"),
            self._requests.head(),
        )
        blocks = page.find("CommittedBlocks")
        found = [] if blocks is None else [_text(one, "Name") for one in blocks.iter("Block")]
        return there if found == [_block(n, etag) for n, etag in enumerate(etags, 1)] else None

    def abort(self, key: str, upload: str) -> None:
        """Do nothing: the store removes blocks that are in no object."""


PARTS: Final[dict[str, type[S3Parts | AzureParts]]] = {"s3": S3Parts, "az": AzureParts}


def _block(number: int, md5: str) -> str:
    """Return the id of a block; all have the same length."""
    return base64.b64encode(f"{number:05}-{md5}".encode()).decode()


def _md5_header(md5: bytes) -> dict[str, str]:
    return {"Content-MD5": base64.b64encode(md5).decode()}


def _condition(absent: bool, like: ObjectInfo | None) -> dict[str, str]:
    return {"If-None-Match": "*"} if absent else {"If-Match": like.etag} if like else {}


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
    what = _text(_xml(answer.data), "Message").partition("\n")[0] or "refused"
    what = f"HTTP {answer.status}: {what}"
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
