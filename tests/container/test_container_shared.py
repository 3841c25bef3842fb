"""One container in many hands: the lock, readers that follow the writer, threads, fork."""

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from container_checks import assert_sound, child, contents, image_of, path_of, put, refused, run
from stored import make, read
from threaded import OWN, ContainerOwner, in_threads, run_owners

import winkfs
from winkfs import Container
from winkfs.container.short import LOOK
from winkfs.errors import Locked

pytestmark = pytest.mark.slow


@pytest.fixture
def writer(base: Path) -> Iterator[Container]:
    with winkfs.create(base) as container:
        container.put_many((f"n{i}", b"old %d" % i) for i in range(100))
        container.sync()
        yield container


@pytest.fixture
def reader(writer: Container, base: Path) -> Iterator[Container]:
    with winkfs.open(base) as container:
        assert len(container) == 100
        yield container


# --- the lock -----------------------------------------------------------------------------------

HOLD = """
import sys, time, winkfs
c = winkfs.open(sys.argv[1], "a")
c.put("theirs", b"1"); c.sync()
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_second_writer_in_this_process_is_locked_out(writer: Container, base: Path) -> None:
    for verb in (lambda: winkfs.open(base, "a"), lambda: winkfs.reindex(base)):
        with refused(Locked, "this process", str(os.getpid()), code=errno.EAGAIN):
            verb()
    assert issubclass(Locked, BlockingIOError)
    writer.put("still", b"mine")
    writer.close()
    winkfs.open(base, "a").close()


def test_a_second_writer_process_gets_the_holder_s_pid(base: Path) -> None:
    winkfs.create(base).close()
    holder = child(HOLD, base)
    assert holder.stdout and holder.stdout.readline() == b"ready\n"
    for _ in range(2):
        with refused(Locked, str(holder.pid)):
            winkfs.open(base, "a")
    assert read(base, "theirs") == b"1"
    assert winkfs.verify(base).problems == []
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    winkfs.open(base, "a").close()
    assert_sound(base, {b"theirs": b"1"})


def test_a_lock_file_with_nonsense_in_it(base: Path) -> None:
    path_of(base, ".lock").write_bytes(b"\xff\xfe" * 99)
    with winkfs.create(base):
        path_of(base, ".lock").write_bytes(b"\xff\xfe" * 99)
        with refused(Locked):
            winkfs.open(base, "a")


# --- readers follow the writer ------------------------------------------------------------------


def test_a_reader_sees_a_sync_and_nothing_before(writer: Container, reader: Container) -> None:
    writer.put("new", b"1")
    writer.put("n1", b"replaced")
    writer.delete("n2")
    writer.rename("n3", "renamed")
    writer.append("n4", b"+")
    writer.put_many((f"many{i}", b"2") for i in range(3000))
    assert len(reader) == 100
    assert "new" not in reader and "renamed" not in reader
    for i in range(5):
        assert reader.read(f"n{i}") == b"old %d" % i
    assert list(reader.get_many(["n1", "n2", "n3"])) == [b"old 1", b"old 2", b"old 3"]
    writer.sync()
    assert reader.read("n1") == b"replaced"
    assert reader.read("new") == b"1"
    assert "n2" not in reader and "n3" not in reader
    with pytest.raises(FileNotFoundError):
        reader.read("n2")
    assert reader.read("renamed") == b"old 3"
    assert reader.read("n4") == b"old 4+"
    assert contents(reader) == contents(writer)


def test_a_reader_sees_every_sync_by_whatever_it_asks(writer: Container, reader: Container) -> None:
    asks: list[Callable[[int], bool]] = [
        lambda i: reader.read("a") == b"%d" % i,
        lambda i: list(reader.get_many(["a"])) == [b"%d" % i],
        lambda i: {e.name: e.read() for e in reader.scan(prefix="a")} == {"a": b"%d" % i},
        lambda i: f"new{i}" in reader and f"new{i - 1}" not in reader,
        lambda i: len(reader) == 102,
        lambda i: reader.open_file("a").read() == b"%d" % i,
        lambda i: reader.stat(f"new{i}").size == 0,
    ]
    for i in range(42):
        writer.put("a", b"%d" % i)
        writer.put(f"new{i}", b"")
        if i:
            writer.delete(f"new{i - 1}")
        writer.sync()
        assert asks[i % len(asks)](i), i


def test_a_reader_follows_a_new_index_and_a_new_writer(base: Path, writer: Container) -> None:
    with winkfs.open(base) as reader:
        assert reader.read("n5") == b"old 5"
        writer.put("n5", b"new")
        writer.close()
        assert reader.read("n5") == b"new"
        with winkfs.open(base, "a") as second:
            second.put_many((f"m{i}", b"%d" % i) for i in range(70_000))  # beyond the overlay
            second.sync()
            assert reader.read("m69999") == b"69999"
            second.delete("n5")
        assert "n5" not in reader
        assert len(reader) == 70_099
        winkfs.reindex(base)
        assert reader.read("m1") == b"1"
        path_of(base, ".idx").unlink()
        assert reader.read("m2") == b"2"
        put(base, "m2", b"again")
        assert reader.read("m2") == b"again"
        assert len(reader) == 70_099


def test_a_reader_opened_between_syncs(writer: Container, base: Path) -> None:
    for i in range(10):
        writer.put_many((f"x{i}.{j}", b"y" * j) for j in range(200))
        writer.delete(f"n{i}")
        writer.sync()
        writer.put("unsynced", b"1")
        with winkfs.open(base) as reader:
            assert len(reader) == 99 - i + 200 * (i + 1) + (i > 0)
            assert ("unsynced" in reader) == (i > 0)
            assert reader.read(f"x{i}.199") == b"y" * 199
            assert reader.notes == []


def test_a_scan_of_a_reader_keeps_its_snapshot(writer: Container, base: Path) -> None:
    writer.put_many((f"n{i}", b"old %d" % i) for i in range(3000))
    writer.sync()
    with winkfs.open(base) as reader:
        scan = reader.scan()
        first = next(scan)
        writer.put_many((f"n{i}", b"new") for i in range(3000))
        writer.close()
        winkfs.reindex(base)
        assert reader.read("n5") == b"new"
        found = {entry.name: entry.read() for entry in [first, *scan]}
    assert found == {f"n{i}": b"old %d" % i for i in range(3000)}


def test_get_many_of_a_reader_goes_on_while_the_writer_works(writer: Container, base: Path) -> None:
    names = [f"n{i}" for i in range(5000)]
    writer.put_many((name, b"old") for name in names)
    writer.sync()
    with winkfs.open(base) as reader:
        reading = reader.get_many(names)
        found = [next(reading)]
        writer.put_many((name, b"new") for name in names)
        writer.sync()
        found += reading
    assert found[0] == b"old"
    assert found[-1] == b"new"  # each batch sees the last sync
    assert set(found) == {b"old", b"new"}


def take_place(other: Path, base: Path) -> None:
    """Another container is moved to where one was; its readers have had time to notice."""
    for suffix in (".data", ".idx"):
        path_of(other, suffix).replace(path_of(base, suffix))
    time.sleep(LOOK + 0.01)


@pytest.mark.parametrize("variant", ["larger", "smaller", "same"])
@pytest.mark.parametrize("classic", [False, True])
def test_a_reader_follows_when_another_container_takes_the_place(
    variant: str, classic: bool, base: Path
) -> None:
    count = {"larger": 300, "smaller": 5, "same": 100}[variant]
    make(base, {f"n{i}": b"%03d" % i for i in range(100)}, classic=classic)
    other = base.with_name("other")
    make(other, {f"n{i}": b"%03d" % (999 - i) for i in range(count)}, classic=classic)
    with winkfs.open(base) as reader:
        assert reader.read("n1") == b"001"
        for suffix in (".data", ".idx"):
            path_of(other, suffix).replace(path_of(base, suffix))
            assert reader.read("n1") in (b"001", b"998")
        time.sleep(LOOK + 0.01)
        assert reader.read("n1") == b"998"
        assert len(reader) == count
        assert list(reader.get_many(["n4", "n2"])) == [b"995", b"997"]


def test_a_reader_follows_when_an_older_copy_takes_the_place(base: Path) -> None:
    make(base, {"a": b"old"})
    older = image_of(base)
    with winkfs.open(base, "a") as writer:
        writer.put("a", b"new" * 1000)
        writer.put("b", b"1")
    with winkfs.open(base) as reader:
        assert reader.read("a") == b"new" * 1000
        take_place(older, base)
        assert reader.read("a") == b"old"
        assert "b" not in reader


def test_a_reader_keeps_its_files_when_the_container_is_removed(base: Path) -> None:
    make(base, {"a": b"1"})
    with winkfs.open(base) as reader:
        for path in base.parent.iterdir():
            path.unlink()
        time.sleep(LOOK + 0.01)
        assert reader.read("a") == b"1"
        assert contents(reader) == {b"a": b"1"}


FOLLOW = """
import sys, winkfs
with winkfs.open(sys.argv[1]) as c:
    print(len(c), flush=True)
    for line in sys.stdin:
        names = sorted(c.names())
        print(repr([(n, c.read(n)) for n in names]) if names else "[]", flush=True)
