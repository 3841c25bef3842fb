"""Sections of the page, of facts that are given: figures, words, and what is left out."""

from __future__ import annotations

import re
from typing import Any
from xml.etree.ElementTree import Element, tostring

import pytest

from winkfs.report import sections
from winkfs.report.directories import _leaf
from winkfs.report.page import PROBLEMS, page

FACTS: dict[str, Any] = {
    "base": "c", "kind": "container", "made": "2026-11-30", "winkfs": "0", "problems": [],
    "info": {"variant": "plain", "last_sync": "2026-11-29T08:30:00Z", "n": {"deep": 1234}},
}  # fmt: skip


def texts(element: Element | None, tag: str) -> list[str]:
    """Return the texts of the elements of a tag."""
    assert element is not None
    return ["".join(one.itertext()) for one in element.iter(tag)]


def cells(element: Element | None) -> list[list[str]]:
    """Return the rows of the tables."""
    assert element is not None
    return [["".join(one.itertext()) for one in row] for row in element.iter("tr")]


def test_a_comparison_has_what_changed_with_its_sign() -> None:
    rows = [
        {"what": "files.files", "old": 4, "new": 3},
        {"what": "space.dead", "old": 1024, "new": 4096},
        {"what": "index.cells", "old": 7, "new": 7},
        {"what": "types.txt.files", "old": None, "new": 2},
        {"what": "info.live_bytes", "old": 0, "new": 2048},
    ]  # fmt: skip
    made = sections.comparison(rows, "old.json")
    assert "4 of 5 figures differ from those of old.json" in texts(made, "p")[0]
    assert cells(made)[1:] == [
        ["files", "4", "3", "-1 (-25.0 %)"],
        ["space dead", "1 KiB", "4 KiB", "+3 KiB (+300.0 %)"],
        ["types txt files", "none", "2", ""],
        ["info live bytes", "0 B", "2 KiB", "+2 KiB"],
    ]
    assert cells(sections.comparison(rows[2:3], "x")) == []


def test_space_is_a_bar_a_map_and_a_table() -> None:
    space = {"superblocks": 0, "live": 60, "dead": 30, "holes": 0, "reserve": 10, "size": 100,
             "exact": False, "map": {"step": 60, "superblocks": [0, 0], "live": [60, 0],
                                     "dead": [0, 30], "holes": [0, 0],
                                     "reserve": [0, 10]}}  # fmt: skip
    made = sections.space({"space": space})
    assert cells(made)[1:] == [
        ["live", "60 B", "60", "60.0 %"], ["dead", "30 B", "30", "30.0 %"],
        ["reserve", "10 B", "10", "10.0 %"],
    ]  # fmt: skip
    html = tostring(made, encoding="unicode") if made is not None else ""
    assert re.findall(r'title="(from[^"]+)"', html) == [
        "from byte 0: live 100 %", "from byte 60: dead 75 %, reserve 25 %"
    ]  # fmt: skip
    assert "estimates" in html
    exact = sections.space({"space": space | {"exact": True, "dead": 0, "map": space["map"]}})
    assert "estimates" not in texts(exact, "p")[0] and cells(exact)[2] == [
        "dead",
        "0 B",
        "0",
        "0.0 %",
    ]
    assert sections.space({}) is None


@pytest.mark.parametrize(
    ("least", "below", "label", "what"),
    [
        (None, 0, "future", "in the future"), (0, 60, "0", "0 to 1 minute"),
        (31_557_600, 2 * 31_557_600, "1 year", "1 year to 2 years"),
        (32 * 31_557_600, None, "32 years", "32 years and more"),
    ],
)  # fmt: skip
def test_ages_in_words(least: int | None, below: int | None, label: str, what: str) -> None:
    row = {"least": least, "below": below, "files": 3, "bytes": 2048}
    made = sections.times({"mtimes": [row]})
    assert cells(made)[1:] == [[what, "3", "2 KiB"]] and label in texts(made, "span")


