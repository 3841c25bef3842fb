"""The parts of the page: shares of places, labels, and texts that are cut or escaped."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, tostring

import pytest

from winkfs.report import charts
from winkfs.report.charts import Bar, Share


def html(element: Element) -> str:
    return tostring(element, encoding="unicode", method="html")


def shown(element: Element, pattern: str) -> list[str]:
    """Return what a pattern finds in an element."""
    return re.findall(pattern, html(element))


def test_texts_are_escaped_and_put_where_they_come() -> None:
    made = charts.el("p", "a\x1b<", charts.el("b", "c"), "d", "e\n", None, title='\x1b"', id=None)
    assert html(made) == '<p title="\\x1b&quot;">a\\x1b&lt;<b>c</b>de\\n</p>'
    assert html(charts.el("i", class_="k", aria_label="x")) == '<i class="k" aria-label="x"></i>'


@pytest.mark.parametrize("length", [charts.SHOWN, charts.SHOWN + 1])
def test_a_name_is_cut_in_its_middle(length: int) -> None:
    text = "ab" + "x" * (length - 4) + "yz"
    made = charts.name(text)
    if length == charts.SHOWN:
        assert (made.text, made.get("title")) == (text, None)
    else:
        assert made.text == f"{text[:60]} ... {text[-60:]}" and made.get("title") == text


def test_columns_of_a_table_but_the_first_ones_are_numbers() -> None:
    made = charts.table("C", ("a", "b", "c"), [("1", "2", None), ("4", "5", "6")], texts=2)
    assert html(made) == (
        '<div class="scroll" tabindex="0" role="region" aria-label="C"><table><caption>C</caption>'
        '<thead><tr><th scope="col">a</th><th scope="col">b</th><th class="n" scope="col">c</th>'
        '</tr></thead><tbody><tr><th scope="row">1</th><td>2</td><td class="n"></td></tr>'
        '<tr><th scope="row">4</th><td>5</td><td class="n">6</td></tr></tbody></table></div>'
    )


def test_bars_are_shares_of_the_largest_and_some_have_labels() -> None:
    bars = [Bar(f"l{n}", f"w{n}", size) for n, size in enumerate([0, 1, 1000, 500, 3, 2, 1, 7])]
    made = charts.histogram("T", bars, "about")
    assert shown(made, r'style="height:([\d.]+%)"') == [
        "0.00%", "1.00%", "100.00%", "50.00%", "1.00%", "1.00%", "1.00%", "1.00%"
    ]  # fmt: skip
    assert shown(made, r"<span>(\w+)</span>") == ["l0", "l2", "l4", "l6"]
    assert shown(made, r"--n:([\d.]+)") == ["4.0000"]
    assert shown(made, r'title="(\w+)"') == [f"w{n}" for n in range(8)]
    assert shown(charts.histogram("T", bars[:1], "a"), r"height:([\d.]+)%") == ["0.00"]
    assert shown(charts.histogram("T", bars[:6], "a"), r"<span>(\w+)<") == [
        f"l{n}" for n in range(6)
    ]


def test_parts_of_a_whole() -> None:
    parts = [Share("live", "in use", 30, "30 B"), Share("dead", "waste", 10, "10 B"),
             Share("holes", "holes", 0, "0 B")]  # fmt: skip
    made = charts.shares(parts, "about")
    assert shown(made, r'class="(\w+)" title="([^"]+)" style="width:([\d.]+)%"') == [
        ("live", "in use: 30 B", "75.0000"), ("dead", "waste: 10 B", "25.0000"),
    ]  # fmt: skip
    assert shown(made, r"</i>([\w ]+)<b>([\w ]+)</b> ([\d.]+) %") == [
        ("in use ", "30 B", "75"), ("waste ", "10 B", "25"), ("holes ", "0 B", "0"),
    ]  # fmt: skip
    assert " 0 %" in html(charts.shares(parts[2:], "about"))


def test_columns_of_a_strip_are_filled_from_below() -> None:
    made = charts.strip(
        [[("live", 0.25), ("dead", 0), ("holes", 0.5)], []], ["one", "two"], "about"
    )
    assert shown(made, r"<i[^>]*>") == [
        '<i style="background:linear-gradient(to top,var(--live) 0.0% 25.0%,var(--holes) 25.0% '
        '75.0%)" title="one">',
        '<i title="two">',
    ]


def test_a_meter_has_what_is_stored_within_what_is_shown() -> None:
    assert shown(charts.meter(1, 2, 4, "t"), r"width:([\d.]+)%") == ["50.00", "25.00"]
    assert shown(charts.meter(9, 2, 4, "t"), r"width:([\d.]+)%") == ["50.00", "100.00"]
    assert shown(charts.meter(0, 0, 0, "t"), r"width:([\d.]+)%") == ["0.00", "0.00"]


def test_a_share_of_nothing_is_empty() -> None:
    assert (charts.percent(1, 3), charts.percent(0, 0)) == ("33.3 %", "")
