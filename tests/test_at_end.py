"""The end of the process with writers that are still open, each in a real process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import stored

import winkfs

OPEN = "still open for writing at the end of the process"
BEGIN = """
import os, sys, threading, time, winkfs, winkfs.access, winkfs.dataset
base = sys.argv[1]
def opened(path=base):
    return winkfs.open(path, "a")
"""


def ran(script: str, base: Path) -> tuple[int, str]:
    """-> exit status and stderr."""
    found = subprocess.run(
        [sys.executable, "-c", BEGIN + script, str(base)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.stdout == ""
    return found.returncode, found.stderr


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return stored.make(tmp_path / "c", {"old": b"1"})


def names(base: Path) -> list[str]:
    assert winkfs.verify(base).problems == []
    return stored.names(base)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status"), [("", 0), ("sys.exit(3)", 3), ("raise SystemExit('over')", 1)]
)
@pytest.mark.parametrize("change", ["put", "append"])
def test_an_open_writer_is_synced_with_one_line(
    change: str, end: str, status: int, base: Path
) -> None:
    do = "c.put('new', b'2')" if change == "put" else "c.append('old', b'2')"
    found, err = ran(f"c = opened(); {do}\n{end}", base)
    assert found == status
    lines = [line for line in err.splitlines() if line != "over"]
    assert lines == [f"winkfs: {base}: {OPEN}: synced and closed"]
    name, data = ("new", b"2") if change == "put" else ("old", b"12")
    assert stored.read(base, name) == data


@pytest.mark.slow
def test_an_uncaught_exception_drops_what_was_not_synced(base: Path) -> None:
    status, err = ran(
        "c = opened(); c.put('new', b'2'); c.sync(); c.put('late', b'3'); 1 / 0", base
    )
    assert status == 1 and "ZeroDivisionError" in err
    assert err.splitlines()[-1].startswith(f"winkfs: {base}: {OPEN}: an exception ended it")
    assert names(base) == ["new", "old"]


NEVER_RETURNS = """
import winkfs.reader
winkfs.access.PATIENCE = 0.3
c = opened()
def rows():
    yield "new", b"2"
    time.sleep(1000)
threading.Thread(target=c.put_many, args=(rows(),), daemon=True).start()
time.sleep(0.2)
"""
MIDST = f"{OPEN}: another thread is in the midst of a call: what was not synced is lost\n"
ENDS = {
    "a closed writer is not mentioned": (
        "c = opened(); c.put('new', b'2'); c.close(); d = winkfs.open(base)", "", ["new", "old"],
    ),
    "os._exit syncs nothing": ("c = opened(); c.put('new', b'2'); os._exit(0)", "", ["old"]),
    "a closed stderr is no fault": (
        "c = opened(); c.put('new', b'2'); sys.stderr.close()", "", ["new", "old"],
    ),
    "a thread that never returns is not waited for": (NEVER_RETURNS, MIDST, ["old"]),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
def test_an_end_with_status_0(end: str, base: Path) -> None:
    script, line, left = ENDS[end]
    assert ran(script, base) == (0, line and f"winkfs: {base}: {line}")
    assert names(base) == left


@pytest.mark.slow
def test_a_dropped_writer_reports_what_is_lost(base: Path) -> None:
    script = """
def main(c):
    c.append("old", b"2")
    c.sync()
    {}
main(opened())
"""
    assert ran(script.format(""), base) == (0, "")
    _, err = ran(script.format("c.append('old', b'3')"), base)
    assert err == f"winkfs: {base}: unclosed writer: what was not synced is lost\n"
    assert stored.read(base, "old") == b"122"


@pytest.mark.slow
def test_a_forked_child_leaves_the_writer_to_its_parent(base: Path) -> None:
    script = """
c = opened(); c.put("new", b"2")
if os.fork() == 0:
    sys.exit(0)
os.wait()
c.put("late", b"3")
"""
    assert ran(script, base)[1].count(OPEN) == 1
    assert names(base) == ["late", "new", "old"]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "spawn", "os.fork"])
def test_a_child_that_opened_a_writer_syncs_it(how: str, base: Path, tmp_path: Path) -> None:
    """Also where multiprocessing ends it, which skips atexit."""
    (tmp_path / "task.py").write_text(
        "import sys, winkfs\ndef work(base):\n    global c\n    c = winkfs.open(base, 'a')\n"
        "    c.put('new', b'2')\ndef fail(base):\n    work(base)\n    1 / 0\n"
    )
    script = f"""
sys.path.insert(0, {str(tmp_path)!r})
import multiprocessing, task
w = winkfs.create(base + "2")  # a hook is there before the fork
if {how!r} == "os.fork":
    if os.fork() == 0:
        task.work(base)
        sys.exit()
    os.wait()
else:
    context = multiprocessing.get_context({how!r})
    for work in task.work, task.fail:
        child = context.Process(target=work, args=(base,)); child.start(); child.join()
w.close()
"""
    _, err = ran(script, base)
    assert err.count("synced and closed") == 1
    assert err.count("an exception ended it") == ("fork" not in how or how == "fork")
    assert names(base) == ["new", "old"]


@pytest.mark.slow
def test_a_thread_that_still_writes_does_not_hold_the_end_up(base: Path) -> None:
    script = """
c = opened()
def work():
    for i in range(10**9):
        c.put(f"n{i % 500}", b"%d" % i)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
c.put("new", b"2")
"""
    status, err = ran(script, base)
    assert status == 0
    assert err == f"winkfs: {base}: {OPEN}: synced and closed\n"  # and nothing of the thread
    assert {"new", "n0"} <= set(names(base))


@pytest.mark.slow
def test_a_writer_that_failed_reports_it_in_one_line(base: Path) -> None:
    script = """
import resource
c = opened()
c.put("new", b"2")
size = os.path.getsize(base + ".data")
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    c.put("large", bytes(50_000_000))
except OSError:
    pass
"""
    status, err = ran(script, base)
    assert status == 0 and "Traceback" not in err
    assert len(err.splitlines()) == 1 and OPEN in err
    assert "old" in names(base)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "1 / 0"])
def test_the_changes_of_a_data_set_are_committed(end: str, tmp_path: Path) -> None:
    winkfs.Dataset(winkfs.dataset.create(tmp_path / "s").base).close()
    script = "d = opened(); d.put('a', b'1'); d.sync(); d.put('b', b'2')\n" + end
    _, err = ran(script, tmp_path / "s")
    assert err.count(OPEN) == 1
    assert stored.names(tmp_path / "s") == (["a"] if end else ["a", "b"])


@pytest.mark.slow
def test_an_error_in_the_prompt_does_not_drop_what_comes_after(base: Path) -> None:
    script = "c = opened(); sys.ps1 = '>>> '; sys.last_value = ValueError(); c.put('new', b'2')"
    assert "synced and closed" in ran(script, base)[1]
