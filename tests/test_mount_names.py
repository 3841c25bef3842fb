"""NameTree: names with / in them as directories."""

from __future__ import annotations

import random

import pytest

from winkfs.entry import Entry
from winkfs.inode import FileType
from winkfs.nametree import OWN_IDS, NameTree


def entries(*names: str | tuple[str, FileType], first_id: int = 1) -> list[Entry]:
    made = []
    for i, item in enumerate(names):
        name, ftype = (item, FileType.FILE) if isinstance(item, str) else item
        made.append(Entry(name, first_id + i, 0, 1000 + i, ftype, 0o644, 0, 0, bytes))
    return made


def shown(tree: NameTree) -> set[bytes]:
    """All files, and directories with a / behind."""
    found = set()
    for directory in tree.root.walk():
        found |= {directory.path() + b"/", *(directory.path(name) for name in directory.files)}
    return found - {b"/"}


def test_prefixes_are_directories() -> None:
    tree = NameTree(entries("a/b/c", "a/d", "e", ("a/f", FileType.DIR)))
    assert shown(tree) == {b"a/", b"a/b/", b"a/b/c", b"a/d", b"a/f/", b"e"}
    directory, id = tree.find(tree.root.id, b"e")
    assert directory is tree.root and id == 3
    assert tree.name_of(3) == b"e"
    assert tree.find(tree.root.id, b"nothing")[1] is None


@pytest.mark.parametrize("order", [1, -1])
def test_directory_wins_over_a_file_of_the_same_name(order: int) -> None:
    tree = NameTree(entries("a/b", "a/b/c", "a/b/d")[::order])
    assert shown(tree) == {b"a/", b"a/b/", b"a/b/c", b"a/b/d"}
    assert [name for name, _ in tree.left_out] == [b"a/b"]


def test_hidden_file_comes_to_light_when_the_directory_goes() -> None:
    tree = NameTree(entries("a", "a/b"))
    directory = tree.root.dirs[b"a"]
    tree.remove_file(directory, b"b")
    tree.remove_directory(directory)
    assert shown(tree) == {b"a"}


def test_hidden_files_move_with_the_directory_above_them() -> None:
    tree = NameTree(entries("top/a", "top/a/b", "x"))
    top = tree.root.dirs[b"top"]
    assert set(tree.names_below(top)) == {b"top/a/b", b"top/a"}
    tree.move_directory(top, tree.root, b"new")
    assert shown(tree) == {b"new/", b"new/a/", b"new/a/b", b"x"}
    moved = tree.root.dirs[b"new"].dirs[b"a"]
    tree.remove_file(moved, b"b")
    tree.remove_directory(moved)
    assert shown(tree) == {b"new/", b"new/a", b"x"}


@pytest.mark.parametrize("name", ["/a", "a/", "a//b", "a/./b", "../a", "n" * 256, "."])
def test_names_no_path_can_have_are_left_out_and_said(name: str) -> None:
    tree = NameTree(entries(name, "good"))
    assert shown(tree) == {b"good"}
    assert len(tree.summary()) == 1
    assert name in tree.summary()[0]


def test_summary_stays_short() -> None:
    tree = NameTree(entries(*[f"a//{i}" for i in range(1000)]))
    assert len(tree.summary()) == 6
    assert "995 more" in tree.summary()[-1]


def test_implied_directory_is_as_new_as_what_is_below_it() -> None:
    tree = NameTree(entries("a/b/c", "x/y", "a/b/d", "z"))
    assert tree.root.dirs[b"a"].mtime_ns == 1002
    assert tree.root.dirs[b"x"].mtime_ns == 1001
    assert tree.root.mtime_ns == 1003


def test_file_ids_that_are_not_unique_do_not_mix_two_files() -> None:
    tree = NameTree([*entries("a", first_id=7), *entries("b", first_id=7)])
    ids = {tree.find(tree.root.id, name)[1] for name in (b"a", b"b")}
    assert len(ids) == 2
    assert {tree.name_of(id) for id in ids if id} == {b"a", b"b"}


def test_file_id_as_large_as_those_made_here_is_replaced() -> None:
    tree = NameTree(entries("a", "d/b", first_id=OWN_IDS))
    ids = [tree.root.id, tree.root.dirs[b"d"].id, tree.find(tree.root.id, b"a")[1]]
    assert len(set(ids)) == 3
    assert tree.directory(tree.root.id) is tree.root


def test_very_deep_name() -> None:
    tree = NameTree(entries("/".join("d" * 2000)))
    assert len(shown(tree)) == 2000


def test_names_too_long_for_a_path_are_left_out() -> None:
    longest = "/".join(["d" * 255] * 15 + ["e" * 255])
    tree = NameTree(entries(longest, longest + "e/f"))
    assert longest.encode() in shown(tree)
    assert len(tree.left_out) == 1


def test_tree_against_a_set_of_names() -> None:
    chance = random.Random(11)
    tree = NameTree([])
    model: set[bytes] = set()
    dirs = [tree.root]
    for i in range(3000):
        directory = chance.choice(dirs)
        name = b"%d" % chance.randrange(30)
        if name in directory.files and chance.random() < 0.5:
            tree.remove_file(directory, name)
            model.discard(directory.path(name))
        elif name in directory.dirs and directory.dirs[name].empty:
            dirs.remove(directory.dirs[name])
            tree.remove_directory(directory.dirs[name])
        elif name not in directory.dirs and name not in directory.files:
            if chance.random() < 0.2:
                dirs.append(tree.add_directory(directory, name))
            else:
                tree.add_file(directory, name, i + 1)
                model.add(directory.path(name))
        elif name in directory.files:
            new = chance.choice(dirs)
            target = b"t%d" % chance.randrange(9)
            model -= {directory.path(name), new.path(target)}
            model.add(new.path(target))
            tree.move_file(directory, name, new, target)
    assert {name for name in shown(tree) if not name.endswith(b"/")} == model
