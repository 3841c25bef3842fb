"""What is damaged or missing is said, and counts: by the commands, and by the Python API."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import stored
from commands import Run
from folders import unchanged

import winkfs
from winkfs import DamageWarning
from winkfs.dataset.dataset import create as create_dataset

pytestmark = pytest.mark.slow

FILES = 20
HIT = 7  # the number of the file whose inode is damaged


def make(path: str = "d") -> None:
    with winkfs.create(path) as c:
        for i in range(FILES):
            c.put(f"f{i:02}", b"%d\n" % i, mtime=i)
        c.put("link", b"f01", ftype=winkfs.FileType.LINK, mtime=99)


def flip_inode(path: str, name: bytes) -> int:
    """Damage the inode of a file -> its position."""
    return stored.flip_text(path, name + b"/I0", 17) - 20


def inode_with_index() -> str:
    make()
    os.unlink("d.cat")  # or nobody asks the inode to list the file
    return f"at byte {flip_inode('d.data', b'f%02d' % HIT)}"


def inode_without_index() -> str:
    where = inode_with_index()
    os.unlink("d.idx")
    return where


def cut_with_index() -> str:
    make()
    os.truncate("d.data", 10_000)
    return "d.data: cut short, only "


def cut_without_index() -> str:
    where = cut_with_index()
    os.unlink("d.idx")
    return where


STATES = [inode_with_index, inode_without_index, cut_with_index, cut_without_index]


@pytest.fixture(params=STATES, ids=lambda state: state.__name__)
def damaged(request: pytest.FixtureRequest, run: Run) -> str:
    """A damaged container d -> what a message must have."""
    make_state: Callable[[], str] = request.param
    return make_state()


@pytest.mark.few
@pytest.mark.parametrize(
    "args",
    [["ls", "d"], ["ls", "d", "-l"], ["ls", "d", "--json"], ["ls", "d", "f*"], ["cat", "d", "*"]],
    ids=" ".join,
)
def test_other_files_are_printed_beside_damage_with_status_1(
    run: Run, damaged: str, args: list[str]
) -> None:
    done = run(*args)
    assert done.status == 1
    assert damaged in done.err
    assert all(line.startswith("winkfs: ") for line in done.err.splitlines()), done.err
    lines = done.out.count(b"\n")
    if "cut" in damaged:
        assert 0 < lines < FILES
    else:
        assert lines == FILES - 1 + ("ls" in args and "f*" not in args)


@pytest.mark.parametrize("damage", [inode_without_index, cut_with_index], ids=lambda d: d.__name__)
@pytest.mark.parametrize("args", [["stat", "d", "f01"], ["ls", "d", "f01"], ["cat", "d", "f01"]])
def test_a_whole_file_is_printed_and_the_damage_reported(
    run: Run, damage: Callable[[], str], args: list[str]
) -> None:
    where = damage()
    done = run(*args)
    assert done.status == 1 and done.out and where in done.err


@pytest.mark.parametrize("args", [["cat"], ["rm"]])
def test_a_damaged_name_among_others_is_named(run: Run, args: list[str]) -> None:
    where = inode_with_index()
    done = run(*args, "d", "f01", f"f{HIT:02}", "f02")
    assert done.status == 1 and where in done.err and f"f{HIT:02}: " in done.err
    if args == ["cat"]:
        assert done.out == b"1\n2\n"
    else:
        with winkfs.open("d") as c:
            assert "f01" not in c and "f02" not in c and "f03" in c


def test_damaged_content_of_a_file_among_others(run: Run) -> None:
    make()
    stored.flip_text("d.data", b"\x021\n", 1)  # after its length
    done = run("cat", "d", "f0*")
    assert done.status == 1 and done.err.count("\n") == 1 and "f01: " in done.err
    assert done.out == b"0\n" + b"".join(b"%d\n" % i for i in range(2, 10))


def test_ls_answers_from_the_catalog_and_reads_report_damage(run: Run) -> None:
    make()
    assert run("ls", "-l", "d")[0] == 0
    whole = run("ls", "--json", "d")
    where = f" at byte {flip_inode('d.data', b'f%02d' % HIT)}"
    assert run("ls", "--json", "d") == whole
    for args in (["stat", "d", f"f{HIT:02d}"], ["cat", "d", f"f{HIT:02d}"], ["unpack", "d", "out"],
                 ["ls", "d", f"f{HIT:02d}"]):  # fmt: skip
        status, _, answer = run(*args)
        assert status == 1 and where in answer, args
    status, out, answer = run("verify", "d")
    assert status == 1 and where in out.decode() + answer
    os.unlink("d.cat")
    status, out, answer = run("ls", "d")
    assert status == 1 and where in answer and out.count(b"\n") == FILES


def test_a_damaged_link_is_listed_without_its_target(run: Run) -> None:
    make()
    data = bytearray(Path("d.data").read_bytes())
    data[data.rindex(b"f01", 0, data.index(b"link/I0"))] ^= 1
    Path("d.data").write_bytes(data)
    done = run("ls", "d", "-l")
    assert done.status == 1 and "link: " in done.err
    assert done.out.count(b"\n") == FILES + 1


def test_reindex_reports_what_it_left_out(run: Run) -> None:
    where = inode_with_index()
    done = run("reindex", "d")
    assert (done.status, done.out) == (1, b"%d files indexed\n" % FILES)
    assert where in done.err and done.err.count("\n") == 1
    os.unlink("d.idx")
    done = run("reindex", "d", "--json")
    record = json.loads(done.out)
    assert done.status == 1 and record["files"] == FILES
    assert len(record["problems"]) == 1 and where in record["problems"][0]


@pytest.mark.parametrize("verb", ["reindex", "put"])
def test_files_left_out_of_an_index_are_reported_ever_after(run: Run, verb: str) -> None:
    inode_without_index()
    run(*(("reindex", "d") if verb == "reindex" else ("put", "d", "new", __file__)))
    for command in (("ls", "d"), ("cat", "d", "f01"), ("info", "d"), ("unpack", "d", "out")):
        done = run(*command)
        assert done.status == 1, command
        assert "in 1 damaged places are not in its index" in done.err
    run("repair", "d", "--apply")
    assert run("ls", "d").status == 0


def test_reindex_from_python_warns_or_notes(run: Run) -> None:
    inode_with_index()
    with pytest.warns(DamageWarning, match="at byte"):
        assert winkfs.reindex("d") == FILES
    reported: list[str] = []
    assert winkfs.reindex("d", problem=reported.append) == FILES
    assert len(reported) == 1


def test_reindex_of_a_cut_file_names_the_remedy(run: Run) -> None:
    cut_with_index()
    done = run("reindex", "d")
    assert done.status == 1 and done.err.count("\n") == 1
    assert "winkfs repair" in done.err and "copy" in done.err


@pytest.mark.parametrize("damage", [cut_with_index, cut_without_index])
def test_info_of_a_cut_file(run: Run, damage: Callable[[], str]) -> None:
    where = damage()
    done = run("info", "d")
    assert done.status == 1 and where in done.err and b"problems" not in done.out
    done = run("info", "d", "--json")
    assert done.status == 1 and where in json.loads(done.out)["problems"][0]
    done = run("info", "./d.data")
    assert done.status == 1 and "cut short" in done.err


@pytest.mark.parametrize("damage", [cut_with_index, cut_without_index])
def test_verify_of_a_cut_file_counts_what_is_there(run: Run, damage: Callable[[], str]) -> None:
    damage()
    done = run("verify", "d", "--json")
    record = json.loads(done.out)
    assert done.status == 1 and record["problems"]
    with pytest.warns(DamageWarning):
        c = winkfs.open("d")
    with c:
        assert record["files"] == len(c) > 0


def test_opening_damage_warns_once_at_the_caller_s_line(run: Run, damaged: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with winkfs.open("d") as c:
            read = c.read("f00")
            names = list(c.names(problem=lambda error: None))
            problems = c.problems
            assert c.notes == problems
    assert read == b"0\n" and len(names) < FILES + 1
    if os.path.exists("d.idx") and "cut" not in damaged:
        assert (caught, problems) == ([], [])  # known only when it is met
        return
    assert [w.category for w in caught] == [DamageWarning]
    assert caught[0].filename == __file__
    assert "damaged" in str(caught[0].message) and problems[0] in str(caught[0].message)
    assert any(damaged in problem for problem in problems)


@pytest.mark.parametrize(
    "args",
    [
        ["ls", "d"],
        ["info", "d"],
        ["reindex", "d"],
        ["verify", "d"],
        ["stat", "d", "f01"],
    ],
)
def test_a_sound_container_has_no_problems(run: Run, args: list[str]) -> None:
    make()
    with winkfs.open("d") as c:
        assert c.problems == []
    done = run(*args)
    assert (done.status, done.err) == (0, "")


def test_a_damaged_shard_is_reported_when_it_is_reached(run: Run) -> None:
    with create_dataset("s") as dataset:
        for name in ("a", "b", "c"):
            dataset.put(name, name.encode())
        dataset.put("other", b"1")
        dataset.sync()
        shard = dataset.shards[0].base
    where = f"at byte {flip_inode(shard + '.data', b'b')}"
    os.unlink(shard + ".idx")
    with winkfs.open("s") as dataset, pytest.warns(DamageWarning) as caught:
        assert dataset.problems == []
        assert dataset.read("a") == b"a" and dataset.read("c") == b"c"
        assert len(dataset.problems) == 1 and where in dataset.problems[0]
    assert len(caught) == 1 and caught[0].filename == __file__
    done = run("ls", "s")
    assert done.status == 1 and where in done.err and done.out == b"a\nb\nc\nother\n"
    done = run("cat", "s", "a")
    assert done.status == 1 and where in done.err and done.out == b"a"
    done = run("reindex", "s")
    assert done.status == 1 and where in done.err


def test_a_warning_made_an_error_leaves_nothing_open(run: Run) -> None:
    """A ResourceWarning would come, and be an error too."""
    cut_with_index()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DamageWarning):
            winkfs.open("d")
        gc.collect()


def test_rollback_of_a_synced_container_changes_nothing(run: Run) -> None:
    stored.make("c", {"a": b"content"})
    with unchanged(Path("c.data")):
        assert run("rollback", "c") == (0, b"c: nothing was written after the last sync\n", "")
