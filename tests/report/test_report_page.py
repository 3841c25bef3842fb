"""The page of a report: harmless whatever names are in it, and one file that requests nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pages
import pytest
from commands import Run, one_line

TAGS = (
    "html head meta title style body header main footer section div h1 h2 h3 p dl dt dd small ul "
    "li i b span bdi a table caption thead tbody tr th td details summary"
)
ATTRIBUTES = (
    "lang charset http-equiv content name class style title href id role aria-label tabindex scope"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard")
    return pages.make(tmp_path_factory.mktemp("report") / "corpus")


def test_names_with_markup_are_text(run: Run, base: Path) -> None:
    assert run("report", base, "-o", "page.html") == (0, b"", "")
    text = Path("page.html").read_text()
    found = pages.Elements(text)
    assert {tag for tag, _ in found.found} <= set(TAGS.split())
    for tag, attributes in found.found:
        assert attributes.keys() <= set(ATTRIBUTES.split()), tag
        assert attributes.get("href", "#")[:1] == "#"
        if "style" in attributes:
            assert set("<>\"'&;\\") & set(attributes["style"]) <= {";"}
    assert "<img src=x onerror=alert(1)>" in found.text
    assert "not \\xff utf-8" in found.text and "\x1b" not in text and "\u202e" not in text
    assert "\U0001f980" in found.text
    assert text.count("<style>") == 1 and text.count("</style>") == 1


def test_the_page_lets_nothing_be_loaded(run: Run, base: Path) -> None:
    done = run("report", base, "-o", "-")
    found = pages.Elements(done.out.decode()).found
    policy = [a["content"] for tag, a in found if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy and policy[0].startswith("default-src 'none'; style-src 'unsafe-inline'")
    style = done.out.decode().partition("</style>")[0]
    assert (
        "url(" not in style
        and "@import" not in style
        and "http" not in style.partition("<style>")[2]
    )


def test_each_chart_has_words_and_a_table(run: Run, base: Path) -> None:
    text = run("report", base, "-o", "-").out.decode()
    found = pages.Elements(text).found
    charts = [a for tag, a in found if a.get("role") == "img"]
    assert len(charts) >= 7 and all(a["aria-label"] for a in charts)
    assert text.count("<caption>") >= 7
    for section in (
        "Space",
        "Sizes",
        "Times",
        "Types",
        "Directories",
        "Columns",
        "Index",
        "Catalog",
    ):
        assert f"<h2>{section}</h2>" in text
    links = {a["href"][1:] for tag, a in found if tag == "a"}
    assert links and links <= {a["id"] for _, a in found if "id" in a}


def test_an_empty_container_has_a_page(run: Run) -> None:
    assert run("create", "none").status == 0
    assert run("report", "none", "-o", "none.html").status == 0
    assert "<h1><bdi>none</bdi></h1>" in Path("none.html").read_text()


def test_without_a_page_or_json_it_names_both(run: Run, base: Path) -> None:
    done = run("report", base)
    assert done.status == 2 and "-o FILE" in done.err and "--json" in done.err
    assert run("report", base, "-o", "-", "--json").status == 2


def test_a_comparison_has_what_changed(run: Run) -> None:
    run("create", "c")
    run("put", "c", "a.txt", stdin=b"1" * 5000)
    Path("old.json").write_bytes(run("report", "c", "--json").out)
    run("put", "c", "b.txt", stdin=b"2" * 7000)
    done = run("report", "c", "--compare", "old.json", "-o", "page.html", "--json")
    rows = {row["what"]: (row["old"], row["new"]) for row in json.loads(done.out)["comparison"]}
    assert rows["files.files"] == (1, 2) and rows["files.bytes"] == (5000, 12000)
    assert rows["types.txt.files"] == (1, 2)
    text = Path("page.html").read_text()
    assert "<h2>Comparison</h2>" in text and "+1 (+100.0 %)" in text
    rows = json.loads(run("report", "c", "--compare", "c", "--json").out)["comparison"]
    assert all(row["old"] == row["new"] for row in rows)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "winkfs-report", "schema": 99}', "[" * 9999]
)
def test_what_is_no_older_report_is_refused(run: Run, text: str) -> None:
    run("create", "c")
    Path("old.json").write_text(text)
    assert "old.json: " in one_line(run("report", "c", "--compare", "old.json", "--json"))


def test_too_large_a_file_is_no_older_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("create", "c")
    Path("old.json").write_bytes(run("report", "c", "--json").out)
    assert run("report", "c", "--compare", "old.json", "--json").status == 0
    monkeypatch.setattr("winkfs.report.facts.LARGEST_OLD", 100)
    assert "old.json: " in one_line(run("report", "c", "--compare", "old.json", "--json"))


def test_a_page_replaces_the_one_before_or_stays(run: Run, tmp_path: Path) -> None:
    run("create", "c")
    Path("page.html").write_text("old")
    assert run("report", "nothing", "-o", "page.html").status == 1
    assert Path("page.html").read_text() == "old"
    assert run("report", "c", "-o", "page.html").status == 0
    assert "<!DOCTYPE html>" in Path("page.html").read_text()
    assert "Is a directory" in one_line(run("report", "c", "-o", tmp_path))
    assert "can only be read" in one_line(run("report", "c", "-o", "s3://bucket/page.html"))
