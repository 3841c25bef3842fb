"""The command line on data sets: the commands for containers, `dataset`, and `pack --shards`."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import data_sets
import pytest
import stored
from commands import PROGRAM, Run, listed, one_line, session
from constants import shrink
from interrupts import Interrupter
from private import packages

import winkfs
from winkfs.dataset import packing

pytestmark = pytest.mark.slow


@pytest.fixture
def root(run: Run) -> str:
    """Two generations: a, docs/b, docs/c; then docs/c again, and a deleted."""
    assert run("dataset", "create", "ds") == (0, b"", "")
    data_sets.add("ds", {"a": b"1", "docs/b": b"2", "docs/c": b"3"})
    with winkfs.open("ds", "a") as opened:
        opened.put("docs/c", b"33", mtime=1000)
        opened.delete("a")
    return "ds"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("ls ds", ["docs/b", "docs/c"]), ("ls ds --until 2000", ["docs/c"]),
        ("cat ds docs/*", ["233"]), ("ls ds --as-of 1", ["a", "docs/b", "docs/c"]),
        ("cat ds/ docs/c --as-of 1", ["3"]),
    ],
)  # fmt: skip
def test_files_are_shown_as_of_a_container(
    run: Run, root: str, command: str, lines: list[str]
) -> None:
    assert sorted(listed(run(*command.split()))) == lines


def test_files_are_taken_out_as_of_a_container(run: Run, root: str) -> None:
    assert json.loads(run("stat", "--json", root, "docs/c").out)["size"] == 2
    assert run("unpack", root, "out").status == 0
    assert Path("out/docs/c").read_bytes() == b"33"
    assert run("unpack", root, "old", "--as-of", "1").status == 0
    assert sorted(os.listdir("old")) == ["a", "docs"]


def test_changes_are_generations(run: Run, root: str) -> None:
    assert run("put", root, "new", stdin=b"content") == (0, b"", "")
    session(run, f"$ rm {root} docs/b\n$ mv {root} docs texts\n")
    assert sorted(listed(run("ls", root))) == ["new", "texts/c"]
    assert json.loads(run("info", "--json", root).out)["generation"] == 5
    assert "whole files only" in one_line(run("append", root, "new", stdin=b"more"))
    session(run, f"$ verify {root}\n...\n$ reindex {root}\n2 files indexed\n")


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["cat", "ds", "nothing"], "no such file in the data set"),
        (["ls", "ds", "--as-of", "9"], "the newest is 2"),
        (["ls", "ds", "--as-of", "soon"], "no generation and no time"),
        (["ls", "c", "--as-of", "1"], "as_of is for data sets"),
        (["dataset", "history", "nowhere"], "no such data set"),
        (["dataset", "compact", "c"], "no such data set"),
        (["dataset", "create", "c"], "c: is a single container"),
        (["dataset", "create", "tree"], "tree: is a folder with other things in it"),
        (["dataset", "create", "c.data"], "c.data: is a single container"),
        (["dataset", "add", "ds", "nowhere"], "no such container"),
        (["compact", "ds"], "ds: compact is for containers, and this is a data set: see winkfs"),
        (["rollback", "ds"], "ds: rollback is for containers"),
        (["repair", "nowhere"], "nowhere: no such container"),
        (["pack", "nowhere", "new", "--shards", "2"], "no such directory or archive"),
        (["pack", ".", "ds", "--shards", "2"], "--update"),
        (["pack", ".", "no/where", "--shards", "2"], "make it first"),
    ],
)
def test_what_goes_wrong_is_one_line(run: Run, root: str, command: list[str], what: str) -> None:
    winkfs.create("c").close()
    Path("tree/x").mkdir(parents=True)
    assert what in one_line(run(*command))
    assert sorted(os.listdir("ds/_pending")) == []


def test_compact_history_and_vacuum(run: Run, root: str) -> None:
    before = run("cat", root, "*").out
    session(
        run,
        f"""
        $ dataset compact {root}
        ...2 shards...
        $ dataset compact {root}
        nothing to do
        """,
    )
    assert run("cat", root, "*").out == before
    done = json.loads(run("dataset", "rebalance", root, "--shards", "2", "--json").out)
    assert done["removed"] == 1
    lines = [json.loads(line) for line in listed(run("dataset", "history", root, "--json"))]
    assert [line["operation"] for line in lines] == [
        "rebalance", "compact", "append", "append", "create",
    ]  # fmt: skip
    assert len(listed(run("dataset", "history", root))) == 5
    would = json.loads(run("dataset", "vacuum", root, "--older-than=0", "--dry-run", "--json").out)
    did = json.loads(run("dataset", "vacuum", root, "--older-than=0s", "--json").out)
    assert would | {"dry_run": False} == did
    assert len(did["shards"]) == 3
    assert "vacuumed" in one_line(run("ls", root, "--as-of", "1"))
    assert run("cat", root, "*").out == before
    assert run("verify", root).status == 0


def test_compact_prints_what_it_would_save(run: Run, root: str) -> None:
    plan = "...2 shards of ...would become about 1 of..."
    session(run, f"$ dataset compact {root} --dry-run\n{plan}\n")
    reported = json.loads(run("dataset", "compact", root, "--dry-run", "--json").out)
    did = json.loads(run("dataset", "compact", root, "--json").out)
    assert (reported["dry_run"], did["dry_run"]) == (True, False)
    assert reported["bytes_before"] == did["bytes_before"] > did["bytes_after"] > 0
    assert reported["generation"] == did["generation"] - 1
    assert b"nothing to do" in run("dataset", "compact", root, "--dry-run").out


def test_add_copies_containers(run: Run, root: str) -> None:
    for n, settings in enumerate(({}, {"ao": True}, {"classic": True})):
        stored.make(f"c{n}", {"same": b"%d" % n, f"own{n}": b"x"}, **settings)
    assert run("dataset", "add", root, "c0", "c1", "c2.data").status == 0
    assert run("cat", root, "same", "own0", "own1", "own2").out == b"2xxx"
    with winkfs.open("c0", "a") as container:  # the copy is another
        container.put("same", b"changed")
    assert run("cat", root, "same").out == b"2"
    assert run("verify", root).status == 0
    assert "is a shard of the data set already" in one_line(run("dataset", "add", root, "c0"))
    winkfs.create("c3").close()
    with winkfs.create("c4"):
        assert "another writer" in one_line(run("dataset", "add", root, "c3", "c4"))
    assert os.listdir(f"{root}/_pending") == []


def test_verify_notes_files_that_no_manifest_names(run: Run, root: str) -> None:
    from winkfs.dataset.transaction import begin

    job = begin(root)
    done = run("verify", root)
    assert done.status == 0
    assert job.job in done.err


# --- pack ---


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "tree"
    for n in range(40):
        path = top / f"d{n % 7}" / f"{n}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % n * (1 + 60 * n))
        os.utime(path, (1000 + n, 1000 + n))
    (top / "large").write_bytes(os.urandom(3_000_000))
    (top / "link").symlink_to("d1/1.txt")
    (top / "d1" / "1.txt").chmod(0o755)
    (top / "empty").touch()
    return top


def same_trees(one: Path, other: Path) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", one, other], capture_output=True)
    assert done.stdout + done.stderr == b""


@pytest.fixture
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether each shard of little is packed by a process of its own."""
    shrink(monkeypatch, "pack", parallel=0 if request.param else 1 << 60)


