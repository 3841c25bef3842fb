"""Programs that people run in a directory, run in a mounted container."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import folders
import pytest
from mounting import mounted, need, run, sync
from mounting import place as place  # a fixture

import winkfs

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def mount() -> Iterator[Path]:
    with folders.in_memory() as folder:
        base = str(folder / "corpus")
        winkfs.create(base).close()
        with mounted(base, "-o", "sync_every=0.5", patience=300) as there:
            yield there
        assert winkfs.verify(base).problems == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top, chance = tmp_path / "tree", random.Random(11)
    for number in range(60):
        file = top / f"d{number % 7}/e{number % 3}/f{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(chance.choice([0, 100, 5000, 200_000])))
        os.utime(file, ns=(1, 1_400_000_000_123_456_789 + number * 10**12))
    (top / "link").symlink_to("d1/e1")
    return top


def test_git_clone_commit_gc(place: Path, tmp_path: Path) -> None:
    need("git")
    origin, name = tmp_path / "origin", ("-c", "user.name=x", "-c", "user.email=x@x")
    run("git", "init", "-q", origin)
    for number in range(40):
        (origin / f"f{number}").write_text(f"line {number}\n" * number)
        if number % 10 == 9:
            run("git", "add", ".", cwd=origin)
            run("git", *name, "commit", "-qm", f"commit {number}", cwd=origin)
    clone = place / "clone"
    run("git", "clone", "-q", "--no-local", origin, clone)
    run("git", "switch", "-qc", "branch", cwd=clone)
    (clone / "f3").write_text("changed\n")
    run("git", "mv", "f4", "g4", cwd=clone)
    run("git", *name, "commit", "-qam", "changed", cwd=clone)
    run("git", "stash", "list", cwd=clone)
    run("git", "gc", "-q", "--aggressive", "--prune=now", cwd=clone)
    run("git", "fsck", "--strict", "--full", cwd=clone)
    run("git", "worktree", "add", "-q", place / "worktree", "HEAD~1", cwd=clone)
    run("git", *name, "rebase", "-q", "HEAD~2", cwd=clone)
    assert run("git", "status", "--short", cwd=clone) == ""
    run("git", "clone", "-q", clone, place / "second")  # --local: links, or copies
    assert run("git", "log", "--oneline", cwd=place / "second").count("\n") == 5


@pytest.mark.few(2)
@pytest.mark.parametrize("journal", ["delete", "truncate", "persist", "wal"])
def test_sqlite_with_several_connections_and_a_killed_writer(place: Path, journal: str) -> None:
    """What was committed stays, what was not goes; no reader sees a part of a transaction."""
    path = place / "db"
    with closing(sqlite3.connect(path)) as first:
        assert first.execute(f"pragma journal_mode={journal}").fetchone() == (journal,)
        first.execute("create table t (writer, n)")
    script = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)\n"
        "for i in range(int(sys.argv[3])):\n"
        "    c.execute('begin immediate')\n"
        "    c.executemany('insert into t values (?, ?)', [(sys.argv[2], i)] * 10)\n"
        "    c.execute('commit'); print(i, flush=True)\n"
    )
    command = [sys.executable, "-c", script, path]
    writers = [
        subprocess.Popen([*command, name, "30"], stdout=subprocess.PIPE) for name in ("a", "b")
    ]
    victim = subprocess.Popen([*command, "victim", "100000"], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    for _ in range(10):
        victim.stdout.readline()
    with closing(sqlite3.connect(path, timeout=60)) as reader:
        for _ in range(10):
            counts = reader.execute("select count(*) from t group by writer, n").fetchall()
            assert set(counts) <= {(10,)}
            time.sleep(0.05)
    victim.kill()
    acknowledged = 10 + victim.communicate()[0].count("\n")
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with closing(sqlite3.connect(path, timeout=60)) as last:
        assert last.execute("pragma integrity_check").fetchone() == ("ok",)
        found = dict(last.execute("select writer, count(*) from t group by writer").fetchall())
        last.execute("vacuum")
    assert found["a"] == found["b"] == 300
    assert acknowledged * 10 <= found["victim"] <= (acknowledged + 1) * 10


@pytest.mark.few(2)
@pytest.mark.parametrize("option", ["--whole-file", "--inplace", "--append", "--no-whole-file"])
def test_rsync_moves_only_what_changed(place: Path, tree: Path, option: str) -> None:
    need("rsync")
    rsync = ("rsync", "-a", option, "-i", f"{tree}/", f"{place}/")
    assert len(run(*rsync).splitlines()) > 60
    assert run(*rsync) == ""
    with (tree / "d1/e1/f1").open("ab") as file:
        file.write(b"more" * 1000)
    (tree / "d1/e1/f22").unlink()
    moved = [line for line in run(*rsync).splitlines() if line.startswith(">f")]
    assert [line.split()[1] for line in moved] == ["d1/e1/f1"]
    assert "f22" in run(*rsync[:-2], "--delete", f"{tree}/", f"{place}/")
    run("diff", "-r", "--no-dereference", tree, place)
    assert run(*rsync, "--checksum") == ""


def test_tar_and_zip_round_trips(place: Path, tree: Path) -> None:
    run("tar", "--format=pax", "-C", tree, "-cf", place / "t.tar", ".")
    (place / "out").mkdir()
    run("tar", "-C", place / "out", "-xpf", place / "t.tar")
    run("tar", "-df", place / "t.tar", "-C", tree)
    run("diff", "-r", "--no-dereference", tree, place / "out")
    run("tar", "-C", tree, "-rf", place / "t.tar", "d1")
    assert run("tar", "-tf", place / "t.tar").count("d1/e1/f1\n") == 2
    need("zip", "unzip")
    run("zip", "-qry", place / "t.zip", ".", cwd=tree)
    run("zip", "-q", "-d", place / "t.zip", "d2/*")
    run("unzip", "-q", place / "t.zip", "-d", place / "unzipped")
    assert sorted(os.listdir(place / "unzipped")) == sorted({*os.listdir(tree)} - {"d2"})


def test_sqlite_shell(place: Path) -> None:
    need("sqlite3")
    statements = "create table t (a); insert into t values (1), (2); select sum(a) from t;"
    assert run("sqlite3", place / "db", statements) == "3\n"
    assert run("sqlite3", place / "db", ".dump").count("INSERT") == 2


def test_patch_and_sed(place: Path) -> None:
    old, new = place / "old", place / "new"
    old.write_text("".join(f"line {number}\n" for number in range(100)))
    run("sed", "s/line 50$/changed/", "-i.bak", old)
    assert (place / "old.bak").read_text() != old.read_text()
    new.write_text(old.read_text().replace("line 7\n", "seven\n"))
    difference = subprocess.run(["diff", "-u", old, new], capture_output=True).stdout
    (place / "patch").write_bytes(difference)
    need("patch")
    run("patch", "-b", old, place / "patch")
    assert old.read_text() == new.read_text()
    run("patch", "-R", old, place / "patch")
    assert "changed\n" in old.read_text() and "line 7\n" in old.read_text()


def test_tail_follows_another_process(place: Path) -> None:
    log = place / "log"
    log.touch()
    tail = subprocess.Popen(["tail", "-f", "-s", "0.05", log], stdout=subprocess.PIPE, bufsize=0)
    script = f"for i in $(seq 200); do echo line $i >> {log}; done; sleep 0.2; mv {log} {log}.1"
    run("sh", "-c", script)
    assert tail.stdout is not None
    wanted = "".join(f"line {number + 1}\n" for number in range(200)).encode()
    found = b""
    deadline = time.monotonic() + 20
    os.set_blocking(tail.stdout.fileno(), False)
    while found != wanted and time.monotonic() < deadline:
        found += tail.stdout.read(65536) or b""
        time.sleep(0.02)
    tail.kill()
    tail.communicate()
    assert found == wanted


def test_editors_save_by_rename(place: Path) -> None:
    file = place / "text"
    file.write_text("one\n")
    file.chmod(0o640)
    for number in range(20):
        new = place / ".text.swp"
        with new.open("w") as out:
            out.write(f"version {number}\n")
            out.flush()
            os.fsync(out.fileno())
        shutil.copymode(file, new)
        file.rename(place / "text~")
        new.rename(file)
        sync(place)
        assert file.read_text() == f"version {number}\n"
    assert (place / "text~").read_text() == "version 18\n"
    assert file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("backup", ["yes", "no", "auto"])
def test_vim(place: Path, backup: str) -> None:
    need("vim")
    (place / "text").write_text("one\ntwo\n")
    settings = f"set nocp backup backupskip= backupcopy={backup} swapfile undofile undodir=."
    commands = ["-c", settings, "-c", "%s/two/three/", "-c", "w", "-c", "normal Gofour", "-c", "wq"]
    run("vim", "-es", "-u", "NONE", "-i", "NONE", *commands, "text", cwd=place)
    assert (place / "text").read_text() == "one\nthree\nfour\n"
    assert (place / "text~").exists()
    assert not [name for name in os.listdir(place) if name.endswith(".swp")]


def test_venv(place: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv")
    python = place / "venv/bin/python"
    (place / "venv/module.py").write_text("answer = 42\n")
    code = "import module, sys; print(module.answer, sys.prefix)"
    for _ in range(2):  # the second time from the cached bytecode
        answer = run("env", "-u", "PYTHONDONTWRITEBYTECODE", python, "-c", code, cwd=place / "venv")
        assert answer == f"42 {place / 'venv'}\n"
    assert list((place / "venv/__pycache__").iterdir())


@pytest.mark.soak
def test_venv_with_pip(place: Path, soak: bool) -> None:
    if not soak:
        pytest.skip("takes long: make soak")
    run(sys.executable, "-m", "venv", place / "venv", seconds=300)
    assert "pip" in run(place / "venv/bin/python", "-m", "pip", "list")


MAKEFILE = """
parts := $(patsubst %.c,%.o,$(wildcard *.c))
all: program
program: $(parts)
\t$(CC) -o $@ $^
%.o: %.c all.h
\t$(CC) -O0 -c -o $@ $<
clean:
\trm -f program *.o
"""


def test_make_builds_only_what_changed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("make", "cc")
    for name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # of the make that runs the tests
        monkeypatch.delenv(name, raising=False)
    (place / "Makefile").write_text(MAKEFILE)
    (place / "all.h").write_text("".join(f"int f{number}(void);\n" for number in range(8)))
    for number in range(8):
        text = f'#include "all.h"\nint f{number}(void) {{ return {number}; }}\n'
        (place / f"f{number}.c").write_text(text)
    total = " + ".join(f"f{number}()" for number in range(8))
    main = f'#include <stdio.h>\n#include "all.h"\nint main(void) {{ printf("%d\\n", {total}); }}\n'
    (place / "main.c").write_text(main)
    assert run("make", "-j4", cwd=place).count(" -c ") == 9
    assert run(place / "program") == "28\n"
    assert run("make", "-j4", cwd=place) == "make: Nothing to be done for 'all'.\n"
    (place / "f3.c").write_text('#include "all.h"\nint f3(void) { return 100; }\n')
    assert run("make", "-j4", cwd=place).count(" -c ") == 1
    assert run(place / "program") == "125\n"
    run("make", "clean", cwd=place)
    assert not list(place.glob("*.o"))


@pytest.mark.parametrize("how", ["-a", "--reflink=auto", "--sparse=always", "--sparse=never"])
def test_cp(place: Path, tmp_path: Path, how: str) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.write(b"begin")
        file.seek(3_000_000)
        file.write(b"middle")
        file.truncate(5_000_000)
    run("cp", how, sparse, place / "in")
    run("cp", how, place / "in", place / "again")
    run("cp", how, place / "again", tmp_path / "out")
    run("cmp", sparse, tmp_path / "out")
    run("cp", how, "-b", place / "in", place / "again")
    assert (place / "again~").exists()


def test_find_ls_du(place: Path, tree: Path) -> None:
    run("cp", "-a", f"{tree}/.", place)
    newer = run("find", ".", "-type", "f", "-newer", "d2/e0/f30", cwd=place).split()
    assert sorted(newer) == sorted(
        f"./d{number % 7}/e{number % 3}/f{number}" for number in range(31, 60)
    )
    for command in (["ls", "-lUR"], ["ls", "-laR"], ["du", "-b", "-s", "d3"], ["find", "."]):
        mine, disk = (sorted(run(*command, cwd=top).splitlines()) for top in (place, tree))
        assert len(mine) == len(disk), command
    sizes = [sum(os.path.getsize(p) for p in top.rglob("f*")) for top in (place, tree)]
    assert sizes[0] == sizes[1]
    assert int(run("du", "-sk", "--apparent-size", place).split()[0]) * 1024 >= sizes[0]
