"""Web archives as they are in the wild: an odd record costs itself, nothing is short unnoticed.

| inputs | made by |
|---|---|
| `web/warcio-*` | warcio 1.7: WARCWriter, 1.0 and 1.1 |
| `web/case-*` | by hand: what other projects report |
| `web/wget*` | GNU Wget 1.21 `--warc-file`, from a server of raw answers on this machine |
| `web/curl-*.http` | curl 7.88 `-i --raw`: what a server sent, in a record here |
| FASTWARC | FastWARC 2: WarcRecord.write, with gzip and without, when the test runs |
| BODIES, HEADERS, LENGTHS, DATES, ARCS, DAMAGED | by hand, with zlib, brotli, zstandard |
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path

import pytest
from warcs import DATE, record, response

from winkfs.archive.items import Note
from winkfs.archive.warc import Warc
from winkfs.container.bulk import Row

HERE = Path(__file__).parent / "web"
BODY = b"<html>hello world " + b"abc " * 50 + b"</html>"
PACKED = gzip.compress(BODY, mtime=0)
TIME = 1_704_164_645_000_000_000  # of DATE
Outcome = tuple[list[tuple[bytes, bytes]], list[Note]]


@pytest.fixture(params=["FastWARC", "without"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the library, which reads a file up to the first odd record, and without it."""
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "fastwarc", None)
        monkeypatch.setitem(sys.modules, "fastwarc.warc", None)
    return str(request.param)


def read(path: Path) -> tuple[list[Row], list[Note]]:
    notes: list[Note] = []
    rows = [row for row in Warc(str(path), notes.append).items(by_mtime=False)
            if isinstance(row, Row)]  # fmt: skip
    return rows, notes


def outcome(path: Path, data: bytes) -> Outcome:
    path.write_bytes(data)
    rows, notes = read(path)
    return [(url_of(row), row.data) for row in rows], notes


def url_of(row: Row) -> bytes:
    assert row.xattrs is not None
    return row.xattrs[b"user.url"]


def raw(head: bytes, body: bytes) -> bytes:
    return record(b"response", b"http://a/x", head + body, b"application/http; msgtype=response")