def test_sizes_types_and_columns_in_words() -> None:
    rows = [{"least": 0, "below": 1, "files": 1, "bytes": 0},
            {"least": 1024, "below": 2048, "files": 2000, "bytes": 3000}]  # fmt: skip
    made = sections.sizes({"sizes": rows})
    assert [row[:2] for row in cells(made)[1:]] == [["empty", "1"], ["1 KiB to 2 KiB", "2,000"]]
    assert made is not None and "most of them 1 KiB to 2 KiB" in tostring(made).decode()
    types = [{"type": "txt", "files": 2, "bytes": 4096, "stored": 1024},
             {"type": "", "files": 1, "bytes": 0, "stored": 0},
             {"type": None, "files": 9, "bytes": 10, "stored": 5}]  # fmt: skip
    assert cells(sections.types({"types": types}))[1:] == [
        ["txt", "", "2", "4 KiB", "1 KiB", "4.00"], ["no suffix", "", "1", "0 B", "0 B", ""],
        ["all others", "", "9", "10 B", "5 B", "2.00"],
    ]  # fmt: skip
    del types[0]["stored"]
    assert cells(sections.types({"types": types}))[1] == ["txt", "", "2", "4 KiB"]
    column = {
        "name": "n",
        "type": "int64",
        "least": None,
        "greatest": 7,
        "values": 1000,
        "nulls": 1,
    }
    for distinct, text in (None, ""), (10_000, "10,000"), (10_001, "more than 10,000"):
        row = cells(sections.columns({"columns": [column | {"distinct": distinct}]}))[1]
        assert row == ["n", "int64", "", "7", "1,000", "1", text]


def test_index_and_catalog_in_words() -> None:
    index = {"cells": 100, "live": 50, "load": 0.5, "current": False, "mean_probes": 1.5,
             "most_probes": 3, "probes": [{"least": 1, "below": 2, "files": 40},
                                          {"least": 2, "below": 4, "files": 10}]}  # fmt: skip
    made = sections.index({"index": index})
    assert texts(made, "p")[0] == (
        "50 files in 100 cells: 50.0 % are taken. Files at the end of the data file are not in it "
        "yet. A search for a file reads 1.50 cells on average, 3 at most."
    )
    assert cells(made)[1:] == [["1", "40", "80.0 %"], ["2 to 3", "10", "20.0 %"]]
    assert "winkfs reindex" in texts(sections.index({"index": {"current": False}}), "p")[0]
    run = {"blocks": 1, "rows": 9, "gone": 2, "bytes": 2048}
    known = {
        "runs": [run],
        "bytes": 4096,
        "block_rows": 1000,
        "current": True,
        "fills": [1] + [0] * 9,
    }
    made = sections.catalog({"catalog": known})
    assert texts(made, "p")[0] == "1 block of up to 1,000 files, 4 KiB."
    assert cells(made)[1:] == [["0", "1", "9", "2", "2 KiB"]]
    assert made is not None and "90 to 100 % full: 0 blocks" in tostring(made).decode()
    made = sections.catalog({"catalog": known | {"runs": [run, run], "current": False}})
    assert texts(made, "p")[0].startswith("2 blocks of") and "yet" in texts(made, "p")[0]


def test_shards_are_listed_by_their_waste() -> None:
    shards = [{"path": f"s{n}", "bytes": 4096, "files": n, "hidden": 1, "tombstones": 2,
               "waste": 10 * n} for n in range(60)]  # fmt: skip
    made = sections.shards({"shards": shards})
    rows = cells(made)[1:]
    assert [row[0] for row in rows] == [f"s{n}" for n in range(59, 9, -1)]
    assert rows[0][2:] == ["4 KiB", "59", "1", "2", "590 B", "14.4 %"]
    assert "The 50 with the most waste" in texts(made, "p")[0]
    made = sections.shards({"shards": shards[:50]})
    assert "with the most" not in texts(made, "p")[0]
    assert texts(made, "b") == ["188 KiB", "12 KiB"]


