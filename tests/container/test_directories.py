"""Directories of names in byte order, beside a plain loop over the names."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest

from winkfs.container.directories import IMPLIED, SLASH_FIRST, Nesting, Totals, Tree, implied
from winkfs.container.table import FileTable
from winkfs.entry import FileType

LONG = b"n" * 250
NAMES = sorted(
    [
        b"a", b"a!b/x", b"a/x", b"a/x/1", b"a/y", b"ab/x", b"b/c/d/e", b"b/c/d/f", b"b/cd/e",
        b"b/\xff/e", b"\xc3\xa9/x", b"z", b"a//b", b"/abs/x", b"dir/", b"x" * 9 + b"/1",
        b"x" * 9 + b"/2", b"x" * 8 + b"/1", LONG + b"/" + LONG + b"/1", LONG + b"/" + LONG + b"/2",
        LONG + b"/" + LONG + b"1/1", LONG + b"/2", b"new\nline/x",
    ]
)  # fmt: skip
DIRS = [b"b", b"b/c", b"empty", b"b/hollow", b"ab"]  # with an entry


def table(names: list[bytes], dirs: list[bytes]) -> FileTable:
    """Files of size 1, 2, 4 .. in byte order, and directories with an entry."""
    size = {name: 1 << i for i, name in enumerate(names)}
    both = sorted([*names, *dirs])
    kind = np.array([FileType.DIR if name in dirs else FileType.FILE for name in both])
    sizes = np.array([size.get(name, 0) for name in both])
    return FileTable.of(both, np.arange(len(both)), size=sizes, kind=kind)


def above(name: bytes, top: bytes) -> list[bytes]:
    """The directories that a name is in, below the top."""
    found = [name[:at] or b"/" for at, byte in enumerate(name) if byte == ord("/")]
    return [one for one in found if len(one) >= len(top)]


def expected(rows: FileTable, top: bytes = b"") -> dict[bytes, tuple[int, int]]:
    """Bytes and files below each directory, by a loop."""
    sizes, files, found = Counter[bytes](), Counter[bytes](), {top[:-1]}
    entries = rows.directories.tolist()
    for name, size, entry in zip(rows.names, rows.size.tolist(), entries, strict=True):
        inside = above(name, top)
        found.update(inside, [name] if entry else [])
        for one in {top[:-1], *inside}:
            sizes[one] += size
            files[one] += not entry
    return {one: (sizes[one], files[one]) for one in found}


def answer(tree: Tree) -> dict[bytes, tuple[int, int]]:
    pairs = zip(tree.size.tolist(), tree.files.tolist(), strict=True)
    rows = zip(tree.names, pairs, tree.directory.tolist(), strict=True)
    return {name: pair for name, pair, directory in rows if directory}


def parts(rows: FileTable, cuts: list[int]) -> list[FileTable]:
    edges = [0, *cuts, len(rows)]
    return [rows.part(a, b) for a, b in pairwise(edges) if a < b]


ROWS = table(NAMES, DIRS)
CUTS = [[], *([i] for i in range(1, len(ROWS))), list(range(1, len(ROWS)))]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("files", [False, True])
def test_sums_are_those_of_a_loop(cuts: list[int], files: bool) -> None:
    totals = Totals(files=files)
    for rows in parts(ROWS, cuts):
        totals.add(rows)
    tree = totals.finish()
    assert answer(tree) == expected(ROWS)
    if files:
        shown = [n for n, d in zip(tree.names, tree.directory.tolist(), strict=True) if not d]
        assert sorted(shown) == NAMES


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_what_is_too_deep_counts_above(depth: int) -> None:
    totals = Totals(depth=depth, files=True)
    for rows in parts(ROWS, [7, 15]):
        totals.add(rows)
    tree = totals.finish()
    every = expected(ROWS)
    kept = {one: pair for one, pair in every.items() if level(one) <= depth}
    assert answer(tree) == kept
    assert max(tree.depth.tolist()) <= depth


def level(directory: bytes) -> int:
    """Levels of a directory below the root: that before the first slash is 1."""
    if directory in (b"", b"/"):
        return len(directory)
    return directory.count(b"/") + 1


def test_a_tree_has_each_directory_before_what_is_in_it() -> None:
    totals = Totals(files=True)
    totals.add(ROWS)
    tree = totals.finish()
    assert tree.names[0] == b"" and tree.over[0] == -1
    assert (tree.over[1:] < np.arange(1, len(tree.names))).all()
    assert (tree.depth[1:] == tree.depth[tree.over[1:]] + 1).all()
    behind = tree.postorder().tolist()
    assert sorted(behind) == list(range(len(behind)))
    place = {index: at for at, index in enumerate(behind)}
    assert all(place[i] < place[over] for i, over in enumerate(tree.over.tolist()) if over >= 0)
    below_b = [n for n in tree.names if n.startswith(b"b/")]
    at = tree.names.index(b"b")
    assert tree.names[at + 1 : at + 1 + len(below_b)] == below_b  # together


@pytest.mark.parametrize("depth", [None, 1, 2])
@pytest.mark.parametrize("apart", [False, True])
def test_the_order_is_by_parts_of_names(apart: bool, depth: int | None) -> None:
    """Each two names: most are in that order, and `a!b/x` before `a/x` is not."""
    for names in combinations(NAMES, 2):
        rows = table(list(names), [])
        totals = Totals(depth=depth, files=True)
        for some in parts(rows, [1] if apart else []):
            totals.add(some)
        tree = totals.finish()
        found = list(zip(tree.names, tree.directory.tolist(), strict=True))
        assert found == sorted(
            found, key=lambda one: (one[0].translate(SLASH_FIRST.tobytes()), one[1])
        ), names
        over = [tree.names[i] for i in tree.over[1:].tolist()]
        inside = [
            ([b"", *above(name, b"")])[: -1 if name == b"/" else None][-1]
            for name in tree.names[1:]
        ]
        assert over == inside, names


def test_totals_below_a_directory() -> None:
    rows = ROWS.take(np.array([name.startswith(b"b/") for name in ROWS.names]))
    totals = Totals(b"b/")
    totals.add(rows)
    assert answer(totals.finish()) == expected(rows, b"b/")


def test_more_directories_than_there_was_room_for() -> None:
    names = [b"%04d/%d" % (i // 2, i % 2) for i in range(6000)]
    totals = Totals()
    rows = FileTable.of(names, np.arange(6000), size=np.arange(6000))
    for some in parts(rows, [1000, 3001]):
        totals.add(some)
    assert answer(totals.finish()) == expected(rows)


def test_nothing_is_a_root_without_bytes() -> None:
    assert answer(Totals().finish()) == {b"": (0, 0)}


def test_sizes_beyond_64_bits_are_refused() -> None:
    rows = FileTable.of([b"a", b"b"], np.arange(2), size=np.array([1 << 62, (1 << 63) - 1]))
    with pytest.raises(ValueError, match="more than 2\\^63"):
        Totals().add(rows)


def test_nesting_names_the_directory_of_each_file() -> None:
    nesting, names = Nesting(), [b""]
    for rows in parts(ROWS, list(range(1, len(ROWS)))):
        nested = nesting.add(rows)
        names += FileTable.of(nested.names, nested.at).names
        for name, number in zip(rows.names, nested.parent.tolist(), strict=True):
            assert names[number] == (above(name, b"") or [b""])[-1]
    assert nesting.count == len(names) == len(set(names))


def test_implied_directories_have_no_place() -> None:
    rows = implied([b"d"], 1, (7, 8))
    assert (rows.pos[0], rows.fileid[0], rows.size[0]) == (IMPLIED, IMPLIED, 0)
    _, _, _, ftype, mode, uid, gid, _ = (column[0] for column in rows.stats((0, 0)))
    assert (ftype, mode, uid, gid) == (FileType.DIR, 0o755, 7, 8)
