"""Hashes, titles and MinHash of documents, held against plain loops over one document at a time."""

from __future__ import annotations

import functools
import random
import re
import time

import mmh3
import numpy as np
import pytest
import xxhash

pa = pytest.importorskip("pyarrow")

from winkfs.spark.jobs import dedup  # noqa: E402
from winkfs.spark.jobs import reading as documents  # noqa: E402

DOCUMENTS = [
    b"", b"x", b"\xff\x00\xfe", b"<html><title>One</title>",
    b"<TITLE lang=de>\n Zw\xc3\xb6lf &amp;\r\n mehr</TITLE>",
    b"<title>latin \xfcber</title>", b"<titles>no</titles>", b"<title></title>", b"<title>open end",
    b"<title>" + b"long " * 5000 + b"</title>", b"<title>" + "\u00e4".encode() * 600 + b"</title>",
    b" " * (300 << 10) + b"<title>too late</title>", b"<title>a < b</title><title>second</title>",
    b"<title>nul \0 in it</title>", b"<title>&#x1F600;&bogus;</title>",
]  # fmt: skip
TITLES = [
    "", "", "", "One", "Zw\u00f6lf & mehr", "latin \u00fcber", "", "", "open end",
    ("long " * 205)[:1024], "\u00e4" * 512, "", "a < b", "nul in it", "\U0001f600&bogus;",
]  # fmt: skip


def columns(values: list[bytes]) -> list[pa.Array]:
    """The same values as Arrow may have them: also a slice behind a null, and with long offsets."""
    padded = pa.array([b"before", None, *values, b"after"], pa.binary())
    return [pa.array(values, pa.binary()), pa.array(values, pa.large_binary()), padded[2:-1]]


@pytest.mark.parametrize("number", range(3))
def test_hashes_are_those_of_each_document(number: int) -> None:
    xxh3, mmh3_sums = documents.hashes(columns(DOCUMENTS)[number])
    assert xxh3.tolist() == [xxhash.xxh3_64_intdigest(document) for document in DOCUMENTS]
    assert list(map(bytes, mmh3_sums)) == [mmh3.hash_bytes(d, 0, True) for d in DOCUMENTS]


@pytest.mark.parametrize("number", range(3))
def test_titles_are_found_cleaned_and_cut(number: int) -> None:
    found = documents.titles(columns(DOCUMENTS)[number])
    assert [title.decode() for title in found] == TITLES


@pytest.mark.parametrize(
    ("document", "lang"),
    [
        (b"", ""), (b"no markup", ""), (b"<html>", ""), (b"<html lang=de>", "de"),
        (b"<!doctype html>\n<HTML class='a' LANG='DE-at'>", "de-AT"),
        (b'<html xmlns="x" xml:lang="pt_br">', "pt-BR"),
        (b'<html lang=" zh-hant-tw ">', "zh-Hant-TW"),
        (b'<html xml:lang="fr" lang="it">', "it"), (b'<html lang="" xml:lang=fr>', "fr"),
        (b'<html data-lang="de" hreflang="de">', ""), (b'<html title="a lang=fr" lang="es">', "es"),
        (b'<html lang="english">', ""), (b'<html lang="de\xfc">', ""),
        (b"<html lang='x-klingon'>", ""),
        (b'<html lang="de" lang="fr">', "de"), (b"<htmlx lang=de>", ""), (b"<html lang=de", ""),
        (b"<html lang=de" + b"-aa" * 12 + b">", ""),
        (b'<html><meta http-equiv="Content-Language" content="en, fr">', "en"),
        (b"<meta content='sv' name=LANGUAGE />", "sv"),
        (b"<meta property='og:locale' content='de_AT.UTF-8'>", "de-AT"),
        (b'<meta property="og:locale" content="de"><meta name="language" content="NL">', "nl"),
        (b'<meta property="og:locale" content="de"><meta name="language" content="Dutch">', "de"),
        (b'<meta property="og:locale" content="nl"><meta name="language" content="de">', "de"),
        (b'<html lang="da"><meta name="language" content="de">', "da"),
        (b"<meta name=description content=de>", ""),
        (b" " * (300 << 10) + b"<html lang=de>", ""),
    ],
)  # fmt: skip
def test_the_language_is_the_one_that_the_document_names(document: bytes, lang: str) -> None:
    assert documents.languages(pa.array([b"<html lang=ja>", document, b"<html lang=ja>"]))[1] == (
        lang.encode()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [b"<meta ", b"<title ", b"<html ", b"a", b"a=", b"a = ", b' a="', b"<meta a='", b" "]
)
def test_hostile_markup_takes_no_time(part: bytes) -> None:
    """Each search is linear: what is quadratic would take minutes for 256 KiB."""
    for start in (b"<html ", b"<meta ", b"<title "):
        hostile = pa.array([(start + part * (256 << 10))[: (256 << 10) - 1] + b">"])
        began = time.process_time()
        documents.languages(hostile)
        documents.titles(hostile)
        assert time.process_time() - began < 2


