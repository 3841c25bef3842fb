"""The page of a report in Chromium: light and dark, narrow and wide, clicks, and no requests.

WINKFS_SCREENSHOTS=DIR keeps the pictures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from headless import Browser

from winkfs.report.facts import compared, gather
from winkfs.report.page import page

pytestmark = [pytest.mark.slow, pytest.mark.long]  # `make test-browser` takes all
WIDTHS = (400, 1600)
SCHEMES = ("light", "dark")
TOO_WIDE = """[...document.querySelectorAll('body *')]
  .filter(e => !e.closest('.scroll, .areas, .axis'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("pages")
    facts = gather(str(pages.make(folder / "corpus")), now=pages.NOW * 10**9)
    facts["problems"] = [f"{pages.MARKUP}: damaged"]
    before = facts | {"files": facts["files"] | {"files": 3}}
    path = folder / "report.html"
    path.write_text(page(facts, compared(before, facts), pages.MARKUP))
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("WINKFS_SCREENSHOTS") or tmp_path)
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_without_a_request_light_and_dark(
    browser: Browser, document: Path, kept: Path, width: int
) -> None:
    browser.requests.clear()
    shots = []
    for scheme in SCHEMES:
        browser.look(width, 900, scheme)
        browser.open(document)
        assert browser.value("document.documentElement.scrollWidth") == width
        assert browser.value(TOO_WIDE) == []
        shots.append(browser.shot(kept / f"report-{width}-{scheme}.png"))
        assert len(shots[-1]) > 50_000, "an empty page"
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(18, 21, 27)" and shots[0] != shots[1]
    assert set(browser.requests) == {document.as_uri()}
    assert browser.complaints == []


def test_markup_in_names_stays_text(browser: Browser, document: Path) -> None:
    browser.open(document)
    assert (
        browser.value("document.querySelectorAll('img, script, iframe, object, form').length") == 0
    )
    assert "<img src=x onerror=alert(1)>" in browser.value("document.body.textContent")
    assert browser.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_click_leads_into_a_directory_and_back(
    browser: Browser, document: Path, kept: Path, width: int
) -> None:
    shown = "[...document.querySelectorAll('.map')].filter(e => e.offsetHeight).map(e => e.id)"
    browser.look(width, 900, "light")
    browser.open(document)
    assert browser.value(shown) == ["d0"]
    browser.click(".map.top .areas a")
    (inner,) = browser.value(shown)
    assert inner != "d0" and browser.value("location.hash") == f"#{inner}"
    browser.shot(kept / f"directory-{width}.png")
    browser.click(f"#{inner} .path a")
    assert browser.value(shown) == ["d0"]


def test_labels_of_areas_fit_or_are_hidden(browser: Browser, document: Path) -> None:
    """A name is cut at the edge of its area, and is not shown in one that is too small."""
    browser.look(400, 900, "light")
    browser.open(document)
    widths = browser.value(
        "[...document.querySelectorAll('.map.top .areas bdi')].filter(e => e.offsetHeight)"
        ".map(e => e.parentElement.offsetWidth)"
    )
    assert widths and min(widths) > 34


def test_tables_open_by_the_keyboard(browser: Browser, document: Path) -> None:
    browser.look(400, 900, "light")
    browser.open(document)
    browser.value("document.querySelector('summary').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.ask("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                    windowsVirtualKeyCode=13)  # fmt: skip
    assert browser.value("document.querySelector('details').open") is True
    assert browser.value("document.documentElement.scrollWidth") == 400