@pytest.mark.few(3)
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("shards", "processes"),
    [(1, True), (3, True), (3, False), (200, False)],
    indirect=["processes"],
)
@pytest.mark.parametrize("ao", [False, True])
def test_packed_directory_comes_back(run: Run, tree: Path, shards: int, ao: bool) -> None:
    done = run("pack", tree, "new", "--shards", shards, "--json", *["--ao"] * ao)
    assert done.status == 0
    assert json.loads(done.out)["files"] == 42
    records = winkfs.open("new").shards
    assert len(records) == min(shards, len(records))
    assert len(records) > 1 or shards == 1
    assert all(shard.record.ao == ao for shard in records)
    assert all(len(shard.hidden) == 0 for shard in records)
    assert run("unpack", "new", "out").status == 0
    same_trees(tree, Path("out"))
    assert run("verify", "new").status == 0


def test_pack_workers_run_no_python_file_of_the_current_folder(tmp_path: Path) -> None:
    """Data may be called as a module that a process needs. The winkfs program itself is run as
    its script is: without the current directory on its path."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("xxhash", "numpy", "pickle", "winkfs"):
        (tree / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name in "ab":
        with (tree / name).open("wb") as file:
            file.truncate(packing.PARALLEL // 2)
    program = [PROGRAM[0], "-P", *PROGRAM[1:]]
    done = subprocess.run(
        [*program, "pack", ".", "../new", "--shards", "2"], cwd=tree, capture_output=True,
        check=False, timeout=100, env=os.environ | {"PYTHONPATH": os.pathsep.join(packages())},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert not (tmp_path / "ran").exists()
    with winkfs.open(tmp_path / "new") as opened:
        assert len(opened) == 6


def test_shards_of_a_directory_are_even_and_do_not_overlap(run: Run, tree: Path) -> None:
    (tree / "large").unlink()
    assert run("pack", tree, "new", "--shards", 4).status == 0
    with winkfs.open("new") as opened:
        records = [shard.record for shard in opened.shards]
    assert len(records) == 4
    assert max(r.content for r in records) < 1.7 * min(r.content for r in records)
    ranges = sorted((r.first, r.last) for r in records)
    assert all(a[1] < b[0] for a, b in zip(ranges, ranges[1:], strict=False))  # type: ignore[operator] # noqa: RUF007


@pytest.mark.parametrize("ao", [False, True])
def test_tar_file_with_links_and_names_that_come_twice(run: Run, tree: Path, ao: bool) -> None:
    with tarfile.open("t.tar", "w") as tar:
        tar.add(tree, ".")
        for n in range(6):
            member = tarfile.TarInfo(f"hard{n}")
            member.type, member.linkname = tarfile.LNKTYPE, "./large" if n % 2 else "d3/3.txt"
            member.mtime = 1 << 32
            tar.addfile(member)
        again = tarfile.TarInfo("d5/5.txt")
        again.size, again.mtime = 3, 1 << 32
        tar.addfile(again, io.BytesIO(b"new"))
    assert run("pack", "t.tar", "new", "--shards", 3, *["--ao"] * ao).status == 0
    with winkfs.open("new") as opened:
        assert opened.read("d5/5.txt") == b"new"
        assert opened.read("hard1") == (tree / "large").read_bytes()
        assert opened.read("hard2") == (tree / "d3/3.txt").read_bytes()
        assert len(opened.shards) == 3
    assert run("verify", "new").status == 0


def test_update_replaces_and_adds(run: Run, tree: Path) -> None:
    assert run("pack", tree, "new", "--shards", 2).status == 0
    (tree / "empty").write_bytes(b"no more")
    (tree / "d9").mkdir()
    (tree / "d9" / "x").write_bytes(b"x")
    assert run("pack", tree, "new", "--update").status == 0
    assert json.loads(run("info", "--json", "new").out)["shards"] == 3
    assert run("unpack", "new", "out").status == 0
    same_trees(tree, Path("out"))


def test_data_set_inside_of_what_is_packed_is_left_out(run: Run, tree: Path) -> None:
    for options in (("--shards", 2), ("--update", "--exclude", "d*")):
        assert run("pack", tree, tree / "new", *options).status == 0
        assert not [name for name in listed(run("ls", tree / "new")) if name.startswith("new")]


def test_what_cannot_be_packed_is_noted_and_the_rest_is(run: Run, tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    (tree / ("x" * 200)).write_bytes(b"1")
    done = run("pack", tree, "new", "--shards", 2, "--files-from", "-", "--json",
               stdin=b"d1/1.txt\nfifo\nnothing\nlarge\n")  # fmt: skip
    assert done.status == 1
    counts = json.loads(done.out)
    assert [note["name"] for note in counts["left_out"]] == ["fifo"]
    assert [note["name"] for note in counts["failed"]] == ["nothing"]
    assert sorted(listed(run("ls", "new"))) == ["d1/1.txt", "large"]


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_in_a_pack_leaves_nothing_and_no_process(run: Run, number: int) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        member = tarfile.TarInfo("a")
        member.size = 5_000_000
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    process = subprocess.Popen(
        [*PROGRAM, "pack", "-", "new", "--shards", "2"], stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(whole.getvalue()[:3_000_000])  # no pipe holds that: it reads
    process.stdin.flush()
    process.send_signal(number)
    answer = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 128 + number
    assert answer.count("\n") == 1
    assert not Path("new").exists()


UP = """
import gc, sys
from winkfs.__main__ import main
first = gc.set_threshold  # what main calls first: from then on an interrupt is its
gc.set_threshold = lambda *numbers: (print(flush=True), first(*numbers))
sys.exit(main())
"""


@pytest.mark.parametrize("moment", [0, 0.1, 0.25])  # seconds after Python itself has begun
def test_ctrl_c_stops_all_pack_workers_with_one_line(
    run: Run, tmp_path: Path, moment: float
) -> None:
    """As of a terminal: also those that are still importing."""
    (tmp_path / "many").mkdir()
    for i in range(60):
        (tmp_path / "many" / str(i)).write_bytes(bytes(1_000_000))
    process = subprocess.Popen(
        [sys.executable, "-c", UP, "pack", "many", "new", "--shards", "2"], stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, cwd=tmp_path, process_group=0,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGINT)
    answer = process.communicate(timeout=30)[1].decode()  # once no process has its stderr any more
    assert answer in ("winkfs: interrupted\n", "")  # it may be done already
    assert not Path("new/_pending").exists() or os.listdir("new/_pending") == []


DROPPING = """
import os, signal, sys, threading, time
import winkfs.cli.change
from winkfs.__main__ import main

