"""The commands cp and split: options, messages, exit statuses, and what is there after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import stored
from commands import PROGRAM, Done, Run, listed, one_line
from flips import flip

import winkfs

pytestmark = pytest.mark.slow

NOTHING = Done(0, b"", "")


def test_files_are_copied_with_all_that_they_have(run: Run, base: str) -> None:
    assert run("cp", base, "d") == NOTHING
    assert run("diff", "-c", base, "d") == NOTHING
    assert run("cp", base, "d", "-v") == NOTHING  # nothing is left to do
    assert winkfs.verify("d").problems == []


def test_what_would_be_done_is_printed_and_nothing_is_changed(run: Run, base: str) -> None:
    stored.make("d", {"run.sh": b"other", "more": b"1"})
    before = Path("d.data").read_bytes()
    out = listed(run("cp", base, "d", "-n", "--include", "docs", "--include", "run.sh"))
    assert out == ["+ docs", "+ docs/a.html", "+ docs/old/b.html", "M run.sh"]
    assert Path("d.data").read_bytes() == before
    assert run("cp", base, "new", "-n").out.count(b"+ ") == 7
    assert not Path("new.data").exists()
    assert listed(run("cp", base, "d", "-v", "--exclude", "*")) == []
    done = run("cp", base, "d", "--prefix", "in/", "--include", "docs", "--json")
    record = json.loads(done.out)
    assert (done.status, record["files"], record["directories"], record["failed"]) == (0, 2, 1, 0)
    assert record["sources"] == [base] and record["out"] == "d" and record["problems"] == []
    assert listed(run("ls", "d", "in/*")) == ["in/docs", "in/docs/a.html", "in/docs/old/b.html"]


def test_the_last_source_replaces_and_no_clobber_keeps(run: Run) -> None:
    stored.make("a", {"x": b"a", "y": b"a"})
    stored.make("b", {"x": b"b"})
    stored.make("d", {"y": b"d"})
    assert run("cp", "a", "b", "c") == NOTHING
    assert stored.files("c") == {"x": b"b", "y": b"a"}
    assert run("cp", "a", "b", "d", "--no-clobber") == NOTHING
    assert stored.files("d") == {"x": b"a", "y": b"d"}


def test_names_are_taken_from_a_list(run: Run, base: str) -> None:
    done = run("cp", base, "d", "--files-from", "-", stdin=b"./link\0run.sh\0gone\0")
    assert (done.status, done.out) == (1, b"")
    assert "gone: no source has a file of this name" in done.err
    assert listed(run("ls", "d")) == ["link", "run.sh"]


def test_damaged_files_cost_themselves(run: Run) -> None:
    stored.make("a", {f"f{i}": bytes(100) for i in range(50)})
    with winkfs.open("a") as a:
        flip("a.data", a.extents("f7")[0].pointer + 20)  # type: ignore[attr-defined]
    done = run("cp", "a", "b")
    assert (done.status, done.out) == (1, b"")
    assert done.err.startswith("winkfs: f7: ") and done.err.count("\n") == 1
    assert len(stored.files("b")) == 49
    done = run("split", "a", "s", "--files", "30")
    assert done.status == 1 and done.err.startswith("winkfs: f7: ")
    assert "s-0: it lacks 1 damaged files" in run("split", "a", "s", "--files", "30").err


@pytest.mark.parametrize(
    ("args", "status", "what"),
    [
        (["cp", "c"], 2, "name one source"),
        (["cp", "c", "c"], 1, "is a source, too"),
        (["cp", "c", "./c"], 1, "is a source, too"),
        (["cp", "q", "d"], 1, "only containers and data sets"),
        (["cp", "no", "d"], 1, "no"),
        (["cp", "c", "tree"], 1, "is a directory: `unpack`"),
        (["cp", "c", "d/"], 1, "a name at its end"),
        (["cp", "c", "d", "--where", "x ="], 1, ""),
        (["split", "c", "d"], 2, "give one of"),
        (["split", "c", "d", "--files", "1", "--depth", "1"], 2, "give one of"),
        (["split", "c", "d", "--by", "lang"], 1, "no column"),
        (["split", "c", "d/", "--files", "1"], 1, "name the containers"),
        (["split", "c", "tree", "--shards", "2"], 1, "is there already"),
    ],
)
def test_wrong_calls_have_one_line(
    run: Run, base: str, args: list[str], status: int, what: str
) -> None:
    Path("tree").mkdir()
    assert run("queue", "create", "q").status == 0
    before = sorted(os.listdir())
    assert what in one_line(run(*args), status)
    assert sorted(os.listdir()) == before


def test_split_makes_containers_and_goes_on(run: Run, base: str) -> None:
    assert listed(run("split", base, "p", "--files", "3", "-v")) == ["p-0", "p-1", "p-2"]
    os.unlink("p-1.data")
    assert listed(run("split", base, "p", "--files", "3", "-v")) == ["p-1"]
    assert "not made by this split" in one_line(run("split", base, "p", "--files", "4"))
    assert run("cp", "p-0", "p-1", "p-2", "whole") == NOTHING
    assert run("diff", "-c", base, "whole") == NOTHING
    assert run("split", base, "set", "--shards", "2") == NOTHING
    assert run("diff", "-c", base, "set") == NOTHING
    record = json.loads(run("split", base, "set", "--shards", "2", "--json").out)
    assert (record["files"], record["unchanged"], record["made"]) == (0, 7, [])


def test_a_value_is_never_taken_for_a_file_of_another_container(run: Run) -> None:
    with winkfs.create("c", columns={"v": "string"}) as c:
        for value in ("x.partial", "x", "x.data"):
            c.put(value, value.encode())
            c.setcolumns(value, {"v": value})
    names = ["s-x%2Epartial", "s-x", "s-x%2Edata"]
    assert listed(run("split", "c", "s", "--by", "v", "-v")) == names
    assert [stored.names(name) for name in names] == [["x.partial"], ["x"], ["x.data"]]
    os.unlink("s-x%2Edata.data")
    assert listed(run("split", "c", "s", "--by", "v", "-v")) == names[2:]


@pytest.mark.parametrize("rule", ["--files", "--shards"])
def test_split_reports_files_that_no_index_has(run: Run, rule: str) -> None:
    stored.make("a", {f"f{i}": b"%d" % i for i in range(50)})
    stored.flip_text("a.data", b"f7/I0", 25)
    for suffix in (".idx", ".cat"):
        Path("a").with_suffix(suffix).unlink(missing_ok=True)
    assert "bad entry" in one_line(run("split", "a", "s", rule, "30"))


@pytest.mark.parametrize("command", ["cp a b", "split a b --files 100", "sync a b"])
def test_what_is_left_of_a_source_that_was_cut_is_copied(run: Run, command: str) -> None:
    stored.make("a", {f"f{i}": b"%d" % i * 100 for i in range(50)})
    os.truncate("a.data", os.path.getsize("a.data") - 3000)
    done = run(*command.split())
    assert done.status == 1 and "a.data: cut short" in done.err
    listed = run("ls", "a").out.decode().split()
    assert 30 < len(listed) < 50
    assert stored.names("b-0" if command.startswith("split") else "b") == sorted(listed)


def test_a_damaged_file_of_the_target_is_replaced(run: Run) -> None:
    for base in ("a", "b"):
        stored.make(base, [("f", b"content of f", 1000), ("g", b"g", 1000)])
    stored.flip_text("b.data", b"content of f")
    done = run("cp", "a", "b", "--json")
    assert done.status == 1 and json.loads(done.out)["files"] == 1
    assert stored.read("b", "f") == b"content of f"
    assert run("cp", "a", "b") == NOTHING


def test_odd_names_come_through(run: Run) -> None:
    names = [b"a\nb", b"\x1b[31m", b"\xff\xfe", b"*[?", b"n" * 255, b"/x", b".."]
    stored.make("a", {name: name for name in names})
    assert run("cp", "a", "b", "-v").out == b"".join(b"+ %b\n" % name for name in sorted(names))
    assert run("diff", "-c", "a", "b") == NOTHING
    stored.make("c", {name + b"/x": name for name in names if len(name) < 255})
    assert run("split", "c", "d", "--depth", "1") == NOTHING
    assert {path.name for path in Path().glob("d-*.data")} == {
        "d-...data", "d-_top.data", "d-%FF%FE.data", "d-%1B%5B31m.data", "d-%2A%5B%3F.data",
        "d-a%0Ab.data",
    }  # fmt: skip


def test_split_by_directories_keeps_files_at_the_top_together(run: Run) -> None:
    stored.make("a", dict.fromkeys(("t1", "a/x", "a/b/c/y", "a/b/d/z", "t2", "q/w"), b"1"))
    for depth, groups in (
        ("1", {"a": ["a", "a/b/c/y", "a/b/d/z", "a/x"], "q": ["q/w"]}),
        ("2", {"a": ["a", "a/x"], "a%2Fb": ["a/b/c/y", "a/b/d/z"], "q": ["q/w"]}),
    ):
        with winkfs.open("a", "a") as c:
            c.put("a", b"", ftype=winkfs.FileType.DIR)
        assert run("split", "a", f"d{depth}", "--depth", depth) == NOTHING
        groups["_top"] = ["t1", "t2"]
        assert {value: stored.names(f"d{depth}-{value}") for value in groups} == groups
        assert len(list(Path().glob(f"d{depth}-*.data"))) == len(groups)


def kill_after(args: list[str], seconds: float) -> int:
    """Run a command, and kill it after a time -> its status."""
    with subprocess.Popen([*PROGRAM, *args], stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        return process.wait()


def test_a_kill_leaves_nothing_and_the_next_run_finishes(run: Run) -> None:
    stored.make("a", ((f"d{i % 50}/f{i:06}", b"%d" % i * 100) for i in range(20_000)))
    hit = 0
    for number, args in enumerate([
        ["cp", "a", "out"], ["split", "a", "out", "--shards", "2"],
        ["split", "a", "out", "--files", "7000"],
    ]):  # fmt: skip
        began = time.monotonic()
        assert run(*args) == NOTHING
        took = time.monotonic() - began
        for share in (0.5,):
            for path in Path().glob("out*"):
                subprocess.run(["rm", "-r", path], check=True)
            hit += kill_after(args, 0.3 + share * took) < 0
            for found in Path().glob("out*.data"):
                if ".partial" not in found.name:
                    assert winkfs.verify(found).problems == []
            if number == 1 and Path("out").exists():
                assert len(stored.files("out")) == 20_000
            assert run(*args) == NOTHING
        made = sorted({path.stem for path in Path().glob("out*.data")}) or ["out"]
        assert not any(".partial" in path.name for path in Path().glob("out*"))
        assert sum(len(stored.names(one)) for one in made) == 20_000
        for path in Path().glob("out*"):
            subprocess.run(["rm", "-r", path], check=True)
    assert hit > 0