def test_generations_and_queues_in_words() -> None:
    some: list[dict[str, Any]] = [
        {"generation": n, "operation": "put", "time": "t", "added": 1, "removed": 0, "files": 5,
         "bytes": 1024 * n} for n in (1002, 1001)
    ]  # fmt: skip
    some.append({"generation": 1000, "damaged": "x"})
    made = sections.generations({"generations": some})
    assert cells(made)[1:] == [
        ["1,002", "put", "t", "1", "0", "5", "1,002 KiB"],
        ["1,001", "put", "t", "1", "0", "5", "1,001 KiB"],
        ["1,000", "damaged", "", "0", "0", "0", "0 B"],
    ]
    assert made is not None
    assert re.findall(r"generation (\d+)", tostring(made).decode()) == ["1000", "1001", "1002"]
    lane = {"consumer": "", "priority": None, "waiting": 1500, "oldest_age": 7200.0,
            "unacknowledged": 2, "oldest_unacknowledged_age": None}  # fmt: skip
    made = sections.queue({"queue": [lane, lane | {"consumer": "x", "priority": "low"}]})
    assert cells(made)[1:] == [
        ["main", "", "", "1,500", "2 hours", "2", ""], ["x", "low", "", "1,500", "2 hours", "2", ""]
    ]  # fmt: skip


def test_labels_of_directories_are_their_last_parts() -> None:
    assert [_leaf("a/b", "a"), _leaf("a", ""), _leaf("/x", ""), _leaf("", "")] == [
        "b/", "a/", "/x/", "/",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 seconds"), (59, "59 seconds"), (60, "1 minutes"), (3600, "1 hours"),
     (86_399, "24 hours"), (86_400, "1 days"), (31_557_600, "1 years")],
)  # fmt: skip
def test_a_span_has_one_unit(seconds: float, text: str) -> None:
    assert sections.span_text(seconds) == text


def test_the_page_lists_some_problems_and_counts_the_rest() -> None:
    many = [f"problem {n}!" for n in range(PROBLEMS + 2)]
    text = page(FACTS | {"problems": many})
    assert text.count("<li>problem ") == PROBLEMS and "problem 0!" in text
    assert "<p>and 2 more</p>" in text
    assert "more</p>" not in page(FACTS | {"problems": many[:PROBLEMS]})
    assert 'role="alert"' not in page(FACTS)


def test_the_page_begins_with_the_figures() -> None:
    files = {"files": 1234, "bytes": 2048, "directories": 2, "links": 0}
    lane = {"consumer": "", "priority": "low", "waiting": 9, "oldest_age": 60, "unacknowledged": 0,
            "oldest_unacknowledged_age": None}  # fmt: skip
    more = {"files": files, "space": {"size": 4096, "live": 3072, "dead": 1024, "exact": True},
            "queue": [lane, lane | {"oldest_age": None}, lane, lane]}  # fmt: skip
    text = page(FACTS | more)
    figures = re.findall(r"<dt>(.*?)</dt><dd>(.*?)(?:<small>(.*?)</small>)?</dd>", text)
    assert figures == [
        ("kind", "container", "plain"), ("files", "1,234", "2 directories"),
        ("content", "2 KiB", "2,048 bytes"), ("on disk", "4 KiB", "4,096 bytes"),
        ("dead", "1 KiB", "25.0 %"), ("waiting, main low", "9", "oldest 1 minutes"),
        ("waiting, main low", "9", ""), ("waiting, main low", "9", "oldest 1 minutes"),
        ("last sync", "2026-11-29", "08:30:00Z"),
    ]  # fmt: skip
    assert "n deep" in text and "1,234" in text
    shards = {"kind": "data set", "shards": [{"path": "s", "bytes": 4096, "files": 1, "hidden": 0,
                                              "tombstones": 0, "waste": 1024}],
              "info": {"generation": 5, "oldest_generation": 2,
                       "committed": "2026-11-29T08"}}  # fmt: skip
    figures = re.findall(
        r"<dt>(.*?)</dt><dd>(.*?)(?:<small>(.*?)</small>)?</dd>", page(FACTS | shards)
    )
    assert figures == [
        ("kind", "data set", ""), ("shards", "1", "4 KiB"), ("waste", "1 KiB", "25.0 %"),
        ("generation", "5", "oldest kept: 2"), ("last commit", "2026-11-29", "08"),
    ]  # fmt: skip