"""


def test_a_reader_in_another_process_sees_each_sync(base: Path) -> None:
    writer = winkfs.create(base)
    reader = child(FOLLOW, base)
    assert reader.stdin and reader.stdout
    assert reader.stdout.readline() == b"0\n"

    def look() -> str:
        assert reader.stdin and reader.stdout
        reader.stdin.write(b"\n")
        reader.stdin.flush()
        return reader.stdout.readline().decode().strip()

    writer.put("a", b"1")
    assert look() == "[]"
    writer.sync()
    assert look() == repr([("a", b"1")])
    writer.put("a", b"2")
    writer.rename("a", "b")
    writer.put_many([("c", b"3")])
    assert look() == repr([("a", b"1")])
    writer.close()
    assert look() == repr([("b", b"2"), ("c", b"3")])
    winkfs.reindex(base)
    with winkfs.open(base, "a") as writer:
        writer.delete("b")
        writer.sync()
        assert look() == repr([("c", b"3")])
    make(base.with_name("other"), {"z": b"9"})
    take_place(base.with_name("other"), base)
    assert look() == repr([("z", b"9")])
    reader.communicate()
    assert reader.returncode == 0


BUSY = """
import sys, winkfs
with winkfs.open(sys.argv[1], "a") as c:
    for turn in range(20):
        data = b"%d" % turn * 20
        c.put_many((f"n{i}", data + b"%d" % i) for i in range(200))
        for i in range(turn % 7, 200, 7):
            c.append(f"n{i}", b"")
            c.rename(f"n{i}", f"m{i}")
            c.rename(f"m{i}", f"n{i}")
        c.sync()
