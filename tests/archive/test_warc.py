"""WARC files: every page comes out, and what is damaged is noted while the rest goes on."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path

import pytest
from warcs import DATE, record, response

from winkformats.errors import FormatError
from winkfs.archive.items import Note, Ratio
from winkfs.archive.warc import Warc
from winkfs.container.bulk import Row

PAGES = {b"http://a/%d" % i: b"<title>Seite %d</title>" % i * (1 + 300 * i) for i in range(5)}
TIME = 1_704_164_645_000_000_000  # 2024-01-02T03:04:05Z


def taken(path: Path, data: bytes) -> tuple[dict[bytes, bytes], list[Note]]:
    path.write_bytes(data)
    notes: list[Note] = []
    rows = list(Warc(str(path), notes.append).items(by_mtime=False))
    assert all(isinstance(row, Row) for row in rows)
    found = {
        row.xattrs[b"user.url"]: row.data for row in rows if isinstance(row, Row) and row.xattrs
    }
    assert len(found) == len(rows)
    return found, notes


@pytest.mark.parametrize("packed", [False, True])
def test_every_page_comes_out(tmp_path: Path, packed: bool) -> None:
    records = [record(b"warcinfo", b"", b"software: x"), *(response(*p) for p in PAGES.items())]
    data = b"".join(map(gzip.compress, records) if packed else records)
    assert taken(tmp_path / "a.warc", data) == (PAGES, [])
    (row, *_) = Warc(str(tmp_path / "a.warc"), print).items(by_mtime=True)
    assert row.mtime_ns == TIME


def test_bodies_are_those_a_browser_sees(tmp_path: Path) -> None:
    chunks = b"5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n"
    data = (
        response(b"http://a/gz", gzip.compress(b"packed" * 99), b"Content-Encoding: gzip\r\n")
        + response(b"http://a/chunks", chunks, b"Transfer-Encoding: chunked\r\n")
        + response(b"http://a/empty", b"")
        + response(b"<http://a/\xff in brackets>", b"x")
    )
    found, notes = taken(tmp_path / "a.warc", data)
    assert not notes
    assert found == {
        b"http://a/gz": b"packed" * 99, b"http://a/chunks": b"helloabc", b"http://a/empty": b"",
        "http://a/\ufffd in brackets".encode(): b"x",
    }  # fmt: skip


def test_records_without_a_page_are_skipped_and_reported(tmp_path: Path) -> None:
    data = (
        response(b"http://a/gone", b"not here", status=b"404 Not Found")
        + record(b"response", b"dns:a", b"20240102 1.2.3.4", b"text/dns")
        + response(b"http://a/1", b"one")
    )
    found, notes = taken(tmp_path / "a.warc", data)
    assert found == {b"http://a/1": b"one"}
    assert [(n.name, n.what, n.failed) for n in notes] == [
        (b"http://a/gone", "HTTP status 404", False), (b"dns:a", "not fetched by HTTP", False)
    ]  # fmt: skip


def test_a_body_that_cannot_be_decoded_stops_no_other(tmp_path: Path) -> None:
    wrong = response(b"http://a/bad", gzip.compress(b"no")[:-5], b"Content-Encoding: gzip\r\n")
    found, notes = taken(tmp_path / "a.warc", wrong + response(b"http://a/1", b"one"))
    assert found == {b"http://a/1": b"one"}
    assert [(n.name, n.failed) for n in notes] == [(b"http://a/bad", True)]
    assert "cannot be decoded" in notes[0].what


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_loses_its_last_page_only(tmp_path: Path, packed: bool) -> None:
    records = [response(*page) for page in PAGES.items()]
    data = b"".join(map(gzip.compress, records) if packed else records)
    cuts = (20, 30) if packed else (30, 200, len(records[-1]) - 40)
    for cut in cuts:
        found, notes = taken(tmp_path / "a.warc", data[:-cut])
        assert found == dict(list(PAGES.items())[:-1]), cut
        assert len(notes) == 1 and notes[0].failed, cut


@pytest.mark.parametrize("packed", [False, True])
def test_reading_goes_on_behind_damage(tmp_path: Path, packed: bool) -> None:
    records = [response(*page) for page in PAGES.items()]
    parts = list(map(gzip.compress, records)) if packed else records
    at = 20 if packed else 5  # in the stream of a member; in the word WARC
    broken = bytearray(parts[2])
    broken[at : at + 8] = b"\0" * 8
    parts[2] = bytes(broken)
    found, notes = taken(tmp_path / "a.warc", b"".join(parts))
    assert set(PAGES) - set(found) == {b"http://a/2"}
    assert all(found[name] == PAGES[name] for name in found)
    assert notes and all(note.failed for note in notes)


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\3\4"])
def test_what_is_no_warc_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(FormatError, match="not a WARC file"):
        taken(tmp_path / "a.warc", data)


@pytest.mark.slow
def test_records_in_order_of_time_do_not_all_lie_in_memory(tmp_path: Path) -> None:
    dates = [f"20{i * 7 % 50 + 10}-01-01T00:00:00Z".encode() for i in range(50)]
    data = b"".join(
        response(b"http://a/%d" % i, bytes([i]) * 1_500_000).replace(DATE, date)
        for i, date in enumerate(dates)
    )
    (tmp_path / "a.warc").write_bytes(data)
    del data
    tracemalloc.start()
    try:
        found = []
        for row in Warc(str(tmp_path / "a.warc"), print).items(by_mtime=True):
            assert isinstance(row, Row)
            found.append((row.mtime_ns, row.name, row.data[:1], len(row.data)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [time for time, *_ in found] == sorted(time for time, *_ in found)
    assert {name: (first[0], size) for _, name, first, size in found} == {
        b"a/%d" % i: (i, 1_500_000) for i in range(50)
    }
    assert peak < 45 << 20  # of 72 MiB


@pytest.mark.parametrize("codings", [b"gzip", b"gzip, gzip", b"deflate, gzip"])
def test_a_body_out_of_proportion_is_left_out_and_named(tmp_path: Path, codings: bytes) -> None:
    """Also one whose last encoding alone is in proportion to the one before."""
    zeros = bytes(3 << 20)
    body = zlib.compress(zeros) if codings == b"deflate, gzip" else gzip.compress(zeros)
    if b"," in codings:
        body = gzip.compress(body)
    head = b"Content-Encoding: " + codings + b"\r\n"
    path = tmp_path / "a.warc"
    path.write_bytes(response(b"http://a/bomb", body, head) + response(b"http://a/x", b"page"))
    least = len(zeros) // len(body)
    for ratio, names in (
        (Ratio(least // 2, 1 << 20), [b"a/x"]),
        (Ratio(least // 2, 4 << 20), [b"a/bomb", b"a/x"]),
        (Ratio(0, 0), [b"a/bomb", b"a/x"]),
    ):
        notes: list[Note] = []
        rows = Warc(str(path), notes.append, ratio).items(by_mtime=False)
        assert [row.name for row in rows] == names
        assert [note.name for note in notes if note.failed] == [b"http://a/bomb"] * (
            names[0] == b"a/x"
        )
        assert all("--max-ratio" in note.what for note in notes)
