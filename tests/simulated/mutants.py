"""Planted bugs, each of which a named test must catch: `make mutants`.

    python tests/simulated/mutants.py [NAME ...]

A mutant is a change of a few lines in a copy of the sources. The test must pass without it and fail
with it; one that survives, or that does not apply any more, is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("formats", "mount", "winkfs", "pyspark_winkfs", "tests", "pyproject.toml")
LIMIT = 120  # seconds that a test may take; one that hangs has caught its mutant
CUTS = "tests/simulated/test_power_cuts.py::test_every_image_shows_what_was_acknowledged"
GROWING, STORE, DATAFILE = "formats/winkformats/growing.py", "winkfs/store.py", "winkfs/datafile.py"
REPLACE, CHANGES = "formats/winkformats/disk/replace.py", "winkfs/changes.py"


class Mutant(NamedTuple):
    """`old`, which is there once, becomes `new` in `file`; `test` fails then."""

    name: str
    file: str
    old: str
    new: str
    test: str


MUTANTS = (
    Mutant(
        "no sync of data", GROWING,
        "            self.storage.sync()  # a superblock must never name bytes that are not there",
        "            pass",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "acknowledged before the superblock is synced", GROWING,
        "        self.write_superblock()\n        self.storage.sync()",
        "        self.write_superblock()",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a new container without a sync of its directory", DATAFILE,
        "            directory.rename(temporary, data)\n        directory.sync()",
        "            directory.rename(temporary, data)",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a failed sync of data swallowed", GROWING,
        "        except OSError:\n            self._failed = True\n            raise\n        block =",
        "        except OSError:\n            pass\n        block =",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "delflags before the sync", DATAFILE,
        "        self.kv.sync(known, now=now)",
        "        self._set_delflags()\n        self.kv.sync(known, now=now)",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "an index behind the data file believed to cover it", "winkfs/indexfile.py",
        '    covered = mine.get("DATAEND", end)',
        "    covered = end",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "an index that covers delflags which are not synced", STORE,
        "        self.kv.storage.sync()  # delflags: an index never covers what is not finished",
        "",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a new file renamed before it is synced", REPLACE,
        "        storage.sync()\n",
        "",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "no tombstone of the old name at a rename", CHANGES,
        "        self._replace(replace(draft, key=new))\n"
        '        self._kv.append(key, b"", deleted=True)',
        "        self._replace(replace(draft, key=new))",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "no tombstone at a delete", CHANGES,
        '        self._kv.append(key, b"", deleted=True)\n        self._pop(key)\n        self._doom(',
        "        self._pop(key)\n        self._doom(",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a superblock that forgets the counters", DATAFILE,
        '        variables = {"ITOTSZ": self.itotsz, "DTOTSZ": self.dtotsz}',
        '        variables = {"ITOTSZ": self.itotsz}',
        f"{CUTS}[plain]",
    ),
    Mutant(
        "file ids used again", DATAFILE,
        "        self.nextfid += 1\n        return self.nextfid - 1",
        "        self.nextfid += len(self.doomed) == 0\n        return self.nextfid - 1",
        f"{CUTS}[plain]",
    ),
    Mutant(
        "a time index that covers more than it holds", STORE,
        "                storage.write(0, self.times.encode(self.settings, self.kv.superblock))",
        "                self.times.marks[-1:] = []\n"
        "                storage.write(0, self.times.encode(self.settings, self.kv.superblock))",
        f"{CUTS}[ao]",
    ),
)  # fmt: skip


def run_test(tree: Path, test: str) -> tuple[bool, float]:
    """-> whether it passes, seconds."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    try:
        done = subprocess.run(
            command, cwd=tree, capture_output=True, timeout=LIMIT, text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, time.monotonic() - started
    if done.returncode not in (0, 1):
        raise SystemExit(f"{test}: pytest says {done.returncode}\n{done.stdout[-2000:]}")
    return done.returncode == 0, time.monotonic() - started


def copy_to(folder: Path) -> Path:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def survives(mutant: Mutant) -> str:
    """-> what is wrong with it, "" where its test catches it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_to(Path(folder))
        path = tree / mutant.file
        text = path.read_text()
        if text.count(mutant.old) != 1:
            return f"does not apply: the lines are in {mutant.file} {text.count(mutant.old)} times"
        path.write_text(text.replace(mutant.old, mutant.new))
        passed, took = run_test(tree, mutant.test)
    verdict = "SURVIVES" if passed else "caught"
    print(f"{verdict:9}{took:5.0f} s  {mutant.name:55}{mutant.test.split('/')[-1]}", flush=True)
    return "survives" if passed else ""


def main() -> None:
    chosen = [m for m in MUTANTS if not sys.argv[1:] or m.name in sys.argv[1:]]
    for test in sorted({mutant.test for mutant in chosen}):
        passed, took = run_test(ROOT, test)
        print(f"{'passes' if passed else 'FAILS':9}{took:5.0f} s  {test}", flush=True)
        if not passed:
            sys.exit("a test that fails without a mutant catches none")
    with ThreadPoolExecutor(2) as pool:
        wrong = [(m.name, what) for m, what in zip(chosen, pool.map(survives, chosen), strict=True)]
    bad = [f"{name}: {what}" for name, what in wrong if what]
    print(f"{len(chosen) - len(bad)} passed, {len(bad)} failed")
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
