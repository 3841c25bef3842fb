"""Backups: of containers and data sets that are in use, killed at any moment, run again."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import stored
from commands import Run
from refusals import each_raises
from simulated.disk import Event, SimulatedDisk

import winkfs
from winkformats.disk.paths import locate
from winkfs.archive.backup import backup
from winkfs.container.compact import compact
from winkfs.dataset.compaction import compact as compact_dataset
from winkfs.dataset.maintain import vacuum
from winkfs.errors import FileExists, Locked, Refusal

Files = dict[str, bytes]


def change(container: winkfs.Container, number: int) -> None:
    """Something of each kind, synced."""
    container.put("replaced", b"%d" % number * 300)
    container.put(f"new {number}", b"n" * number)
    container.append("grows", b"%d" % number * 50)
    container.write("large", 9000 * number, b"w" * 5000)
    container.rename(f"moves {number - 1}", f"moves {number}")
    if number > 1:
        container.delete(f"new {number - 1}")
    container.sync()


def make(base: str | Path) -> winkfs.Container:
    container = winkfs.create(base)
    container.put_many((f"f{i}", b"%d" % i * 100) for i in range(200))
    container.put("large", os.urandom(300_000))
    container.put_many([("grows", b""), ("moves 0", b"m"), ("replaced", b"")])
    container.sync()
    return container


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    return tmp_path / "b"


def sound(base: str | Path) -> bool:
    report = winkfs.verify(base)
    assert report.problems == []
    return True


def test_a_second_backup_copies_only_what_was_synced_since(tmp_path: Path) -> None:
    base, dest = tmp_path / "c", tmp_path / "deep/b"
    with make(base) as container:
        first = backup(base, dest)
        assert first.whole and first.copied > 300_000
        for number in range(1, 5):
            change(container, number)
            wanted = stored.files(base)
            container.put("unsynced", b"")
            done = backup(base, dest)
            container.delete("unsynced")
            assert not done.whole and 0 < done.copied < 30_000
            assert stored.files(dest) == wanted and sound(dest)
        container.sync()
        backup(base, dest)
        assert backup(base, dest).copied == 0
    compact(base)
    done = backup(base, dest)
    assert done.whole and stored.files(dest) == stored.files(base) and sound(dest)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ao", "columns", "zstd", "classic"])
def test_a_backup_of_other_variants(variant: str, base: Path, dest: Path) -> None:
    how: dict[str, dict[str, object]] = {
        "ao": {"ao": True}, "columns": {"columns": {"n": "int64"}},
        "zstd": {"compress": "zstd:1"}, "classic": {"classic": True},
    }  # fmt: skip
    winkfs.create(base, **how[variant]).close()  # type: ignore[arg-type]
    for number in range(3):
        with winkfs.open(base, "a") as container:
            container.put_many((f"f{i}", b"%d" % number * 500) for i in range(20))
            if variant == "columns":
                container.add_columns({f"c{number}": "string"})
        done = backup(base, dest)
        assert done.whole == (number == 0 or variant == "classic")
        assert stored.files(dest) == stored.files(base) and sound(dest)


def test_earlier_states_are_copied_out_even_before_a_compaction(
    tmp_path: Path, base: Path, dest: Path
) -> None:
    states: list[Files] = []
    make(base).close()
    for number in range(1, 6):
        with winkfs.open(base, "a") as container:
            change(container, number)
        if number == 4:
            compact(base)
        states.append(stored.files(base))
        assert backup(base, dest, keep=3).states == min(number, 4)
    for back in range(4):
        out = tmp_path / f"out{back}"
        if back:
            backup(dest, out, state=back)
            assert stored.files(out) == states[-1 - back] and sound(out)
    with pytest.raises(Refusal, match="earlier states: 3"):
        backup(dest, tmp_path / "x", state=4)
    assert len(list(tmp_path.glob("b.*T*.data"))) == 1
    assert backup(base, dest).removed == 3
    assert not list(tmp_path.glob("b.*T*.data"))


def test_a_source_that_was_rolled_back_is_copied_whole(
    tmp_path: Path, base: Path, dest: Path
) -> None:
    make(base).close()
    old = (tmp_path / "c.data").read_bytes()
    with winkfs.open(base, "a") as container:
        change(container, 1)
    backup(base, dest)
    (tmp_path / "c.data").write_bytes(old)
    with winkfs.open(base, "a") as container:
        for number in range(20):
            container.put(f"other {number}", os.urandom(3000))
    assert backup(base, dest).whole
    assert stored.files(dest) == stored.files(base) and sound(dest)


# --- killed ---


def on_disk(keep: int, act: Callable[[str], object]) -> tuple[SimulatedDisk, Files, Files]:
    """A disk with a container, its backup, and what has happened since -> both states."""
    disk = SimulatedDisk(1)
    base, dest = f"{disk.path}/c", f"{disk.path}/b"
    container = winkfs.create(base)
    container.put_many((f"f{i}", b"%d" % i * 40) for i in range(40))
    container.put_many([("grows", b""), ("moves 0", b"m"), ("replaced", b""), ("large", b"")])
    container.sync()
    backup(base, dest, keep=keep)
    before = stored.files(dest)
    change(container, 1)
    container.close()
    act(base)
    return disk, before, stored.files(base)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 2])
@pytest.mark.parametrize("act", [str, compact], ids=["new", "compacted"])
def test_a_killed_backup_leaves_the_state_before_or_after(
    keep: int, act: Callable[[str], object]
) -> None:
    """Before each of its calls to the disk, by a kill and by a power cut."""
    disk, before, after = on_disk(keep, act)
    images: list[SimulatedDisk] = []

    def watch(_: Event) -> None:
        images.extend([disk.clone(), disk.crash()])

    disk.watch = watch
    backup(f"{disk.path}/c", f"{disk.path}/b", keep=keep)
    disk.watch = None
    assert len(images) > 40
    met = set()
    for number, image in enumerate(images):
        found = stored.files(f"{image.path}/b")
        assert found in (before, after)
        met.add(found == after)
        if number % 14 < 2:
            backup(f"{image.path}/c", f"{image.path}/b", keep=keep)
            assert stored.files(f"{image.path}/b") == after and sound(f"{image.path}/b")
    assert met == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("act", [str, compact], ids=["new", "compacted"])
@pytest.mark.parametrize("call", ["preallocate", "write", "sync"])
def test_a_disk_that_is_full_or_fails_leaves_the_state_before(
    call: str, act: Callable[[str], object]
) -> None:
    disk, before, after = on_disk(1, act)
    for nth in (1, 2, 4):
        disk.arm(call, nth, errno.ENOSPC if call != "sync" else errno.EIO)
        try:
            backup(f"{disk.path}/c", f"{disk.path}/b", keep=1)
        except OSError:
            disk.arm(call, 0)
            assert stored.files(f"{disk.path}/b") in (before, after)
        disk.arm(call, 0)
    backup(f"{disk.path}/c", f"{disk.path}/b", keep=1)
    assert stored.files(f"{disk.path}/b") == after and sound(f"{disk.path}/b")


WRITER = """
import itertools, sys, time
import winkfs
from winkfs.container.compact import compact
c = winkfs.open(sys.argv[1], "a")
for g in itertools.count(1):
    c.put_many((f"k{j}", b"%08d" % g * 60) for j in range(40))
    c.rename(f"r{g - 1}", f"r{g}")
    c.put(f"d{g}", b"")
    if g > 1:
        c.delete(f"d{g - 1}")
    c.put("gen", b"%d" % g)
    c.sync()
    if g % 40 == 0:
        c.close()
        compact(sys.argv[1])
        c = winkfs.open(sys.argv[1], "a")
    time.sleep(0.02)