"""


def test_a_reader_beside_a_busy_writer_never_fails(base: Path) -> None:
    make(base, {f"n{i}": b"%d" % i for i in range(200)})
    names = [f"n{i}" for i in range(200)]
    looks = 0
    with child(BUSY, base) as busy, winkfs.open(base) as reader:
        while busy.poll() is None:
            for i in random.sample(range(200), 20):
                assert reader.read(f"n{i}").endswith(b"%d" % i)
            for name, data in zip(names, reader.get_many(names), strict=True):
                assert data.endswith(name[1:].encode())
            assert sorted(reader.names()) == sorted(names)
            looks += 1
    assert busy.returncode == 0
    assert looks > 3


# --- threads ------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("classic", [False, True])
def test_threads_share_a_writing_handle(classic: bool, base: Path) -> None:
    make(base, {f"{me}/{i}": b"old" for me in range(4) for i in range(OWN)}, classic=classic)
    with winkfs.open(base, "a") as container:
        owners = [ContainerOwner(container, me) for me in range(4)]
        model = {name.encode(): data for name, data in run_owners(owners, seconds=1).items()}
        assert contents(container) == model
    assert_sound(base, model)


def test_threads_share_a_reading_handle_while_the_writer_works(base: Path) -> None:
    writer = winkfs.create(base)
    writer.put_many((f"n{i}", b"0 %d" % i) for i in range(300))
    writer.sync()
    stop = threading.Event()
    with winkfs.open(base) as reader:

        def look() -> None:
            names = [f"n{i}" for i in range(300)]
            while not stop.is_set():
                for i in random.sample(range(300), 30):
                    assert reader.read(f"n{i}").split()[1] == b"%d" % i
                for name, data in zip(names, reader.get_many(names), strict=True):
                    assert data.split()[1] == name[1:].encode()
                assert sum(1 for _ in reader.scan()) == 300
                assert len(reader) == 300

        def change() -> None:
            try:
                for turn in range(15):
                    writer.put_many((f"n{i}", b"%d %d" % (turn, i)) for i in range(300))
                    writer.sync()
            finally:
                stop.set()

        in_threads(look, look, change)
    writer.close()


def test_close_while_another_thread_reads(base: Path) -> None:
    make(base, {f"n{i}": b"%d" % i for i in range(300)})
    reader = winkfs.open(base)
    started = threading.Event()

    def look() -> None:
        try:
            while True:
                for i in range(300):
                    assert reader.read(f"n{i}") == b"%d" % i
                started.set()
        except ValueError as error:
            assert "closed" in str(error)

    def close() -> None:
        started.wait()
        reader.close()

    in_threads(look, look, close)


# --- fork ---------------------------------------------------------------------------------------

FORK = """
import os, sys, winkfs
from winkfs.errors import Closed, Locked
base = sys.argv[1]
c = winkfs.create(base)
c.put("unsynced", b"1")
pid = os.fork()
if pid == 0:
    wrong = []
    for verb in (lambda: c.read("unsynced"), lambda: c.put("child", b"2"), c.sync,
                 lambda: list(c.scan()), lambda: len(c), lambda: c.open_file("unsynced"),
                 lambda: list(c.get_many(["unsynced"]))):
        try:
            verb()
            wrong.append("no error")
        except Closed as error:
            if "fork" not in str(error) or "\\n" in str(error):
                wrong.append(str(error))
    c.close()  # closes nothing of the parent's
    try:
        winkfs.open(base, "a")
        wrong.append("the lock is gone")
    except Locked as error:
        if str(os.getppid()) not in str(error):
            wrong.append(str(error))
    with winkfs.open(base) as mine:
        if "child" in mine:
            wrong.append("the child wrote")
    print(wrong, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
try:
    winkfs.open(base, "a")
    print("the child let go of the lock")
except Locked:
    pass
c.put("parent", b"3")
if c.read("unsynced") != b"1":
    print("the parent lost it")
c.close()
"""


def test_a_writer_is_not_used_across_fork(base: Path) -> None:
    assert run(FORK, base) == "[]\n"
    assert_sound(base, {b"unsynced": b"1", b"parent": b"3"})


SCAN_FORK = """
import os, sys, winkfs
c = winkfs.open(sys.argv[1])
scan, file, many = c.scan(), c.open_file("n1"), c.get_many(["n1", "n2"])
next(scan), next(many)
if os.fork() == 0:
    print(len(list(scan)), file.read(), list(many), flush=True)
    os._exit(0)
os.wait()
print(len(list(scan)), file.read(), list(many))
"""


def test_parent_and_child_go_on_with_what_was_begun_before_fork(
    writer: Container, base: Path
) -> None:
    assert run(SCAN_FORK, base) == 2 * "99 b'old 1' [b'old 2']\n"


FORKED_LOCKED = """
import os, sys, threading, winkfs
c = winkfs.open(sys.argv[1], "a")
inside, leave = threading.Event(), threading.Event()

def files():
    inside.set()
    leave.wait()
    yield "a", b"1"

thread = threading.Thread(target=lambda: c.put_many(files()))
thread.start()
inside.wait()  # another thread holds the handle's lock now
if os.fork() == 0:
    try:
        c.read("a")
    except ValueError:
        print("no deadlock", flush=True)
    os._exit(0)
os.wait()
leave.set()
thread.join()
c.close()
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_another_thread_works_does_not_deadlock(base: Path) -> None:
    winkfs.create(base).close()
    assert run(FORKED_LOCKED, base) == "no deadlock\n"
    assert_sound(base, {b"a": b"1"})
