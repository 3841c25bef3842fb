"""kill -9 of the server in the middle of writing: what was acknowledged is there afterwards."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crash_writer import Known, Value, faults
from mounting import TESTS, leave_dead, mounted, soon, winkfs_command

import winkfs

pytestmark = [pytest.mark.mount, pytest.mark.soak]

WRITERS = 3
PATIENCE = 1800.0


def write_until_it_is_killed(
    there: Path, logs: list[Path], kind: str, seed: int, seconds: float
) -> float:
    """Kill it so many seconds after the first writer has finished something -> when that was."""
    writers = [
        subprocess.Popen(
            [sys.executable, TESTS / "crash_writer.py", there, log, kind, str(seed * 10 + number)],
            stderr=subprocess.PIPE,
        )
        for number, log in enumerate(logs)
    ]
    try:
        soon(lambda: any(log.exists() and b'"done"' in log.read_bytes() for log in logs), 30)
        time.sleep(seconds)
        running = [writer.poll() for writer in writers]
        killed = time.time()
        leave_dead(there)  # as long as a writer runs: it would go on in the directory below
        answer = [writer.communicate(timeout=30)[1].decode() for writer in writers]
        winkfs_command("umount", there)
    finally:
        for writer in writers:
            writer.kill()
    assert running == [None] * len(writers), answer
    assert all("OSError" in text or "ConnectionAbortedError" in text for text in answer), answer
    return killed


def contents(top: Path) -> Known:
    return {path.name: path.read_bytes() for path in top.iterdir()}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["plain", "ao"])
def test_killed_server_loses_nothing_that_was_fsynced(
    tmp_path: Path, seed: int, amount: Callable[[str], int], kind: str
) -> None:
    base, known = str(tmp_path / "corpus"), Known()
    winkfs.create(base, ao=kind == "ao").close()
    chance, options = random.Random(seed), ["sync_every=0.2", "sync_every=1000"]
    with mounted(base, patience=PATIENCE) as there:
        for turn in range(-(-amount("kills") // (1 if kind == "plain" else 2))):
            logs = [tmp_path / f"log{turn}-{number}" for number in range(WRITERS)]
            seconds = chance.uniform(0.0, 1.0)
            write_until_it_is_killed(there, logs, kind, seed * 1000 + turn, seconds)
            assert winkfs.verify(base).problems == []
            winkfs_command("mount", base, there, "-o", options[turn % 2])
            found = contents(there)
            assert faults(found, known, logs, time.time()) == []
            known = found
    assert winkfs.verify(base).problems == []


@pytest.mark.few(1)
@pytest.mark.parametrize("ao", [False, True])
def test_what_was_closed_is_durable_after_sync_every(tmp_path: Path, seed: int, ao: bool) -> None:
    base = str(tmp_path / "corpus")
    winkfs.create(base, ao=ao).close()
    logs = [tmp_path / f"log{number}" for number in range(WRITERS)]
    with mounted(base, "-o", "sync_every=1") as there:
        killed = write_until_it_is_killed(there, logs, "close", seed, 3.0)
        winkfs_command("mount", base, there)
        assert faults(contents(there), {}, logs, killed - 2.0) == []
    assert winkfs.verify(base).problems == []


def test_lost_torn_and_foreign_files_are_reported(tmp_path: Path) -> None:
    log, value = tmp_path / "log", Value(1, 9000)
    lines = [("begin", value._replace(whole=False)), ("done", value), ("begin", Value(2, 5000))]
    log.write_text(
        "".join(json.dumps({"what": w, "names": {"f": v}, "at": 5}) + "\n" for w, v in lines)
    )
    data, new = value.content(), Value(2, 5000).content()
    assert faults({"f": data}, {}, [log], 9) == faults({"f": new}, {}, [log], 9) == []
    assert faults({"f": data[:4096]}, {}, [log], 4) == []  # not done yet at that time
    for found in ({}, {"f": data[:4096]}, {"f": new[:4096]}, {"f": data, "g": b""}):
        assert len(faults(found, {}, [log], 9)) == 1, found
    assert len(faults({"f": data}, {"g": b"kept"}, [log], 9)) == 1