start = threading.Thread.start
threading.Thread.start = lambda thread: (start(thread), time.sleep(float(os.environ["SLOW"])))

class Dropping:
    def __del__(self):
        signal.raise_signal(int(os.environ["NUMBER"]))

def create(**options):
    Dropping()
    time.sleep(30)

winkfs.cli.change.create.callback = create
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("number", "line"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "stopped by SIGTERM")]
)
@pytest.mark.parametrize("slow", ["0", "0.2"])  # seconds that the start of a thread takes
def test_a_signal_that_python_drops_in_a_callback_comes_again(
    number: int, line: str, slow: str
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", DROPPING, "create", "new"], capture_output=True, text=True,
        timeout=20, env=os.environ | {"NUMBER": f"{number:d}", "SLOW": slow},
    )  # fmt: skip
    assert process.stderr == f"winkfs: {line}\n"
    assert process.returncode == 128 + number


# What was being opened at the moment is closed when it is collected, where its folder is gone.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_line_of_a_pack_leaves_nothing(run: Run, tree: Path) -> None:
    def interrupted(at: int) -> Interrupter:
        shutil.rmtree("new", ignore_errors=True)
        with Interrupter(at) as interrupter, contextlib.suppress(KeyboardInterrupt):
            packing.pack_shards(tree, "new", 2)
        return interrupter

    total = interrupted(0).lines
    assert total > 1000
    for at in sorted(random.sample(range(1, total + 1), 30)):
        fired = interrupted(at).fired
        left = os.listdir("new/_pending") if Path("new/_pending").exists() else []
        assert left == [], fired
    gc.collect()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("processes", [True], indirect=True)
def test_packing_process_that_is_killed_is_an_error(
    run: Run, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "was killed" in one_line(run("pack", tree, "new", "--shards", 2))
    assert not Path("new").exists()
