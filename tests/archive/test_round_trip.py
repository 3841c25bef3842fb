"""A tree through all that holds one: container, tar, container, zip, container, tree."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import stored
from commands import Run
from trees import snapshot

KB = 1 << 10
NANO = 10**9
# A zip file has times after 2038 in steps of two seconds.
TIMES = (0, -1_500_000_001, 1_700_000_000_123_456_789, 4_000_000_000 * NANO + 1)
# Not `@file`, which has one more @ as a path, as in a mount.
ODD = (b"new\nline", b"\x1b[31mred", b"caf\xe9", b"n" * 255, b"*?[x]", b"-rf", b"back\\slash",
       b" ", b"a\xcc\x88", b"~", b"{}", b"t\tb", b"'\"")  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Every kind of thing that a container holds, under names that are hard to keep."""
    root = tmp_path / "tree"
    (root / "d/empty").mkdir(parents=True)
    (root / "d/closed").mkdir()
    deep = root / "/".join(["deep" * 20] * 5)
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"far down")
    for name in ODD:
        place = Path(os.fsdecode(os.path.join(os.fsencode(root), b"odd", name)))
        place.mkdir(parents=True)
        (place / place.name).write_bytes(name)
    (root / "none").write_bytes(b"")
    (root / "one").write_bytes(b"1")
    os.link(root / "one", root / "d/second name")
    (root / "large").write_bytes(bytes(range(256)) * 8 * KB)
    with (root / "holes").open("wb") as file:
        file.truncate(900 * KB)
        file.seek(512 * KB)
        file.write(b"d" * 5000)
    for name, mode in (("read", 0o400), ("run", 0o755), ("set-id", 0o4711), ("no", 0)):
        (root / name).write_bytes(name.encode())
        (root / name).chmod(mode)
    os.setxattr(root / "one", "user.a", b"\0\n\xff")
    links = {"to file": "one", "to dir": "d", "out": "../../etc", "abs": "/no",
             "gone": "no\nwhere\udce9", "long": "/".join(["t" * 99] * 9)}  # fmt: skip
    for name, target in links.items():
        (root / name).symlink_to(target)
    for i, path in enumerate(sorted(root.rglob("*"), key=lambda path: -len(path.parts))):
        os.utime(path, ns=(0, TIMES[i % len(TIMES)] + 2 * i * NANO), follow_symlinks=False)
    (root / "d/closed").chmod(0o500)
    return root


def in_a_zip(found: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """What a zip file keeps of it: seconds, no owner, no attributes, no holes."""
    return {
        name: (content, ns // NANO, ftype, mode, {})
        for name, (content, ns, ftype, mode, *_) in found.items()
    }


def test_a_tree_comes_back_through_tar_and_zip(run: Run, tree: Path) -> None:
    whole = snapshot(tree)
    for command in (
        ["pack", tree, "a"], ["unpack", "--tar", "a.tar", "a"],
        ["pack", "a.tar", "b"], ["unpack", "--zip", "b.zip", "b"],
        ["pack", "b.zip", "c"], ["unpack", "-p", "c", "out"],
    ):  # fmt: skip
        done = run(*command)
        assert done.status == 0, (command, done.err)
        lossy = "--zip" in command
        assert bool(done.err) == lossy and done.err.count("\n") <= 1, done.err

    assert set(stored.facts("a")) == set(whole)
    assert run("diff", "-c", tree, "a").out == b""
    assert stored.facts("b") == stored.facts("a")  # a tar file keeps all of it
    assert stored.facts("a")["one"][6] == {b"user.a": b"\0\n\xff"}
    assert len(stored.facts("a")["holes"][7]) == 1 and stored.facts("a")["holes"][7][0][1] < 64 * KB

    seconds = {name: (*fact[:4], {}) for name, fact in in_a_zip(stored.facts("b")).items()}
    assert in_a_zip(stored.facts("c")) == seconds
    assert {fact[4:6] for fact in stored.facts("c").values()} == {(os.geteuid(), os.getegid())}
    # Hard links are files of their own: names and contents are equal, the inode is not.
    assert snapshot(Path("out"), second=True) == snapshot(tree, second=True)
    assert os.listxattr(Path("out/one")) == []
    assert os.stat("out/one").st_nlink == 1
    assert run("diff", "-c", "c", "out").out == b""
