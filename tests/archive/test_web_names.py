"""Names of web documents: a crawl is browsed like a site, and any URL has one."""

from __future__ import annotations

from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from winkfs.archive.webnames import apart, at_time, place_of
from winkfs.names import path_fault


def digits(data: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(data).encode()


LONG, QUERY, UMLAUTS = b"x" * 300, b"?" + b"q" * 300, "ü".encode() * 200
NAMES = {
    b"http://a.example/d/x": b"a.example/d/x",
    b"https://A.Example:443/D/X": b"a.example/D/X",
    b"http://a.example:8080/x": b"a.example:8080/x",
    b"https://a.example:80/x": b"a.example:80/x",
    b"http://a.example": b"a.example/index.html",
    b"http://a.example/": b"a.example/index.html",
    b"http://a.example/d/": b"a.example/d/index.html",
    b"http://a.example/d/?q=1": b"a.example/d/index.html?q=1",
    b"http://a.example?q": b"a.example/index.html?q",
    b"http://a.example/x?u=http://b/c": b"a.example/x?u=http:%2F%2Fb%2Fc",
    b"http://a.example/x?a?b": b"a.example/x?a?b",
    b"http://a.example/x#part": b"a.example/x#part",
    b"http://a.example/%7Ex%2Fy": b"a.example/%7Ex%2Fy",
    b"http://a.example//b///c": b"a.example/b/c",
    b"http://a.example/./b/../c": b"a.example/%2E/b/%2E%2E/c",
    b"http://user:word@a.example/x": b"a.example/x",
    b"http://[2001:DB8::1]:8080/x": b"[2001:db8::1]:8080/x",
    b"http://a.example/x\ty\x7f": b"a.example/x%09y%7F",
    "http://a.example/ü".encode(): "a.example/ü".encode(),
    b"ftp://a.example/x": b"ftp:/a.example/x",
    b"file:///srv/1.html": b"file:/srv/1.html",
    b"metadata://gnu.org/x": b"metadata:/gnu.org/x",
    b"urn:uuid:1/2": b"urn:uuid:1%2F2",
    b"http://../x": b"%2E%2E/x",
    b"http://a.example/" + LONG: b"a.example/" + LONG[:238] + b"~" + digits(LONG),
    b"http://a.example/" + LONG + b"/y": b"a.example/" + LONG[:238] + b"~" + digits(LONG) + b"/y",
    b"http://a.example/x" + QUERY: b"a.example/" + (b"x" + QUERY)[:238] + b"~"
    + digits(b"x" + QUERY),
    b"http://a.example/" + UMLAUTS: b"a.example/" + UMLAUTS[:238] + b"~" + digits(UMLAUTS),
    b"http://a.example/y" + UMLAUTS: b"a.example/y" + UMLAUTS[:236] + b"~"
    + digits(b"y" + UMLAUTS),
    b"http://a.example/x@20240102030405": b"a.example/x@20240102030405~"
    + digits(b"http://a.example/x@20240102030405"),
    b"http://a.example/x~0123456789abcdef": b"a.example/x~0123456789abcdef~"
    + digits(b"http://a.example/x~0123456789abcdef"),
}  # fmt: skip


@pytest.mark.parametrize("url", NAMES)
def test_a_url_has_the_name_of_a_site(url: bytes) -> None:
    assert place_of(url).name == NAMES[url]


def test_one_document_is_one_however_its_url_is_written() -> None:
    same = {place_of(url) for url in (b"http://a.example", b"HTTP://A.example:80/",
                                      b"http://me@a.example:/")}  # fmt: skip
    assert len(same) == 1
    assert place_of(b"http://a.example/x").url != place_of(b"https://a.example/x").url
    assert place_of(b"http://a.example/x").url != place_of(b"http://a.example//x").url


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ((1_704_164_645_999_999,), b"a/x@20240102030405"), ((None,), b"a/x@00000000000000"),
        ((-62_135_596_800_000_000,), b"a/x@00010101000000"),
        ((0, 1), b"a/x@19700101000000~0000000000000001"),
    ],
)  # fmt: skip
def test_a_version_has_its_time_in_its_name(given: tuple[Any, ...], name: bytes) -> None:
    assert at_time(b"a/x", *given) == name


def test_names_that_are_kept_apart_are_short_enough() -> None:
    assert apart(b"a/x", b"https://a/x") == b"a/x~" + digits(b"https://a/x")
    long = place_of(b"http://a/" + LONG).name
    for name in (at_time(long, 0, 1), apart(long, b"u"), at_time(apart(long, b"u"), 0, 1)):
        assert path_fault(name) is None
    assert at_time(long, 0) != at_time(place_of(b"http://a/" + LONG + b"y").name, 0)


@given(st.one_of(
    st.binary(), st.binary(max_size=600).map(lambda raw: b"http://a/" + raw),
    st.text("./?:@~[]#%", max_size=40).map(lambda text: b"https://" + text.encode()),
    st.lists(st.binary(max_size=9), max_size=900).map(lambda parts: b"http://" + b"/".join(parts)),
))  # fmt: skip
def test_any_url_has_a_name_that_is_a_path(url: bytes) -> None:
    name = place_of(url).name
    assert path_fault(name) is None and b"\0" not in name and len(name) < 4096
    assert path_fault(at_time(apart(name, url), 0, 1)) is None
