"""Plain English: words that the product and its docs do without, and how a docstring begins."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import house

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("winkfs", "formats/winkformats", "mount/winkmount", "pyspark_winkfs")

# Instead: report, record, state, warn; caller, reader, writer, process; pending delete, tombstone,
# successor, ignore, release.
WORDS = re.compile(
    r"(?<![a-z])(say|says|said|saying|tell|tells|told|telling|who|whoever|whom|somebody|nobody"
    r"|anybody|he|him|his|doom|dooms|doomed|entomb|entombs|entombed|heir|heirs|excuse|excuses"
    r"|excused|let_go)(?![a-z])",
    re.IGNORECASE,
)
OPENINGS = re.compile(r"(What|Whether|Which|Who|How|The same)\b(?! to )")


LONGEST_NAME = 60  # of a test, which is a subject and a verb


def sources() -> Iterator[Path]:
    for part in PRODUCT:
        for suffix in ("py", "pyi", "c", "h"):
            yield from (ROOT / part).rglob(f"*.{suffix}")


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def documented(tree: ast.AST) -> Iterator[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


@pytest.mark.slow
def test_words_that_are_not_plain() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word[0]}"
        for path in [*sources(), *pages()]
        if "xxhash" not in path.name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for word in WORDS.finditer(line)
    ]
    assert len(found) <= 30, "\n".join(found)


@pytest.mark.slow
def test_a_docstring_begins_with_a_verb_or_names_the_thing() -> None:
    found = []
    for path in house.modules().values():
        for node in documented(house.tree(path)):
            text = ast.get_docstring(node)  # type: ignore[arg-type]
            if text and OPENINGS.match(text):
                line = getattr(node, "lineno", 1)
                found.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}")
    assert found == [], "\n".join(found)


def test_names_of_tests_are_short_and_plain() -> None:
    names = [
        name
        for path in ROOT.joinpath("tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    ]
    assert len(names) > 2000
    assert [name for name in names if len(name) > LONGEST_NAME] == []
    assert [name for name in names if WORDS.search(name)] == []
