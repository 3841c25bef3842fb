"""Performance: pages and figures show the newest results of the benchmarks."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def performance(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("performance")


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_numbers_are_those_of_the_newest_results(performance: ModuleType, page: str) -> None:
    text = (ROOT / page).read_text()
    made = performance.blocks()[ROOT / page]
    assert made
    for name, block in made.items():
        assert performance.with_block(text, name, block) == text, "run `make performance`"


@pytest.mark.parametrize("figure", ["rivals", "mount", "spark", "flat"])
def test_figures_are_drawn_from_the_newest_results(performance: ModuleType, figure: str) -> None:
    drawn = (ROOT / f"docs/performance-{figure}.svg").read_text()
    assert f"drawn from {performance.drawn_from(figure)}" in drawn, "run `make performance`"
    assert f"performance-{figure}.svg" in (ROOT / "docs/performance.md").read_text()


def test_a_page_without_its_block_is_an_error(performance: ModuleType) -> None:
    with pytest.raises(ValueError, match="no block numbers"):
        performance.with_block("# Numbers\n", "numbers", "| 1 |")
