"""Files that are cut short under a reader are errors, and do not end its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stored import make

import winkfs
from winkformats import native

pytestmark = pytest.mark.slow

# Each look is right or an error of ours. A signal would end the child with a negative status.
CHILD = """
import os, sys
import winkfs

base, suffix, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
names = [f"{n:05}.txt" for n in range(5_000)]
c = winkfs.open(base)
looks = {
    "read": lambda: [c.read(name) for name in names[::7]],
    "get_many": lambda: list(c.get_many(names)),
    "stat": lambda: [c.stat(name).size for name in names[::7]],
    "missing": lambda: ["no" in c, "none" in c],
    "names": lambda: list(c.names()),
    "prefix": lambda: [e.name for e in c.scan(prefix="0012")],
    "scan": lambda: [e.read() for e in c.scan()],
    "since": lambda: [e.name for e in c.scan(since=1)],
    "file": lambda: c.open_file(names[4_000]).read(),
}
before = {what: look() for what, look in looks.items()}
os.truncate(base + suffix, size)
wrong, refused = [], []
for _ in range(2):
    for what, look in looks.items():
        try:
            if look() != before[what]:
                wrong.append(what)
        except (winkfs.WinkError, ValueError, OSError) as error:
            refused.append(what)
print(wrong, len(refused))
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize("suffix", [".data", ".idx", ".cat"])
def test_a_reader_survives_and_reports_a_cut_file(base: Path, suffix: str, size: int) -> None:
    make(base, {f"{n:05}.txt": b"%d " % n * 50 for n in range(5_000)})
    winkfs.reindex(base)
    args = [sys.executable, "-W", "ignore", "-c", CHILD, str(base), suffix, str(size)]
    env = os.environ | ({} if native.code else {"WINKFS_NATIVE": "0"})
    done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.returncode, done.stderr[-2_000:])
    wrong, refused = done.stdout.rsplit(maxsplit=1)
    assert wrong == "[]"
    if suffix == ".data":
        assert int(refused) >= 8, "contents that are gone were refused"