"""


def generation(dest: Path) -> int:
    """The sync that a backup shows, whole."""
    found = stored.files(dest)
    gen = int(found["gen"])
    wanted = {"gen", f"r{gen}", f"d{gen}"} | {f"k{j}" for j in range(40)}
    assert {name for name in found if not name.startswith("big")} == wanted
    assert all(found[f"k{j}"] == b"%08d" % gen * 60 for j in range(40))
    return gen


@pytest.mark.long
@pytest.mark.soak
@pytest.mark.slow
def test_backups_under_load_that_are_killed_show_a_whole_sync(
    soak: bool, base: Path, dest: Path
) -> None:
    stored.make(base, {f"big{i}": os.urandom(1 << 20) for i in range(8)} | {"r0": b""})
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(base)])
    try:
        while True:
            with winkfs.open(base) as reader:
                if "gen" in reader:
                    break
            time.sleep(0.1)
        backup(base, dest)
        command = [sys.executable, "-m", "winkfs", "backup", str(base), str(dest)]
        begun = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        whole = time.monotonic() - begun
        last, killed = generation(dest), 0
        for number in range(20 if soak else 3):
            copier = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(whole * (0.5 + 0.03 * (7 * number % 20)))
            copier.kill()
            killed += copier.wait() < 0
            assert last <= (last := generation(dest))
            if number % 5 == 2:
                with winkfs.open(base) as reader:
                    there = int(reader.read("gen"))
                backup(base, dest)
                assert last <= there <= (last := generation(dest)) and sound(dest)
        assert killed
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, base: Path, dest: Path) -> None:
    stored.make(base, {f"big{i}": os.urandom(1 << 20) for i in range(60)})
    command = [sys.executable, "-m", "winkfs", "backup", str(base), str(dest)]
    copier = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(1000):
        if (tmp_path / "b.partial.data").exists():
            break
        time.sleep(0.01)
    copier.send_signal(signal.SIGINT)
    _, err = copier.communicate(timeout=30)
    assert (copier.returncode, err) == (130, "winkfs: interrupted\n")
    assert not list(tmp_path.glob("b.*"))


# --- refused, reported ---


def test_what_is_no_backup_is_left_alone(tmp_path: Path) -> None:
    base = tmp_path / "c"
    make(base).close()
    make(tmp_path / "other").close()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/x").touch()
    (tmp_path / "broken.data").touch()
    (tmp_path / "broken.backup").write_text("{")
    each_raises(
        (FileExists, None, lambda: backup(base, tmp_path / "other")),
        (FileExists, None, lambda: backup(base, tmp_path / "folder")),
        (FileExists, None, lambda: backup(base, tmp_path / "broken")),
        (Refusal, "itself", lambda: backup(base, f"{tmp_path}/./c")),
        (Refusal, "itself", lambda: backup(base, f"{tmp_path}/c/below")),
        (Refusal, "earlier states", lambda: backup(base, tmp_path / "new", state=1)),
        (FileNotFoundError, None, lambda: backup(tmp_path / "missing", tmp_path / "new")),
    )
    assert not (tmp_path / "new.data").exists() and not (tmp_path / "new.lock").exists()


def test_a_backup_refuses_other_kinds_and_writers_in_one_line(
    tmp_path: Path, run: Run, base: Path, dest: Path
) -> None:
    make(base).close()
    backup(base, dest)
    with winkfs.open(dest, "a"), pytest.raises(Locked):
        backup(base, dest)
    (tmp_path / "order").mkdir()
    (tmp_path / "order/order.json").write_text("{}")
    with pytest.raises(Refusal, match="kind order: containers"):
        backup(tmp_path / "order", dest)
    done = run("backup", base, tmp_path / "b")
    assert done.status == 0 and b"0 bytes copied" in done.out
    done = run("backup", base, base)
    assert done.status == 1 and done.err.count("\n") == 1


def test_a_damaged_source_is_copied_and_reported(
    tmp_path: Path, run: Run, base: Path, dest: Path
) -> None:
    make(base).close()
    with winkfs.Container(str(base), "r") as container:
        at = container.extents("f7")[0].pointer + 20
    data = tmp_path / "c.data"
    with data.open("r+b") as file:
        file.seek(at)
        file.write(b"!!")
    done = run("backup", "--json", base, dest)
    assert done.status == 1 and len(json.loads(done.out)["problems"]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert stored.read(dest, "f8") == b"8" * 100
    os.truncate(data, data.stat().st_size - 50)
    with pytest.raises(Refusal, match="cut short"):
        backup(base, dest)


# --- data sets ---


@pytest.mark.slow
def test_a_data_set_is_backed_up_by_generations(tmp_path: Path) -> None:
    base, dest = tmp_path / "set", tmp_path / "copy"
    dataset = winkfs.dataset.create(base)
    copied = []
    for number in range(4):
        dataset.put_many((f"{number}/{i}", os.urandom(2000)) for i in range(50))
        dataset.put("again", b"%d" % number)
        dataset.sync()
        done = backup(base, dest, keep=1)
        copied.append(done.copied)
        assert stored.files(dest) == stored.files(base) and sound(dest)
    assert max(copied) < 3 * min(copied) and done.states == 2
    assert backup(base, dest, keep=1).copied == 0
    with winkfs.open(dest, as_of=winkfs.dataset.open(dest).generation - 1) as older:
        assert older.read("again") == b"2"
    dataset.close()
    compact_dataset(base, everything=True)
    vacuum(base, keep=1, older_than=0)
    assert backup(base, dest).whole is False
    assert stored.files(dest) == stored.files(base) and sound(dest)
    with pytest.raises(Refusal):
        backup(base, base / "inside")
    other = winkfs.dataset.create(tmp_path / "other")
    other.put("x", b"")
    other.close()
    with pytest.raises(FileExists):
        backup(tmp_path / "other", dest)


@pytest.mark.slow
def test_a_backup_of_a_data_set_that_is_killed_opens() -> None:
    disk = SimulatedDisk(1)
    base, dest = f"{disk.path}/set", f"{disk.path}/copy"
    dataset = winkfs.dataset.create(base)
    states = [dict[str, bytes]()]
    images: list[tuple[int, SimulatedDisk]] = []
    for number in range(3):
        dataset.put_many([(f"{number}", b"x" * 500), ("again", b"%d" % number)])
        dataset.sync()
        states.append(stored.files(base))
        disk.watch = lambda _, n=number: images.append((n, disk.clone()))
        backup(base, dest)
        disk.watch = None
    for number, image in images[::3]:
        path = f"{image.path}/copy"
        if locate(f"{path}/_winkfs")[0].exists("_winkfs"):
            assert stored.files(path) in (states[number], states[number + 1])
        else:
            assert number == 0
        backup(f"{image.path}/set", path)
        assert stored.files(path) == states[number + 1]
