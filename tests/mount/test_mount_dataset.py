"""A data set mounted like one container: names of several shards, generations, what is broken."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import data_sets
import pytest
from flips import flip
from mount_requests import Asker, info
from mounting import WINKFS, all_refused, command, mounted, refused, run, serving, soon, watched
from mounting import there as there  # a fixture
from openfiles import opened
from seam import disk_calls, refusing
from sources import assert_resumable, at, contents, dataset, listed, walk
from sources import sources_end as sources_end  # a fixture
from stored import make

import winkfs
from winkfs import FileType
from winkfs.container.container import Container
from winkfs.container.datafile import remove_files
from winkfs.dataset.compaction import compact
from winkfs.dataset.maintain import vacuum
from winkfs.dataset.snapshot import snapshot
from winkfs.mounting.dataset import DatasetSource

pytestmark = pytest.mark.in_memory

LINES = b"of the data set\n" * 100


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "set"


def one_after_another(*generations: list[dict[str, bytes]]) -> dict[str, bytes]:
    """What is seen after commits of these shards."""
    files = [item for shards in generations for shard in shards for item in shard.items()]
    return dict(files)


# --- names ---


@pytest.mark.slow
def test_names_of_many_shards_come_in_one_order(root: Path) -> None:
    """More than a batch in each, with what begins alike and is a prefix of another."""
    names = [f"d{i % 3}/{'x' * (i % 40)}{i % 700}" for i in range(6000)] + ["d0", "d1!", "d1-/z"]
    names = list(dict.fromkeys(names))
    shards = [{name: name.encode() for name in names[k::7]} for k in range(7)]
    data_sets.add(root, *shards)
    view = dataset(root)
    order = view.tree.overlay.order
    assert order.names(0, len(names)) == sorted(name.encode() for name in names)
    shown = walk(view)
    assert {name.encode() for name in names} - shown == {b"d0"}
    others = {b"d0/", b"d0/@file", b"d1/", b"d2/", b"d1-/"}
    assert shown - {name.encode() for name in names} == others
    assert view.tree.overlay.order.clashes == 1


def test_file_of_one_shard_is_in_the_directory_of_another(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_sets.add(root, {"a": b"1", "b/c": b"c"}, {"a/x": b"x", "b": b"2", "d": b"d"})
    with caplog.at_level(logging.WARNING):
        view = dataset(root)
    assert contents(view) == {
        b"a/@file": b"1", b"a/x": b"x", b"b/@file": b"2", b"b/c": b"c", b"d": b"d",
    }  # fmt: skip
    assert not caplog.text
    assert view.lookup(view.root, b"a").is_dir


def special(container: Container) -> None:
    container.put("private", b"p", mode=0o640, uid=3, gid=4, mtime_ns=5)
    container.put("d", b"", ftype=FileType.DIR, mode=0o2750, mtime_ns=7)
    container.put("d/link", b"../private", ftype=FileType.LINK, mtime_ns=9)
    container.put("d/run", b"#!", ftype=FileType.EXEC, mtime_ns=11)
    container.put("tagged", b"t")
    container.setxattrs("tagged", {b"user.colour": b"blue"})
    container.put("holes", b"end")
    container.write("holes", 3 << 20, b"end")


def test_attributes_links_directories_and_holes(root: Path) -> None:
    data_sets.commit(root, [lambda c: c.put("other", b"o"), special])
    view = dataset(root)
    private, folder = view.lookup(view.root, b"private"), view.lookup(view.root, b"d")
    assert (stat.S_IMODE(private.mode), private.uid, private.gid) == (0o640, 3, 4)
    assert (private.size, private.mtime_ns) == (1, 5)
    assert (stat.S_IMODE(folder.mode), folder.mtime_ns, folder.is_dir) == (0o2750, 7, True)
    assert view.readlink(at(view, "d/link")) == b"../private"
    assert stat.S_IMODE(view.lookup(folder.id, b"run").mode) == 0o755
    assert view.xattrs(at(view, "tagged")) == {b"user.colour": b"blue"}
    assert view.xattrs(folder.id) == {} == view.xattrs(view.root)
    holes = at(view, "holes")
    assert view.read(holes, 0, 1 << 30) == b"end" + bytes((3 << 20) - 3) + b"end"
    assert view.read(holes, (3 << 20) - 1, 3) == b"\0en" and view.read(holes, 4 << 20, 9) == b""
    assert view.seek(holes, 0, hole=True) == 3 and view.seek(holes, 3, hole=False) == 3 << 20
    assert view.seek(private.id, 0, hole=True) == 1 and view.seek(private.id, 0, hole=False) == 0
    facts = view.facts(private.id)
    assert facts["shard"].endswith("/00001-0") and facts["ftype"] == "f"
    walk(view)


def test_changes_are_refused(root: Path) -> None:
    data_sets.add(root, {"a": b"a"})
    asker, file = Asker(DatasetSource(str(root))), info(os.O_RDONLY)
    asker.open("/a", file)
    all_refused(
        errno.EROFS,
        lambda: asker.create("/n", 0o644, info()),
        lambda: asker.mkdir("/n", 0o755),
        lambda: asker.open("/a", info()),
        lambda: asker.write(None, b"x", 0, file),
        lambda: asker.unlink("/a"),
        lambda: asker.rename("/a", "/b"),
        lambda: asker.truncate("/a", 0),
        lambda: asker.chmod("/a", 0),
        lambda: asker.setxattr("/a", "user.x", b"", 0),
    )
    asker.release(None, file)
    asker.close()


def test_empty_data_set(root: Path) -> None:
    data_sets.commit(root, [])
    view = dataset(root)
    assert listed(view, view.root) == []
    assert not view.refresh()


# --- generations ---


def test_refresh_shows_the_next_generation(root: Path) -> None:
    data_sets.add(root, {"a": b"1", "d/b": b"1"}, {"c": b"1"})
    view, fixed = dataset(root), dataset(root, as_of=1)
    ids = {name: at(view, name) for name in ("a", "d/b", "c", "d")}
    data_sets.add(root, {"a": b"2", "d/e": b"2"})
    data_sets.delete(root, "c")
    assert not fixed.refresh() and contents(fixed) == {b"a": b"1", b"d/b": b"1", b"c": b"1"}
    assert view.refresh() and not view.refresh()
    assert contents(view) == {b"a": b"2", b"d/b": b"1", b"d/e": b"2"}
    assert (at(view, "d/b"), at(view, "d")) == (ids["d/b"], ids["d"])
    for name in "a", "c":
        with refused(errno.ESTALE):
            view.stat(ids[name])
    assert view.status()["generation"] == 3 and view.status()["bytes"] == 3


def test_file_replaced_while_it_is_open_stays_readable(root: Path) -> None:
    data_sets.add(root, {"a": b"first", "b": b"b"})
    view = dataset(root)
    id = at(view, "a")
    view.open(id, write=False, truncate=False)
    data_sets.add(root, {"a": b"second"})
    assert view.refresh()
    assert view.read(id, 0, 99) == b"first" and view.stat(id).size == 5
    assert view.read(at(view, "a"), 0, 99) == b"second"
    view.release(id)
    with refused(errno.ESTALE):
        view.read(id, 0, 99)


def compacted(root: Path) -> None:
    """Other containers hold the same files, the old ones are gone."""
    before = {shard.base for shard in snapshot(root).shards}
    compact(str(root), everything=True)
    vacuum(str(root), older_than=0)
    assert before.isdisjoint(shard.base for shard in snapshot(root).shards)
    assert not any(Path(base + ".data").exists() for base in before)


@pytest.mark.slow
def test_compaction_and_vacuum_under_a_mount(root: Path) -> None:
    files = {f"d/{i}": b"%d" % i for i in range(300)}
    data_sets.add(root, dict(list(files.items())[::2]), dict(list(files.items())[1::2]))
    view, other = dataset(root), dataset(root)
    id, later = at(view, "d/7"), at(view, "d/8")
    handle = view.opendir(at(view, "d"))
    half = view.readdir(handle, 0)
    first = [next(half).name for _ in range(100)]
    view.open(id, write=False, truncate=False)
    compacted(root)
    assert view.refresh()
    assert view.read(id, 0, 9) == b"7"
    names = first + [entry.name for entry in half]
    assert sorted(names) == sorted(name[2:].encode() for name in files)
    with refused(errno.ESTALE):
        view.read(later, 0, 9)
    assert contents(view) == {name.encode(): data for name, data in files.items()}
    assert view.read(at(view, "d/7"), 0, 9) == b"7" and at(view, "d/7") != id
    before = len(opened(root))
    view.release(id)
    view.releasedir(handle)
    assert len(opened(root)) < before  # the old shard is closed
    assert contents(other) == contents(view)  # never refreshed: what it has open stays readable


NOON = 1_795_176_000  # 2026-11-20 12:00 UTC


def test_files_of_all_shards_by_the_hour(root: Path) -> None:
    def at_times(files: Mapping[str, int]) -> Callable[[Container], None]:
        return lambda c: [c.put(name, b"x", mtime=NOON + s) for name, s in files.items()]  # type: ignore[return-value]

    long = "d" * 200 + "/" + "e" * 200
    data_sets.commit(root, [at_times({"before": -1, "a/b%": 0, "old": 5, "d/late": 3599})], ao=True)
    late = {"a/c": 7, long: 8, "old": 3600, "tomorrow": 86_400}
    data_sets.commit(root, [at_times(late)], ao=True)
    view = dataset(root, timedir=True)
    shown = {path for path in walk(view) if path.startswith(b".time/")}
    links = {path[6:] for path in shown if not path.endswith(b"/")}
    cut = next(path for path in links if len(path) > 200)
    assert links - {cut} == {
        b"2026-11-20/11/before", b"2026-11-20/12/a%2Fb%25", b"2026-11-20/12/d%2Flate",
        b"2026-11-20/12/a%2Fc", b"2026-11-20/13/old", b"2026-11-21/12/tomorrow",
    }  # fmt: skip
    for path in links:
        target = view.readlink(at(view, f".time/{path.decode()}"))
        assert at(view, target.removeprefix(b"../../../").decode()) > 0
    hour = at(view, ".time/2026-11-20/12")
    assert len(assert_resumable(view, hour)) == 4
    data_sets.commit(root, [at_times({"much later": 10 * 86_400})])
    assert view.refresh() and len(listed(view, at(view, ".time"))) == 3


# --- what is broken ---


@pytest.fixture
def three(root: Path) -> str:
    """Make a data set of three shards -> the base of that in the middle."""
    data_sets.add(root, {"a/1": b"a1"}, {"b": b"b" * 50, "a/2": b"a2", "e": b""}, {"c": b"c"})
    DatasetSource(str(root)).close()  # hidden rows are known from now on
    return snapshot(root).shards[1].base


def test_lost_shard_costs_its_files_and_no_others(
    root: Path, three: str, caplog: pytest.LogCaptureFixture
) -> None:
    remove_files(three)
    assert contents(dataset(root)) == {b"a/1": b"a1", b"c": b"c"}
    assert "3 files are not shown" in caplog.text


def test_an_unreadable_catalog_is_closed_and_rebuilt_from_inodes(root: Path, three: str) -> None:
    with disk_calls(refusing("read", ".cat")) as calls:
        view = dataset(root)
    assert any(call.verb == "read" and call.path.endswith(".cat") for call in calls)
    assert contents(view) == {b"a/1": b"a1", b"a/2": b"a2", b"b": b"b" * 50, b"c": b"c", b"e": b""}
    view.close()
    assert opened(root) == []


def test_another_container_in_the_place_of_a_shard_is_not_read(root: Path, three: str) -> None:
    remove_files(three)
    make(three, [("b", b"x" * 50), ("a/2", b"xx"), ("e", b"")])
    view = dataset(root)
    if b"b" in walk(view):  # or it is not shown at all
        with refused(errno.EIO):
            view.read(at(view, "b"), 0, 99)
    assert view.read(at(view, "c"), 0, 9) == b"c"


# --- through the kernel ---


def plain(tree: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    return tree


def stamped(files: Mapping[str, bytes]) -> Callable[[Container], None]:
    def fill(container: Container) -> None:
        for name, data in files.items():
            container.put(name, data, mtime_ns=1_700_000_000_123_456_789)

    return fill


ODD = ["sp ace", "new\nline", "ünï/cöde", "50%", "back\\slash", "b\udcff\udc80d", "-rf", ".dot/.a"]


@pytest.mark.mount
def test_tools_see_what_they_see_in_a_directory(root: Path, tmp_path: Path) -> None:
    old = {f"d{i % 4}/s{i % 3}/{i}.txt": b"%d\n" % i + LINES for i in range(200)}
    new = {f"d{i % 4}/s{i % 3}/{i}.txt": b"%d new\n" % i for i in range(0, 200, 3)}
    odd = {name: name.encode("utf-8", "surrogateescape") for name in ODD}
    big = {"big": bytes(range(256)) * 10_000, "empty": b""}
    old_halves = [dict(list(old.items())[k::2]) for k in range(2)]
    data_sets.commit(root, map(stamped, old_halves))
    data_sets.commit(root, map(stamped, [odd, new | big]))
    data_sets.delete(root, "d1/s1/1.txt", "d3/s0/3.txt")
    expected = old | odd | new | big
    del expected["d1/s1/1.txt"], expected["d3/s0/3.txt"]
    tree, copy = plain(tmp_path / "tree", expected), tmp_path / "copy"
    with mounted(root, "--ro") as there:
        run("diff", "-r", "--no-dereference", there, tree)
        find = ["find", ".", "-type", "f", "-printf", "%P %s %m %T@\\0"]
        assert sorted(run(*find, cwd=there).split("\0")) == sorted(run(*find, cwd=tree).split("\0"))
        assert run("cat", "d0/s0/0.txt", cwd=there) == "0 new\n"
        grep = ["grep", "-r", "-l", "--null", "new"]
        assert sorted(run(*grep, cwd=there).split("\0")) == sorted(run(*grep, cwd=tree).split("\0"))
        run("cp", "-a", there, copy)
        with refused(errno.EROFS):
            (there / "more").write_bytes(b"")
    for path in tree.rglob("*"):  # implied directories have the time of the generation
        if path.is_file():
            assert path.stat().st_mtime_ns == (copy / path.relative_to(tree)).stat().st_mtime_ns
    run("diff", "-r", copy, tree)


@pytest.mark.mount
def test_a_data_set_mount_reports_that_it_is_read_only(root: Path, there: Path) -> None:
    data_sets.add(root, {"a": b"a"})
    folder = str(root) + "/"
    assert command("mount", folder, there) == (0, f"{root}: a data set: mounted read-only")
    with watched(there):
        done = subprocess.run([*WINKFS, "info", "--json", there], capture_output=True, check=True)
        answer = json.loads(done.stdout)
        assert (answer["base"], answer["variant"], answer["generation"]) == (
            str(root),
            "data set",
            1,
        )
        assert (answer["mode"], answer["files"], answer["shards"]) == ("ro", 1, 1)
        assert str(root) in run(*WINKFS, "mounts")
        assert "generation" in run(*WINKFS, "info", there)
        assert command("umount", there) == (0, "")


@pytest.mark.mount
def test_mount_as_of_an_earlier_generation_or_time(root: Path) -> None:
    data_sets.add(root, {"a": b"1"})
    between = time.time()
    data_sets.add(root, {"a": b"2", "b": b"2"})
    with mounted(root, "--as-of", "1") as there:
        assert (there / "a").read_bytes() == b"1" and os.listdir(there) == ["a"]
    then = datetime.fromtimestamp(between, UTC).isoformat()
    with mounted(root, "-o", f"ro,as_of={then}") as there:
        assert (there / "a").read_bytes() == b"1"


@pytest.mark.mount
def test_an_impossible_mount_is_refused_in_one_line(
    root: Path, there: Path, tmp_path: Path
) -> None:
    data_sets.add(root, {"a": b"1"})
    with winkfs.create(tmp_path / "c"):
        pass
    for arguments, complaint in {
        (str(root), "--as-of", "7"): "there is no generation 7: the newest is 1",
        (str(root), "--as-of", "soon"): "'soon' is no generation and no time",
        (str(root), "--as-of", "1", "--follow"): "follow and as_of exclude each other",
        (str(tmp_path / "c"), "--as-of", "1"): "as_of is for data sets",
    }.items():
        status, answer = command("mount", arguments[0], there, *arguments[1:])
        assert status != 0 and complaint in answer and "\n" not in answer, answer
    status, answer = command("mount", root, root)
    assert status == 1 and "which it would hide" in answer


def status(there: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(os.getxattr(there, "user.winkfs.status"))
    return found


@pytest.mark.mount
def test_follow_shows_generations_and_keeps_open_files(root: Path) -> None:
    files = {f"d/{i}": b"%d" % i for i in range(20)} | {"big": bytes(1 << 20)}
    data_sets.add(root, files)
    with mounted(root, "--ro", "--follow") as there:
        with (there / "big").open("rb", buffering=0) as big:
            assert big.read(1) == b"\0"
            data_sets.add(root, {"d/new": b"new", "d/3": b"three"})
            soon(lambda: (there / "d/new").exists())
            soon(lambda: (there / "d/3").read_bytes() == b"three")
            compacted(root)
            newest = snapshot(root).generation
            soon(lambda: status(there)["generation"] == newest)
            assert sum(map(len, iter(lambda: big.read(1 << 16), b""))) == (1 << 20) - 1
        assert (there / "d/4").read_bytes() == b"4"
        assert len(os.listdir(there / "d")) == 21


@pytest.mark.mount
def test_a_damaged_file_raises_alone_and_is_logged(root: Path, there: Path) -> None:
    data_sets.add(root, {"a": b"good", "b": b"damaged" * 20}, {"c": b"good"})
    data = next(root.glob("*/00000-0.data"))
    flip(data, data.read_bytes().index(b"damaged" * 20) + 9, bits=4)
    with serving([*WINKFS, "mount", "-f", "--ro", root, there], there) as server:
        with refused(errno.EIO):
            (there / "b").read_bytes()
        assert (there / "a").read_bytes() == (there / "c").read_bytes() == b"good"
        assert server.stderr is not None
        os.set_blocking(server.stderr.fileno(), False)
        assert str(data) in server.stderr.read()
