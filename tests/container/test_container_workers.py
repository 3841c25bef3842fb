"""Handles in other processes: pickled, copied, inherited by fork, as a DataLoader's workers do."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from container_checks import environment, path_of, put, refused, run
from stored import make, read

import winkfs
from winkfs.dataset.dataset import Dataset
from winkfs.dataset.dataset import create as create_dataset
from winkfs.errors import Closed, StalePlan

pytestmark = pytest.mark.slow

N = 50
CONTENTS = {f"n{i}": b"%d" % i for i in range(N)}


@pytest.fixture
def base(base: Path) -> Path:
    make(base, CONTENTS)
    return base


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data set of two shards and two generations."""
    path = tmp_path / "d"
    with create_dataset(path) as dataset:
        dataset.put_many(list(CONTENTS.items())[: N // 2])
        dataset.sync()
        dataset.put_many(list(CONTENTS.items())[N // 2 :])
    return path


@pytest.fixture(params=["container", "data set"])
def path(request: pytest.FixtureRequest) -> Path:
    chosen: Path = request.getfixturevalue("base" if request.param == "container" else "root")
    return chosen


# --- copies -------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda handle: pickle.loads(pickle.dumps(handle)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_of_a_reader_is_a_handle_of_its_own(path: Path, way: str) -> None:
    reader = winkfs.open(path)
    assert reader.read("n1") == b"1"
    other = COPIES[way](reader)
    reader.close()
    with other:
        assert type(other) is type(reader) and not other.writable
        assert dict(zip(CONTENTS, other.get_many(CONTENTS), strict=True)) == CONTENTS


def test_a_copy_finds_its_container_from_another_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with winkfs.open(path.name) as reader:
        dumped = pickle.dumps(reader)
    monkeypatch.chdir("/")
    with pickle.loads(dumped) as other:
        assert other.read("n7") == b"7"


@pytest.mark.parametrize("way", COPIES)
def test_copying_a_writer_is_refused_with_the_remedy(path: Path, way: str) -> None:
    with winkfs.open(path, "a") as writer:
        with refused(TypeError, match="open it for reading"):
            COPIES[way](writer)
        writer.put("goes", b"on")
    assert read(path, "goes") == b"on"


def test_a_closed_handle_is_not_copied(path: Path) -> None:
    reader = winkfs.open(path)
    reader.close()
    with pytest.raises(Closed):
        pickle.dumps(reader)


def test_a_copied_frozen_reader_keeps_its_moment_or_refuses(base: Path) -> None:
    with winkfs.open(base) as reader:
        reader.freeze()
        dumped = pickle.dumps(reader)
    with pickle.loads(dumped) as other, winkfs.open(base, "a") as writer:
        writer.put("new", b"1")
        writer.sync()
        assert "new" not in other
        with pytest.raises(StalePlan):
            pickle.loads(dumped)


def test_a_copy_of_a_data_set_has_its_generation(root: Path) -> None:
    with winkfs.open(root) as newest, winkfs.open(root, as_of=1) as bound:
        assert isinstance(newest, Dataset) and isinstance(bound, Dataset)
        copies = [pickle.dumps(newest), pickle.dumps(bound)]
    put(root, "new", b"1")
    follower, stays = map(pickle.loads, copies)
    with follower, stays:
        assert (follower.generation, stays.generation) == (2, 1)
        assert len(follower) == N and len(stays) == N // 2
        assert follower.refresh() and not stays.refresh()
        assert follower.read("new") == b"1" and "new" not in stays


# --- processes ----------------------------------------------------------------------------------

WORKERS = """
import multiprocessing, os, sys, threading, warnings
import winkfs

class Files:
    def __init__(self, path):
        self.handle = winkfs.open(path)
        # All that is lazy is there: a module that a thread imports cannot be imported after fork.
        assert list(self.handle.get_many(["n0"])) == [self.handle.read("n0")]
    def __getitem__(self, i):
        return self.handle.read(f"n{i}")

def work(files, numbers, out):
    found = {}
    def read():
        for i in numbers:
            found[i] = files[i]
    threads = [threading.Thread(target=read) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    names = [f"n{i}" for i in numbers]
    assert list(files.handle.get_many(names)) == list(found.values())
    assert sum(1 for _ in files.handle.scan()) == len(files.handle)
    out.put((os.getpid(), found))

if __name__ == "__main__":
    path, method = sys.argv[1:]
    context = multiprocessing.get_context(method)
    files, out = Files(path), context.Queue()
    parts = [range(0, 20), range(10, 30), range(20, 50)]
    busy = threading.Event()
    def look():
        while not busy.wait(0.001):
            assert list(files.handle.get_many(["n3"])) == [b"3"]
    thread = threading.Thread(target=look)
    thread.start()
    workers = [context.Process(target=work, args=(files, part, out)) for part in parts]
    [worker.start() for worker in workers]
    got = [out.get(timeout=60) for _ in workers]
    [worker.join() for worker in workers]
    busy.set()
    thread.join()
    assert len({pid for pid, _ in got} | {os.getpid()}) == 4
    for _, found in got:
        for i, data in found.items():
            assert data == b"%d" % i, (i, data)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    files.handle.close()
    print("right")
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_through_the_handle_they_are_given(
    path: Path, method: str, tmp_path: Path
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, script, path, method],
        env=environment(), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


CHILDREN = """
import os, sys, winkfs
c = winkfs.open(sys.argv[1])
assert c.read("n1") == b"1"
before = len(os.listdir("/proc/self/fd"))
if os.fork() == 0:
    assert c.read("n2") == b"2"
    if os.fork() == 0:  # of a child
        assert c.read("n3") == b"3" and len(c) == 50
        c.close()
        print("grandchild", flush=True)
        os._exit(0)
    os.wait()
    assert len(os.listdir("/proc/self/fd")) <= before
    c.close()
    c.close()
    print("child", flush=True)
    os._exit(0)
os.wait()
assert c.read("n4") == b"4"
c.close()
print("parent")
"""


def test_children_of_children_read_and_close_only_what_is_theirs(base: Path) -> None:
    assert run(CHILDREN, base) == "grandchild\nchild\nparent\n"


CLOSED_IN_CHILD = """
import os, sys, winkfs
c = winkfs.open(sys.argv[1])
if os.fork() == 0:
    c.close()
    try:
        c.read("n1")
    except winkfs.WinkError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(c.read("n1"))
"""


@pytest.mark.few(1)
def test_a_reader_closed_in_the_child_is_closed_there_alone(path: Path) -> None:
    answer, read = run(CLOSED_IN_CHILD, path).splitlines()
    assert "closed" in answer and read == "b'1'"


def test_a_reader_in_a_child_opens_the_container_now_in_place(base: Path) -> None:
    code = """
import os, sys, winkfs
base = sys.argv[1]
c = winkfs.open(base)
with winkfs.open(base, "a") as w:
    w.put("later", b"1")
if os.fork() == 0:
    os.chdir("/")
    print(c.read("later"), len(c), flush=True)
    for suffix in (".data", ".idx"):
        os.unlink(base + suffix)
    print(c.read("n1"), flush=True)
    os._exit(0)
os.wait()
print(c.read("n1"), flush=True)
if os.fork() == 0:
    try:
        c.read("n1")
    except FileNotFoundError as error:
        print("gone", flush=True)
    os._exit(0)
os.wait()
"""
    assert run(code, base).split("\n") == ["b'1' 51", "b'1'", "b'1'", "gone", ""]


DATASET_WRITER = """
import os, sys, winkfs
root = sys.argv[1]
d = winkfs.open(root, "a")
d.put("mine", b"1")
if os.fork() == 0:
    for verb in (lambda: d.read("mine"), lambda: d.put("a", b""), d.sync, lambda: len(d),
                 lambda: list(d.scan()), lambda: "mine" in d):
        try:
            verb()
            print("no error")
        except winkfs.WinkError as error:
            assert "fork" in str(error), error
    with d:
        pass
    d.close()
    print("child", flush=True)
    os._exit(0)
os.wait()
d.close()
with winkfs.open(root) as d:
    print(d.read("mine"))
"""


def test_a_child_takes_nothing_from_a_writer_of_a_data_set(root: Path) -> None:
    assert run(DATASET_WRITER, root) == "child\nb'1'\n"


def test_a_copy_of_a_removed_container_reports_it(base: Path) -> None:
    with winkfs.open(base) as reader:
        dumped = pickle.dumps(reader)
    path_of(base, ".data").unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(dumped)
