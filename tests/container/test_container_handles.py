"""The life of a handle: dropped without close, and what it holds until then."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from container_checks import assert_sound, path_of, run
from openfiles import held
from seam import Call, disk_calls
from stored import make, read

import winkfs
from winkfs import Container
from winkfs.dataset.dataset import create as create_dataset

pytestmark = pytest.mark.slow

MANY = 3000


@pytest.fixture
def base(base: Path) -> Path:
    make(base, {f"n{i}": b"%d" % i for i in range(MANY)})
    return base


@contextmanager
def warned(*texts: str) -> Iterator[None]:
    """Just these ResourceWarnings come, in this order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning] * len(texts), caught
    for warning, text in zip(caught, texts, strict=True):
        assert text in str(warning.message)
        assert warning.filename == __file__


def test_a_dropped_reader_lets_go_of_files_and_maps(base: Path) -> None:
    with warned(*[f"unclosed container: {base}"] * 5):
        for _ in range(5):
            winkfs.open(base).read("n1")
    assert held(base.parent) == []


def test_a_closed_handle_does_not_warn(base: Path) -> None:
    with warned():
        winkfs.open(base).close()
        with winkfs.open(base, "a") as writer:
            writer.put("a", b"1")
        del writer


def test_a_dropped_writer_lets_go_of_the_lock_and_syncs_nothing(base: Path) -> None:
    writer = winkfs.open(base, "a")
    writer.put("synced", b"1")
    writer.sync()
    end = writer.superblock["FILESIZE"]
    writer.put("lost", b"2" * 5_000_000)
    with warned(f"unclosed writer: what was not synced is lost: {base}"):
        del writer
    assert held(base.parent) == []
    assert path_of(base, ".data").stat().st_size == end
    with winkfs.open(base, "a") as writer:
        assert writer.read("synced") == b"1"
        assert "lost" not in writer and len(writer) == MANY + 1
    assert_sound(base, {b"n%d" % i: b"%d" % i for i in range(MANY)} | {b"synced": b"1"})


def test_a_writer_dropped_in_the_middle_of_much_writing(base: Path) -> None:
    writer = winkfs.open(base, "a")
    writer.put_many((f"m{i}", bytes(2000)) for i in range(30_000))
    with warned("what was not synced is lost"):
        del writer
    assert held(base.parent) == []
    assert winkfs.verify(base).problems == []
    assert winkfs.verify(base).files == MANY


class Cycle:
    def __init__(self, base: Path) -> None:
        self.me, self.container = self, winkfs.open(base, "a")


def test_a_writer_in_a_cycle_is_collected(base: Path) -> None:
    with warned("unclosed writer"):
        Cycle(base)
        gc.collect()
    winkfs.open(base, "a").close()


def test_a_writer_is_collected_by_its_own_writing_thread(base: Path) -> None:
    """It cannot wait for its own end."""
    began, dropped = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def collect(call: Call) -> None:
        mine = threading.current_thread()
        if call.verb == "write" and mine is not threading.main_thread() and not threads:
            threads.append(mine)
            began.set()
            dropped.wait(60)
            gc.collect()

    with disk_calls(collect):
        gc.disable()
        try:
            owner = Cycle(base)
            owner.container.put_many((f"m{i}", bytes(3000)) for i in range(900))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                assert began.wait(60)
                del owner
                dropped.set()
                threads[0].join(60)
            assert not threads[0].is_alive()
        finally:
            gc.enable()
    assert held(base.parent) == []
    with winkfs.open(base, "a") as writer:
        assert len(writer) == MANY
    assert winkfs.verify(base).problems == []


def test_a_writer_opens_after_a_handle_dropped_by_an_exception(base: Path) -> None:
    """As in a notebook, where nobody closes what an exception left."""

    def cell() -> None:
        container = winkfs.open(base, "a")
        assert isinstance(container, Container)
        raise RuntimeError("oops")

    with warned("unclosed writer"):
        with pytest.raises(RuntimeError):
            cell()
        gc.collect()
        winkfs.open(base, "a").close()


def test_a_dropped_file_holds_its_container_until_then(base: Path) -> None:
    with warned(f"unclosed container: {base}"):
        file = winkfs.open(base).open_file("n7")
        assert file.read() == b"7"
        assert held(base.parent) != []
        del file
        assert held(base.parent) == []


def test_a_scan_goes_on_when_its_container_is_dropped(base: Path) -> None:
    with warned("unclosed container"):
        scan = winkfs.open(base).scan()
        assert {entry.name: entry.read() for entry in scan}["n9"] == b"9"
        del scan
    assert held(base.parent) == []


def test_a_dropped_data_set_lets_go_of_its_shards(tmp_path: Path) -> None:
    with create_dataset(tmp_path / "d") as dataset:
        for name in "ab":
            dataset.put(name, b"1")
            dataset.sync()
    reader = winkfs.open(tmp_path / "d")
    assert reader.read("a") + reader.read("b") == b"11"
    with warned("unclosed data set"):
        del reader
    assert held(tmp_path) == []


def test_a_dropped_writer_of_a_data_set_publishes_nothing(tmp_path: Path) -> None:
    create_dataset(tmp_path / "d").close()
    writer = winkfs.open(tmp_path / "d", "a")
    writer.put("a", b"1")
    with warned("unclosed writer"):
        del writer
    assert held(tmp_path) == []
    with winkfs.open(tmp_path / "d") as reader:
        assert len(reader) == 0


CHILD = """
import gc, os, sys, warnings, winkfs
warnings.simplefilter("error")
base = sys.argv[1]
c = winkfs.open(base, "a")
c.put("mine", b"1" * 3_000_000)
if os.fork() == 0:
    del c
    gc.collect()
    try:
        winkfs.open(base, "a")
    except winkfs.WinkError as error:
        print("this process" in str(error), str(os.getppid()) in str(error), flush=True)
    os._exit(0)
os.wait()
c.close()
"""


def test_a_forked_child_that_drops_a_handle_keeps_the_parent_s(base: Path) -> None:
    assert run(CHILD, base) == "False True\n"
    assert read(base, "mine") == b"1" * 3_000_000
    assert winkfs.verify(base).problems == []