def chunked(body: bytes, size: int = 100) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def deflated(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def _around(middle: bytes) -> bytes:
    return response(b"http://a/first", BODY) + middle + response(b"http://a/last", BODY)


GZ, CHUNKED = b"Content-Encoding: gzip\r\n", b"Transfer-Encoding: chunked\r\n"
LONG = bytes(range(256)) * 40
# name: header lines, body, the document; of a bad one a part of the reason
BODIES: dict[str, tuple[bytes, bytes, bytes | str]] = {
    "gzip": (GZ, PACKED, BODY),
    "x-gzip": (b"content-encoding: X-GZIP\r\n", PACKED, BODY),
    "gzip that is none": (GZ, BODY, BODY),
    "gzip that is a picture": (GZ, b"\x89PNG\r\n" + LONG, b"\x89PNG\r\n" + LONG),
    "gzip, empty": (GZ, b"", b""),
    "gzip in two members": (GZ, PACKED + PACKED, BODY + BODY),
    "gzip with zeros behind it": (GZ, PACKED + bytes(9), BODY),
    "gzip cut": (GZ, PACKED[:-20], "Content-Encoding gzip: cut short after"),
    "gzip cut in its checksum": (GZ, PACKED[:-2], "Content-Encoding gzip: cut short after"),
    "gzip cut in its header": (GZ, PACKED[:5], "Content-Encoding gzip: cut short after 5"),
    "gzip damaged": (GZ, PACKED[:-6] + b"\0\0" + PACKED[-4:], "Content-Encoding gzip: "),
    "gzip twice": (b"Content-Encoding: gzip, gzip\r\n", gzip.compress(PACKED), BODY),
    "two headers": (GZ + GZ, gzip.compress(PACKED), BODY),
    "deflate with zlib's header": (b"Content-Encoding: deflate\r\n", zlib.compress(BODY), BODY),
    "deflate without it": (b"Content-Encoding: deflate\r\n", deflated(BODY), BODY),
    "deflate cut": (b"Content-Encoding: deflate\r\n", zlib.compress(LONG)[:-9], "cut short"),
    "raw deflate cut": (b"Content-Encoding: deflate\r\n", deflated(LONG)[:-9], "cut short"),
    "deflate that is none": (b"Content-Encoding: deflate\r\n", BODY, BODY),
    "none": (b"Content-Encoding: none\r\n", BODY, BODY),
    "utf-8": (b"Content-Encoding: UTF-8\r\n", BODY, BODY),
    "identity": (b"Content-Encoding: identity\r\n", BODY, BODY),
    "nothing": (b"Content-Encoding: \r\n", BODY, BODY),
    "chunks": (CHUNKED, chunked(BODY), BODY),
    "chunks of gzip": (CHUNKED + GZ, chunked(PACKED), BODY),
    "gzip as transfer": (b"Transfer-Encoding: gzip, chunked\r\n", chunked(PACKED), BODY),
    "chunks gone": (CHUNKED, BODY, BODY),
    "chunks gone of gzip": (CHUNKED + GZ, PACKED, BODY),
    "chunks gone, numbers": (CHUNKED, b"1234\n5678\n", b"1234\n5678\n"),
    "chunk extension": (CHUNKED, b"5;a=b; c=\"d\"\r\nhello\r\n0;x\r\n\r\n", b"hello"),
    "chunk with spaces": (CHUNKED, b"5  \r\nhello\r\n0\r\n\r\n", b"hello"),
    "trailers": (CHUNKED, b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", b"hello"),
    "chunks with LF": (CHUNKED, b"5\nhello\n0\n\n", b"hello"),
    "chunk cut": (CHUNKED, chunked(BODY)[:50], "Transfer-Encoding chunked: cut short"),
    "last chunk missing": (CHUNKED, b"5\r\nhello\r\n", "the last chunk is missing"),
    "no chunk in the middle": (CHUNKED, b"5\r\nhello\r\n" + b"z" * 99, "no chunk: 'zzz"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["br", "zstd"])
def test_brotli_and_zstandard_are_decoded_or_the_record_is_bad(tmp_path: Path, name: str) -> None:
    pytest.importorskip("fastwarc")
    library = pytest.importorskip({"br": "brotli", "zstd": "zstandard"}[name])
    packed, head = library.compress(LONG), b"Content-Encoding: %s\r\n" % name.encode()
    data = b"".join([
        response(b"http://a/whole", packed, head), response(b"http://a/cut", packed[:-9], head),
        response(b"http://a/none", BODY, head), response(b"http://a/empty", b"", head),
    ])  # fmt: skip
    found, notes = outcome(tmp_path / "a.warc", data)
    assert dict(found) == {b"http://a/whole": LONG, b"http://a/none": BODY, b"http://a/empty": b""}
    assert [(note.name, note.failed) for note in notes] == [(b"http://a/cut", True)]


def test_an_encoding_with_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fastwarc", "fastwarc.warc", "fastwarc.stream_io"):
        monkeypatch.setitem(sys.modules, module, None)
    data = _around(response(b"http://a/br", b"\x1b\0", b"Content-Encoding: br\r\n"))
    found, notes = outcome(tmp_path / "a.warc", data)
    assert len(found) == 2
    assert "Content-Encoding br: it needs winkfs[pipeline]: pip install" in notes[0].what


OK = b"HTTP/1.1 200 OK\r\n"
HEADERS: dict[str, tuple[bytes, bytes | str]] = {
    "LF": (b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n" + BODY, BODY),
    "LF and gzip": (b"HTTP/1.0 200 OK\nContent-Encoding: gzip\n\n" + PACKED, BODY),
    "LF at the end of the header": (OK + b"A: b\r\n\n" + BODY, BODY),
    "CRLF, body with empty lines": (OK + b"\r\n" + b"\n\n" + BODY, b"\n\n" + BODY),
    "no header lines": (OK + b"\r\n" + BODY, BODY),
    "no reason": (b"HTTP/1.1 200\r\n\r\n" + BODY, BODY),
    "HTTP/2": (b"HTTP/2 200 \r\n\r\n" + BODY, BODY),
    "ICY": (b"ICY 200 OK\r\n\r\n" + BODY, BODY),
    "lines that go on": (OK + b"Content-Encoding:\r\n gzip\r\n\r\n" + PACKED, BODY),
    "space before the colon": (OK + b"Content-Encoding : gzip\r\n\r\n" + PACKED, BODY),
    "lines without a colon": (OK + b"nonsense\r\nContent-Encoding: gzip\r\n\r\n" + PACKED, BODY),
    "no end": (OK + b"Content-Type: text/html\r\n", "its HTTP header does not end"),
    "empty": (b"", "no status line"),
    "a body alone": (BODY, "no status line of HTTP: '<html>hello world abc abc abc abc abc ab'..."),
}  # fmt: skip
ANSWERS = {
    **{case: (response(b"http://a/x", body, head), wanted)
       for case, (head, body, wanted) in BODIES.items()},
    **{case: (raw(block, b""), wanted) for case, (block, wanted) in HEADERS.items()},
}  # fmt: skip


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_read_as_it_is_or_the_record_is_bad(
    tmp_path: Path, reader: str, case: str
) -> None:
    middle, wanted = ANSWERS[case]
    found, notes = outcome(tmp_path / "a.warc", _around(middle))
    documents = dict(found)
    assert documents.pop(b"http://a/first") == documents.pop(b"http://a/last") == BODY
    if isinstance(wanted, bytes):
        assert documents == {b"http://a/x": wanted} and not notes
    else:
        assert not documents
        assert [(note.name, note.failed) for note in notes] == [(b"http://a/x", True)]
        assert wanted in notes[0].what and len(notes[0].what) < 160


def _members(*parts: bytes) -> bytes:
    return b"".join(gzip.compress(part, mtime=0) for part in parts)


SIZE = len(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n") + len(BODY)
X = response(b"http://a/x", BODY)
LENGTHS = {
    "10 too long": b"%d" % (SIZE + 10), "beyond the end": b"%d" % (SIZE + 10_000),
    "2^62": b"%d" % (1 << 62), "10 too short": b"%d" % (SIZE - 10),
    "1 too short": b"%d" % (SIZE - 1),
    "zero": b"0", "negative": b"-5", "text": b"many", "20 digits": b"9" * 20, "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", LENGTHS)
def test_a_wrong_length_costs_one_record(
    tmp_path: Path, reader: str, case: str, packed: bool
) -> None:
    wrong = X.replace(b"Content-Length: %d" % SIZE, b"Content-Length: " + LENGTHS[case])
    parts = [response(b"http://a/first", BODY), wrong, response(b"http://a/last", BODY)]
    data = _members(*parts) if packed else b"".join(parts)
    found, notes = outcome(tmp_path / "a.warc", data)
    assert found == [(b"http://a/first", BODY), (b"http://a/last", BODY)]
    assert [(note.name, note.failed) for note in notes] == [(b"http://a/x", True)]
    assert "Content-Length" in notes[0].what


@pytest.mark.parametrize("length", [SIZE - 10, SIZE + 10])
@pytest.mark.parametrize("packed", [False, True])
def test_the_last_record_with_a_wrong_length_is_bad(
    tmp_path: Path, reader: str, packed: bool, length: int
) -> None:
    wrong = X.replace(b"Content-Length: %d" % SIZE, b"Content-Length: %d" % length)
    parts = [response(b"http://a/first", BODY), wrong]
    data = _members(*parts) if packed else b"".join(parts)
    found, notes = outcome(tmp_path / "a.warc", data)
    assert found == [(b"http://a/first", BODY)]
    assert [(note.name, note.failed) for note in notes] == [(b"http://a/x", True)]


DATES = {
    b"20240102030405": TIME, b"20240102030405678": TIME, b"2024-01-02T03:04:05Z": TIME,
    b"2024-01-02T03:04:05+00:00": TIME, b"2024-01-02T05:04:05+02:00": TIME,
    b"2024-01-02 03:04:05": TIME, b"2024-01-02T03:04:05": TIME, b"20240102T030405Z": TIME,
    b"2024-01-02T03:04:05.25Z": TIME + 250_000_000, b"2024-01-02": 1_704_153_600_000_000_000,
    b"2024": 1_704_067_200_000_000_000, b"2024-01": 1_704_067_200_000_000_000,
    b"2024-01-02T03:04:60Z": TIME + 54_000_000_000, b"Tue, 02 Jan 2024 03:04:05 GMT": TIME,
    b"": None, b"yesterday": None, b"2024-13-02T03:04:05Z": None, b"20241302030405": None,
    b"0000-00-00T00:00:00Z": None, b"0001-01-01T00:00:00+14:00": None,
}  # fmt: skip


@pytest.mark.parametrize("text", DATES)
def test_a_date_is_read_or_its_record_counted(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.warc").write_bytes(X.replace(DATE, text))
    (row,), notes = read(tmp_path / "a.warc")
    wanted = DATES[text]
    if wanted is not None:
        assert (row.mtime_ns, notes) == (wanted, [])
    else:
        assert row.mtime_ns == 0 and row.xattrs and b"user.date" not in row.xattrs
        assert [(n.name, n.failed, n.kept) for n in notes] == [(b"http://a/x", False, True)]


def test_without_a_date_the_time_is_that_of_the_http_header(tmp_path: Path) -> None:
    dated = response(b"http://a/x", BODY, b"Date: Tue, 02 Jan 2024 03:04:05 GMT\r\n")
    (tmp_path / "a.warc").write_bytes(dated.replace(b"WARC-Date: " + DATE + b"\r\n", b""))
    (row,), notes = read(tmp_path / "a.warc")
    assert row.mtime_ns == TIME and len(notes) == 1 and notes[0].kept


@pytest.mark.parametrize("packed", [False, True])
def test_documents_cut_by_the_crawler_are_kept_and_counted(tmp_path: Path, packed: bool) -> None:
    cut = X.replace(b"WARC-Type", b"WARC-Truncated: length\r\nWARC-Type")
    short = response(b"http://a/short", BODY, b"Content-Length: 9999\r\n")
    parts = response(b"http://a/parts", BODY).replace(
        b"WARC-Type", b"WARC-Segment-Number: 1\r\nWARC-Type"
    )
    data = _members(cut, short, parts) if packed else cut + short + parts
    found, notes = outcome(tmp_path / "a.warc", data)
    assert found == [(b"http://a/x", BODY), (b"http://a/short", BODY)]
    assert [(note.name, note.kept, note.failed) for note in notes] == [
        (b"http://a/x", True, False), (b"http://a/short", True, False),
        (b"http://a/parts", False, True),
    ]  # fmt: skip


MANY = [response(b"http://a/%d" % i, BODY) for i in range(4)]
ODD_RECORDS = {
    "LF in WARC headers": X[: X.index(b"HTTP")].replace(b"\r\n", b"\n") + X[X.index(b"HTTP") :],
    "lower case": X.replace(b"WARC-Target", b"warc-target").replace(b"Content-L", b"content-l"),
    "type in upper case": X.replace(b": response\r", b": RESPONSE\r"),
    "WARC/1.1": X.replace(b"WARC/1.0", b"WARC/1.1"),
    "WARC/0.18": X.replace(b"WARC/1.0", b"WARC/0.18"),
    "one line end behind it": X[:-2],
    "no line end behind it": X[:-4],
    "six line ends behind it": X + b"\r\n\r\n\r\n\r\n",
    "a header of 100,000 bytes": X.replace(b"WARC-Type", b"X: %s\r\nWARC-Type" % (b"x" * 100_000)),
    "a WARC file as the body": response(b"http://a/x", X).replace(b"%d" % (SIZE + 600), b""),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", ODD_RECORDS)
def test_odd_records_are_read(tmp_path: Path, reader: str, case: str, packed: bool) -> None:
    parts = [MANY[0], ODD_RECORDS[case], MANY[1]]
    data = _members(*parts) if packed else b"".join(parts)
    found, notes = outcome(tmp_path / "a.warc", data)
    assert [url for url, _ in found] == [b"http://a/0", b"http://a/x", b"http://a/1"]
    assert not notes


def test_rubbish_between_records_is_reported_where_it_is(tmp_path: Path, reader: str) -> None:
    data = MANY[0] + b"rubbish " * 20 + b"\r\n" + MANY[1]
    found, notes = outcome(tmp_path / "a.warc", data)
    assert [url for url, _ in found] == [b"http://a/0", b"http://a/1"]
    assert [note.name for note in notes] == [b"byte %d" % len(MANY[0])]
    assert "'rubbish rubbish rubbish rubbish rubbish '..." in notes[0].what


def test_damage_in_a_gzip_member_names_the_record_and_the_place(
    tmp_path: Path, reader: str
) -> None:
    parts = list(map(gzip.compress, MANY))
    whole = b"".join(parts)
    first = len(parts[0])
    for at in range(first + 10, first + len(parts[1]), 3):
        data = bytearray(whole)
        data[at] ^= 0xFF
        found, notes = outcome(tmp_path / "a.warc.gz", bytes(data))
        assert [url for url, _ in found] == [b"http://a/0", b"http://a/2", b"http://a/3"], at
        assert len(notes) == 1 and notes[0].failed
        assert notes[0].name in (b"http://a/1", b"byte %d" % first)
        assert "damaged at byte " in notes[0].what
        place = int(notes[0].what.split("byte ")[1].split(":")[0])
        assert first < place < len(whole) - len(parts[3])  # where it shows


def test_any_byte_that_is_zero_loses_no_other_record(tmp_path: Path, reader: str) -> None:
    """In a plain file, too: and what is stored is never wrong in silence."""
    whole = b"".join(MANY)
    starts = range(len(MANY[0]), len(MANY[0]) + len(MANY[1]) - len(BODY) - 4, 5)
    for at in starts:
        data = whole[:at] + b"\0" + whole[at + 1 :]
        found, notes = outcome(tmp_path / "a.warc", data)
        urls = [url for url, _ in found]
        assert {b"http://a/0", b"http://a/2", b"http://a/3"} <= set(urls), at
        assert len(urls) == 4 or notes, at
        assert all(body == BODY for _, body in found), at


def test_joined_and_nested_gzip_members_are_read(tmp_path: Path, reader: str) -> None:
    whole = b"".join(MANY)
    two = _members(MANY[0] + MANY[1], MANY[2] + MANY[3])
    pieces = _members(*(whole[i : i + 200] for i in range(0, len(whole), 200)))
    mixed = _members(MANY[0], MANY[1] + MANY[2], MANY[3])
    for data in (gzip.compress(whole), two, pieces, mixed, _members(*MANY) + bytes(512)):
        found, notes = outcome(tmp_path / "a.warc.gz", data)
        assert [url for url, _ in found] == [b"http://a/%d" % i for i in range(4)]
        assert not notes


def test_what_comes_before_damage_in_one_large_member_is_kept(tmp_path: Path, reader: str) -> None:
    data = bytearray(gzip.compress(b"".join(
        response(b"http://a/%d" % i, bytes([i]) + LONG) for i in range(50)
    )))  # fmt: skip
    at = len(data) // 2
    data[at : at + 4] = b"\xff" * 4
    found, notes = outcome(tmp_path / "a.warc.gz", bytes(data))
    assert 10 < len(found) < 40
    assert all(body == bytes([i]) + LONG for i, (_, body) in enumerate(found))
    assert len(notes) == 1 and notes[0].failed and "damaged at byte" in notes[0].what


# --- other kinds of record, and of file ---


def test_what_a_tool_wrote_is_read(reader: str) -> None:
    rows, notes = read(HERE / "warcio-encodings.warc.gz")
    assert [row.data for row in rows] == [BODY] * 8 and not notes
    for name in ("wget.warc.gz", "wget-plain.warc"):
        rows, notes = read(HERE / name)
        assert [row.data for row in rows[:4]] == [BODY] * 4
        assert url_of(rows[3]) == b"http://127.0.0.1:8765/d/x?q=a/b"
        assert sorted(note.what for note in notes) == [
            "HTTP status 404", "a record of type metadata"
        ]  # fmt: skip


def test_what_curl_received_is_decoded(tmp_path: Path, reader: str) -> None:
    for name in ("ext", "chunked"):
        block = (HERE / f"curl-{name}.http").read_bytes()
        found, notes = outcome(tmp_path / "a.warc", _around(raw(block, b"")))
        assert dict(found)[b"http://a/x"] == BODY and not notes
    block = (HERE / "curl-cutgz.http").read_bytes()
    found, notes = outcome(tmp_path / "a.warc", _around(raw(block, b"")))
    assert len(found) == 2 and "Content-Encoding gzip: cut short" in notes[0].what


def test_records_of_other_types_are_read_or_counted(reader: str) -> None:
    rows, notes = read(HERE / "warcio-types.warc.gz")
    assert [(url_of(row), len(row.data), row.mtime_ns) for row in rows] == [
        (b"http://a.example/r", 225, TIME + 678_901_000),
        (b"http://a.example/picture.png", 4, TIME + 678_901_000),
        (b"http://a.example/r.txt", 5, TIME + 678_901_000),
    ]
    assert rows[1].xattrs and rows[1].xattrs[b"user.content_type"] == b"image/png"
    assert [(note.what, note.failed) for note in notes] == [
        ("a record of type revisit", False), ("a record of type metadata", False)
    ]  # fmt: skip


def test_a_file_without_a_document_gives_a_line(reader: str) -> None:
    rows, notes = read(HERE / "warcio-requests.warc")
    assert not rows and [note.failed for note in notes] == [False]
    assert notes[0].what == "no response in it: its records are 1 warcinfo, 2 request"


@pytest.mark.parametrize("packed", [False, True])
def test_what_fastwarc_writes_is_read(tmp_path: Path, packed: bool) -> None:
    fastwarc = pytest.importorskip("fastwarc.warc")
    from fastwarc.stream_io import GzipWriter

    target = io.BytesIO()
    for i in range(3):
        made = fastwarc.WarcRecord()
        made.init_headers(fastwarc.WarcRecordType.response)
        made.headers.append("WARC-Target-URI", f"http://a/{i}")
        made.headers.append("Content-Type", "application/http; msgtype=response")
        made.headers.set("WARC-Date", DATE.decode())
        made.set_bytes_content(OK + CHUNKED + b"\r\n" + chunked(BODY))
        made.write(GzipWriter(target) if packed else target)
    found, notes = outcome(tmp_path / "a.warc", target.getvalue())
    assert found == [(b"http://a/%d" % i, BODY) for i in range(3)] and not notes


# --- ARC ---

VERSION = b"1 0 Crawler\nURL IP-address Archive-date Content-type Archive-length\n"
FILE = b"filedesc://x.arc 0.0.0.0 20240102030405 text/plain %d\n%s\n" % (len(VERSION), VERSION)


def arc(url: bytes, block: bytes, length: int | None = None, between: bytes = b"") -> bytes:
    size = len(block) if length is None else length
    line = b"%s 1.2.3.4 20240102030405 text/html %s%d\n" % (url, between, size)
    return line + block + b"\n"


PAGE = OK + b"\r\n" + BODY
ARCS = {
    "version 1": (b"", None), "version 2": (b"200 - - 0 x.arc ", None),
    "too long": (b"", len(PAGE) + 30), "too short": (b"", len(PAGE) - 7),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", ARCS)
def test_arc_files_are_read(tmp_path: Path, case: str, packed: bool) -> None:
    between, length = ARCS[case]
    parts = [
        FILE, arc(b"http://a/1", PAGE, between=between), arc(b"http://a/x", PAGE, length, between),
        arc(b"http://a/2", PAGE, between=between), arc(b"dns:a", b"1.2.3.4"),
    ]  # fmt: skip
    data = _members(*parts) if packed else b"".join(parts)
    path = tmp_path / "some"
    found, notes = outcome(path, data)
    wanted = [b"http://a/1", b"http://a/x", b"http://a/2"]
    assert found == [(u, BODY) for u in wanted if u != b"http://a/x" or length is None]
    assert [note.what for note in notes if not note.failed] == ["not fetched by HTTP"]
    assert [note.name for note in notes if note.failed] == [b"http://a/x"] * (length is not None)
    rows, _ = read(path)
    assert all(row.mtime_ns == TIME for row in rows)


@pytest.mark.parametrize("packed", [False, True])
def test_arc_files_are_known_by_their_first_bytes(tmp_path: Path, packed: bool) -> None:
    pytest.importorskip("pyarrow")
    from winkfs.spark.jobs.units import kind_of

    (tmp_path / "some").write_bytes(gzip.compress(FILE) if packed else FILE)
    assert kind_of(str(tmp_path / "some")) == "warc"


# --- cases from reports of other projects ---

CASES = {
    "content-encodings": (7, 225), "dechunked-body": (3, 225), "http-lf-header": (3, 225),
    "names-on-a-mount": (3, 225), "wet": (2, 12), "resource": (2, 225),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_case_gives_all_its_documents(reader: str, case: str) -> None:
    rows, notes = read(HERE / f"case-{case}.warc")
    number, size = CASES[case]
    assert [len(row.data) for row in rows] == [size] * number and not notes
    assert len({row.name for row in rows}) == number