def test_nothing_gives_nothing() -> None:
    empty = pa.array([], pa.binary())
    xxh3, sums = documents.hashes(empty)
    assert (len(xxh3), sums.shape, documents.titles(empty)) == (0, (0, 16), [])
    assert dedup.signatures(empty).shape == (0, 64)


# --- MinHash ---


def plain_mix(value: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ (value >> 33)) * factor % 2**64
    return value ^ (value >> 33)


@functools.cache  # a document of a megabyte takes seconds
def plain_shingles(document: bytes) -> list[int]:
    """One document, one shingle at a time."""
    text = re.sub(rb"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[a-z/!?][^>]*>", b" ", document)
    words = re.findall(rb"[0-9a-z\x80-\xff]+", text.lower())
    hashes = [int.from_bytes(mmh3.hash_bytes(word, 0, True)[:8], "little") for word in words]
    shingles = []
    for i in range(max(len(words) - 4, min(len(words), 1))):
        value = 0
        for number in [*hashes[i : i + 5], 0, 0, 0, 0][:5]:
            value = plain_mix((value * 0x9E3779B97F4A7C15 + number) % 2**64)
        shingles.append(value)
    return shingles


@functools.cache
def plain_signature(document: bytes) -> list[int]:
    shingles = plain_shingles(document)
    result = []
    for i in range(64):
        seed = plain_mix((i + 1) * 0x9E3779B97F4A7C15 % 2**64)
        values = [(value ^ seed) * 0xFF51AFD7ED558CCD % 2**64 for value in shingles]
        result.append(min(values, default=2**64 - 1))
    return result


def plain_bands(signature: list[int]) -> list[int]:
    keys = []
    for band in range(16):
        key = 0
        for value in signature[4 * band : 4 * band + 4]:
            key = plain_mix((key * 0x9E3779B97F4A7C15 + value) % 2**64)
        keys.append(plain_mix((key + band) % 2**64))
    return keys


TEXTS = [
    *DOCUMENTS, b"one two three four five six", b"One, TWO <b>three</b> four; five six!",
    b"<script>var a = '<p>';</script><style>b{}</style>one two<!-- no <p> --> three",
    b"<script>never closed", b"a<b and c>d", b"five words and no more", b"four words are fewer",
    " \u00fcber stra\u00dfe ".encode() * 50, b"<p>" * 9,
]  # fmt: skip


@pytest.mark.parametrize("number", range(3))
def test_signatures_and_bands_are_those_of_a_plain_loop(number: int) -> None:
    found = dedup.signatures(columns(TEXTS)[number])
    assert found.tolist() == [plain_signature(text) for text in TEXTS]
    assert dedup.band_keys(found).tolist() == [plain_bands(s) for s in found.tolist()]


def test_markup_and_case_make_no_difference() -> None:
    a, b = dedup.signatures(pa.array(TEXTS[15:17], pa.binary()))
    assert (a == b).all()


@pytest.mark.parametrize("share", [0.95, 0.8, 0.5, 0.0])
def test_the_estimate_is_near_the_jaccard_index(share: float) -> None:
    random.seed(7)
    words = [b"w%d" % random.randrange(10**6) for _ in range(6000)]
    common = words[: int(2000 * 2 * share / (1 + share))]
    rest = 2000 - len(common)
    a, b = common + words[2000 : 2000 + rest], common + words[4000 : 4000 + rest]
    found = dedup.signatures(pa.array([b" ".join(a), b" ".join(b)], pa.binary()), bands=64)
    assert abs(float(dedup.estimate(found[:1], found[1:])[0]) - share) < 0.1


@pytest.mark.parametrize("seed", range(20))
def test_those_that_stay_are_those_of_a_plain_loop(seed: int) -> None:
    random.seed(seed)
    count = random.choice([1, 5, 50, 300])
    pairs = [sorted(random.choices(range(count), k=2)) for _ in range(random.choice([0, 30, 900]))]
    older, younger = np.array([p for p in pairs if p[0] < p[1]], np.int64).reshape(-1, 2).T
    stays: list[bool] = []
    for i in range(count):
        similar = older[younger == i].tolist()
        stays.append(not any(stays[other] for other in similar))
    assert dedup.staying(count, younger, older).tolist() == stays


def test_of_a_long_chain_every_second_one_stays() -> None:
    chain = np.arange(999)
    assert dedup.staying(1000, chain + 1, chain).tolist() == [True, False] * 500


def test_sets_of_shingles_are_those_of_a_plain_loop() -> None:
    sets = dedup.shingle_sets(columns(TEXTS)[0])
    plain = [set(plain_shingles(text)) for text in TEXTS]
    assert [set(found.tolist()) for found in sets] == plain
    for a, x in zip(sets, plain, strict=True):
        for b, y in zip(sets, plain, strict=True):
            assert dedup.jaccard(a, b) == (len(x & y) / len(x | y) if x and y else 0)
