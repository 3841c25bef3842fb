"""The seam to the disk: FileStorage and MemoryStorage beside a bytearray.

And a kernel that writes less than it was given, knows no RWF_DONTCACHE, has no room for a reserve.
"""

import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cached import evict, resident
from constants import shrink
from drawn import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import all_raise

from winkformats.disk import pagecache, room
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.pagecache import PAGE
from winkformats.disk.paths import directory_of, locate
from winkformats.disk.posix import (
    FAST_WRITE_WINDOW,
    RWF_DONTCACHE,
    SMALL_WRITE,
    WRITE_WINDOW,
    FileStorage,
)
from winkformats.disk.storage import Lookups, replacing
from winkformats.errors import CorruptError

pytestmark = pytest.mark.on_disk

KINDS = ("memory", "cached", "uncached", "sliding")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """-> a function: kind -> an empty storage. "sliding" is uncached without RWF_DONTCACHE."""
    opened = []

    def new(kind: str):
        if kind == "memory":
            return MemoryStorage()
        path = tmp_path / f"file{len(opened)}"
        storage = FileStorage(path, "x", uncached=kind != "cached")
        storage._dontcache = kind == "uncached"
        opened.append(storage)
        return storage

    yield new
    for storage in opened:
        storage.close()


@pytest.fixture(params=KINDS)
def storage(request, make):
    return make(request.param)


def fill(storage, data: bytes) -> None:
    storage.write(0, [data])
    storage.sync()


@pytest.fixture
def cold(tmp_path):
    """A file of 64 pages, none of them cached; skipped where the kernel keeps them (tmpfs)."""
    path = tmp_path / "cold"
    path.write_bytes(bytes(range(256)) * (64 * PAGE // 256))
    evict(path)
    return path


@pytest.fixture
def exact(cold):
    """The cold file, opened so that nothing is read around what is asked for."""
    with FileStorage(cold, "w") as storage:
        os.posix_fadvise(storage.fd, 0, 0, os.POSIX_FADV_RANDOM)
        yield storage


# --- one behaviour, four storages --------------------------------------------------------------


def test_read_at_the_end_is_short_not_an_error(storage):
    fill(storage, b"0123456789")
    for at, length, found in ((8, 5, b"89"), (10, 5, b""), (99, 5, b""), (3, 0, b"")):
        assert storage.read(at, length) == found


def test_write_behind_the_end_leaves_zeros_between(storage):
    assert storage.write(5, [b"ab", b"", b"c"]) == 3
    assert storage.read(0, 20) == bytes(5) + b"abc"
    assert storage.size() == 8


def test_preallocate_keeps_content_and_never_shrinks(storage):
    fill(storage, b"abc")
    storage.preallocate(8192)
    assert storage.size() == 8192
    storage.preallocate(10)
    assert storage.size() == 8192
    assert storage.read(0, 8192) == b"abc".ljust(8192, b"\0")


def test_more_buffers_than_one_call_takes(storage):
    parts = [b"%04d" % i for i in range(2500)]
    assert storage.write(3, parts) == 10_000
    assert storage.read(3, 10_000) == b"".join(parts)


def test_write_of_nothing(storage):
    assert storage.write(4, []) == 0
    assert storage.write(4, [b"", b""]) == 0


def test_patch_shows_in_reads_and_in_an_older_view(storage):
    fill(storage, b"0123456789")
    view = storage.view(10)
    storage.patch(4, b"XY")
    assert storage.read(0, 10) == b"0123XY6789"
    assert bytes(view[:10]) == b"0123XY6789"


def test_patch_each_changes_all_places_and_nothing_else(storage):
    model = bytearray(os.urandom(80 * PAGE))
    fill(storage, bytes(model))
    places = [*range(0, len(model), PAGE - 7), 0, len(model)]  # more than are brought at once
    storage.patch_each([], b"X")
    storage.patch_each(places, b"X")
    for place in places:
        model[place : place + 1] = b"X"
    assert storage.read(0, len(model) + 1) == model


def test_patch_each_brings_the_pages_of_many_places_together(make, monkeypatch):
    """The kernel is asked for the pages before the first of them is waited for."""
    storage, asked, real = make("cached"), [], os.pwrite
    fill(storage, bytes(8 * PAGE))
    advise = os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *of: asked.append("ask") or advise(*of))
    monkeypatch.setattr(os, "pwrite", lambda *of: asked.append("write") or real(*of))
    storage.patch_each([0, PAGE, 5 * PAGE], b"X")
    assert asked == ["ask"] * 3 + ["write"] * 3


def test_views_cannot_be_written(storage):
    fill(storage, b"0123456789")
    with pytest.raises(TypeError):
        storage.view(10)[0] = 1
    assert len(storage.view(0)) == 0


def test_truncate_cuts_and_grows_with_zeros_while_a_view_is_held(storage):
    fill(storage, b"0123456789")
    view = storage.view(4)
    storage.truncate(4)
    storage.truncate(6)
    assert storage.read(0, 99) == b"0123\0\0"
    assert bytes(view[:4]) == b"0123"


def test_duplicate_outlives_the_original(storage):
    fill(storage, b"abc")
    other = storage.duplicate()
    storage.close()
    storage.close()  # a second time does nothing
    assert other.read(0, 3) == b"abc"
    other.write(3, [b"def"])
    assert other.read(0, 9) == b"abcdef"
    assert (other.name, other.uncached) == (storage.name, storage.uncached)
    other.close()


def test_bulk_reads_what_is_there_and_stops_at_the_end(storage):
    data = bytes(np.random.default_rng(1).integers(0, 256, 100_000, np.uint8))
    fill(storage, data)
    reader = storage.bulk(0, 200_000)
    # The third goes back into the piece before; the last ones reach the end, and lie behind it.
    for at, length in ((10, 5), (10, 50_000), (40_000, 5_000), (99_990, 50), (150_000, 50)):
        assert bytes(reader.read(at, length)) == data[at : at + length]
    reader.close()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    writes=st.lists(
        st.tuples(
            st.integers(0, 40_000),
            st.lists(st.integers(0, 9_000), max_size=4),
            st.sampled_from(("write", "patch", "sync", "truncate", "preallocate")),
        ),
        max_size=12,
    ),
)
def test_any_order_of_changes_is_as_on_a_bytearray(make, kind, writes):
    storage, model = make(kind), bytearray()
    for number, (offset, sizes, what) in enumerate(writes):
        parts = [bytes([number + 1]) * size for size in sizes]
        if what == "sync":
            storage.sync()
        elif what == "truncate":
            storage.truncate(offset)
            model = model[:offset].ljust(offset, b"\0")
        elif what == "preallocate":
            storage.preallocate(offset)
            model = model.ljust(offset, b"\0")
        elif data := b"".join(parts):
            if what == "write":
                assert storage.write(offset, parts) == len(data)
            else:
                storage.patch(offset, data)
            model = model.ljust(offset, b"\0")
            model[offset : offset + len(data)] = data
        assert storage.size() == len(model)
    assert storage.read(0, len(model) + 1) == model
    assert bytes(storage.view(len(model))[: len(model)]) == model


# --- a kernel that does less than it was asked -------------------------------------------------


@pytest.fixture
def short_calls(monkeypatch):
    """The kernel reads 3 bytes and writes 3 or 7 at a time."""
    pread, preadv, pwrite, pwritev = os.pread, os.preadv, os.pwrite, os.pwritev

    def short(fd, parts, offset, flags=0):
        return pwritev(fd, [memoryview(b"".join(parts))[:7]], offset, flags)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, memoryview(data)[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 3), at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:3]], at))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_writes_cut_short_are_continued(make, short_calls, kind):
    storage = make(kind)
    assert storage.write(0, [b"abc", b"", b"defghijkl", b"m" * 20]) == 32
    storage.patch(32, b"0123456789")
    assert storage.read(0, 99) == b"abcdefghijkl" + b"m" * 20 + b"0123456789"


def test_reads_cut_short_are_continued(make, short_calls):
    storage = make("cached")
    fill(storage, b"0123456789")
    assert storage.read(1, 7) == b"1234567"
    assert storage.read(1, 99) == b"123456789"
    assert bytes(storage.bulk(0, 10).read(1, 99)) == b"123456789"


def refuse(patch, verb, number):
    def refused(*_):
        raise OSError(number, "refused")

    patch.setattr(os, verb, refused)


@pytest.mark.parametrize(
    ("kind", "verb", "number", "call", "words"),
    [
        ("cached", "pwritev", errno.ENOSPC, "write", (0, [b"1"])),
        ("uncached", "pwritev", errno.ENOSPC, "write", (0, [bytes(SMALL_WRITE)])),
        ("cached", "pwrite", errno.ENOSPC, "patch", (0, b"1")),
        ("cached", "fdatasync", errno.ENOSPC, "sync", ()),
        ("cached", "posix_fallocate", errno.ENOSPC, "preallocate", (100_000,)),
        ("cached", "posix_fallocate", errno.EIO, "preallocate", (100_000,)),
        ("cached", "ftruncate", errno.ENOSPC, "truncate", (100,)),
    ],
)
def test_what_the_disk_refuses_names_the_file(make, monkeypatch, kind, verb, number, call, words):
    storage = make(kind)
    refuse(monkeypatch, verb, number)
    with pytest.raises(OSError, match="refused") as caught:
        getattr(storage, call)(*words)
    monkeypatch.undo()
    assert (caught.value.errno, caught.value.filename) == (number, storage.name)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_kernel_without_dontcache_is_asked_once(make, monkeypatch, number):
    real, asked = os.pwritev, []

    def refuse(fd, parts, offset, flags=0):
        if flags:
            asked.append(flags)
            raise OSError(number, "no such flag")
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", refuse)
    storage = make("uncached")
    for i in range(3):
        storage.write(i * SMALL_WRITE, [bytes([i + 1]) * SMALL_WRITE])
    storage.sync()
    assert asked == [RWF_DONTCACHE]
    assert storage.read(0, 4 * SMALL_WRITE) == b"".join(bytes([i]) * SMALL_WRITE for i in (1, 2, 3))


def test_small_uncached_writes_do_not_ask_for_dontcache(make, monkeypatch):
    real, flags_seen = os.pwritev, []

    def watch(fd, parts, offset, flags=0):
        flags_seen.append(flags)
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", watch)
    storage = make("uncached")
    storage.write(0, [bytes(SMALL_WRITE - 1)])
    storage.write(0, [bytes(SMALL_WRITE)])
    assert flags_seen == [0, RWF_DONTCACHE]


def test_no_room_for_the_reserve_leaves_the_size(make, monkeypatch):
    storage = make("cached")
    fill(storage, b"abc")
    real = os.posix_fallocate

    def half(fd, offset, length):
        real(fd, offset, length // 2)  # what a filesystem may have done before it gave up
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(OSError, match="no room"):
        storage.preallocate(100_000)
    assert storage.size() == 3


def test_filesystem_without_fallocate_is_no_error(make, monkeypatch):
    storage = make("cached")
    refuse(monkeypatch, "posix_fallocate", errno.EOPNOTSUPP)
    storage.preallocate(100_000)
    assert storage.size() == 0


# --- opening -----------------------------------------------------------------------------------


def test_a_new_file_takes_no_others_place(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    with pytest.raises(FileExistsError):
        FileStorage(tmp_path / "f", "x")
    with FileStorage(tmp_path / "f", "w") as storage:
        assert storage.read(0, 9) == b"abc"


def test_a_file_opened_for_reading_refuses_writes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    with FileStorage(tmp_path / "f") as storage:
        all_raise(OSError, (lambda: storage.write(0, [b"x"]), lambda: storage.patch(0, b"x")))
    assert (tmp_path / "f").read_bytes() == b"abc"
    with pytest.raises(FileNotFoundError):
        FileStorage(tmp_path / "g", "w")


def test_a_new_file_takes_the_old_ones_place(tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f.tmp").write_bytes(b"left by a killed writer")
    with FileStorage(tmp_path / "f") as reader:
        with replacing(*locate(tmp_path / "f")) as new:
            new.write(0, [b"new"])
        new.close()
        assert reader.read(0, 9) == b"old"  # who has it open keeps it
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not (tmp_path / "f.tmp").exists()


def test_directory_of_a_bare_name_is_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory_of(os.path.dirname("f")).sync()


# --- the page cache ----------------------------------------------------------------------------


def pass_over(storage, uncached: bool) -> None:
    reader = storage.bulk(0, 64 * PAGE, uncached=uncached)
    for at in range(0, 64 * PAGE, 16 * PAGE):
        reader.read(at, 16 * PAGE)
    reader.close()


@pytest.mark.parametrize(("uncached", "pages"), [(True, 0), (False, 64)])
def test_a_pass_leaves_all_pages_or_none(cold, uncached: bool, pages: int):
    with FileStorage(cold) as storage:
        pass_over(storage, uncached=uncached)
    assert resident(cold).sum() == pages


def test_uncached_pass_keeps_pages_that_others_use(cold, exact):
    exact.read(20 * PAGE, 2 * PAGE)
    before = resident(cold)
    pass_over(exact, uncached=True)
    after = resident(cold)
    assert before[20:22].all()
    assert (after == before).all()


def test_pages_seen_go_but_those_that_were_there_stay(cold, exact):
    exact.read(20 * PAGE, 2 * PAGE)
    exact.remember_resident()
    view = exact.view(64 * PAGE, sparse=True)
    assert [view[i * PAGE] for i in (3, 20)] == [0, 0]
    exact.read_into(memoryview(bytearray(PAGE)), 40 * PAGE)
    exact.write(64 * PAGE, [b"x" * PAGE])
    os.fsync(exact.fd)
    assert np.flatnonzero(resident(cold)).tolist() == [3, 20, 21, 40, 64]
    exact.drop_seen()
    assert np.flatnonzero(resident(cold)).tolist() == [20, 21]
    assert view[3 * PAGE + 1] == 1


@pytest.fixture
def looks(request, cold, monkeypatch):
    """At 64 pages; of a look that reads one page alone, so many are worth it as are given."""
    shrink(monkeypatch, "looks", single=request.param * PAGE)
    with FileStorage(cold) as storage:
        yield Lookups(storage, 64 * PAGE)


def look(looks: Lookups, page: int) -> None:
    looks.check(64 * PAGE)
    assert looks.view[page * PAGE + 7] == 7


@pytest.mark.parametrize("looks", [8], indirect=True)
def test_few_looks_read_a_page_each(cold, looks):
    for page in (40, 3, 20):
        look(looks, page)
    assert looks.advise()
    assert np.flatnonzero(resident(cold)).tolist() == [3, 20, 40]


@pytest.mark.parametrize("looks", [32], indirect=True)
def test_many_looks_read_what_is_around_them(cold, looks):
    for page in (40, 3, 20, 60):
        look(looks, page)
    assert not looks.advise()
    assert resident(cold).sum() > 10


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("looks", [1], indirect=True)
def test_places_are_fetched_together_and_nothing_around_them(cold, looks, there):
    if there:
        cold.read_bytes()
    pages = [i for i in range(60) if i % 3] * 2
    starts = np.array(pages[::-1]) * PAGE + PAGE - 4
    looks.check(64 * PAGE)
    looks.fetch(starts, starts + 4)
    expected = set(range(64)) if there else set(pages)
    until = time.monotonic() + 10
    while set(np.flatnonzero(resident(cold))) != expected:
        assert time.monotonic() < until
    for page in pages:
        look(looks, page)
    assert set(np.flatnonzero(resident(cold))) == expected


@pytest.mark.parametrize("looks", [2], indirect=True)
def test_more_places_than_the_file_is_worth_are_not_fetched(looks):
    starts = np.arange(50) * PAGE
    looks.fetch(starts, starts + 1)
    assert not looks.advise()


@pytest.mark.parametrize("kind", ["memory", "cached"])
def test_looks_at_a_file_that_was_cut_short_are_refused(make, kind):
    storage = make(kind)
    fill(storage, bytes(range(256)) * (64 * PAGE // 256))
    looks = Lookups(storage, 64 * PAGE)
    starts = np.arange(64) * PAGE
    looks.fetch(starts, starts + 9)
    look(looks, 63)
    if kind == "cached":
        storage.truncate(64 * PAGE - 1)
        with pytest.raises(CorruptError, match="cut short"):
            looks.check(64 * PAGE)


def test_the_longest_of_many_page_cache_gaps_are_dropped(cold, exact, monkeypatch):
    shrink(monkeypatch, "the disk", dropped=1)
    exact.read(20 * PAGE, PAGE)
    exact.remember_resident()
    exact.read(0, 64 * PAGE)
    exact.drop_seen()
    assert np.flatnonzero(resident(cold)).tolist() == list(range(21))


@pytest.mark.parametrize("kind", ["uncached", "sliding"])
@pytest.mark.parametrize("size", [PAGE, 40 * PAGE])
def test_uncached_writes_leave_no_pages_after_sync(cold, make, tmp_path, kind, size):
    storage = make(kind)
    for i in range(24):
        storage.write(i * size, [b"x" * size])
    storage.sync()
    left = resident(tmp_path / "file0", 24 * size)
    assert left.mean() < 0.1, f"{left.sum()} of {len(left)} pages stayed"


def test_uncached_writes_without_any_help_from_the_c_library(make, monkeypatch):
    monkeypatch.setattr(pagecache, "_sync_file_range", None)
    monkeypatch.setattr(pagecache, "_mincore", None)
    storage = make("sliding")
    storage.write(0, [b"x" * (17 << 20)])
    storage.sync()
    reader = storage.bulk(0, 17 << 20)
    assert bytes(reader.read(16 << 20, 4)) == b"xxxx"
    reader.close()


def test_a_pass_that_ends_after_its_file_was_closed_is_quiet(cold):
    storage = FileStorage(cold)
    reader = storage.bulk(0, 64 * PAGE)
    reader.read(0, 4 * PAGE)
    storage.close()
    reader.close()


# --- what is dropped behind a reader -----------------------------------------------------------


def test_an_interrupt_while_pages_are_looked_at_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mapping, which has a user then, cannot be closed: this was a BufferError."""

    def interrupted(*given: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(pagecache, "_mincore", interrupted)
    (tmp_path / "f").write_bytes(bytes(3 * PAGE))
    with (tmp_path / "f").open("rb") as file, pytest.raises(KeyboardInterrupt):
        pagecache.absent(file.fileno(), 3 * PAGE)


def test_a_file_is_whole_only_if_no_page_is_missing(cold):
    with FileStorage(cold) as storage:
        length = storage.size()
        assert not pagecache.whole(storage.fd, length)
        storage.read(0, length)
        if not pagecache.whole(storage.fd, length):
            pytest.skip("this kernel has no cachestat")
        assert pagecache.whole(storage.fd, length, 5 * PAGE + 1)
        assert storage.dropper(0, length) is None
        pagecache.forget(storage.fd, 32, 64)
        if resident(cold, length).all():
            pytest.skip("the kernel keeps the file in one folio")
        assert not pagecache.whole(storage.fd, length)
        assert not pagecache.whole(storage.fd, length, 63 * PAGE)


@pytest.mark.parametrize("start", [0, 10 * PAGE + 7])
def test_many_ranges_are_dropped_save_what_was_cached(cold, exact, start):
    exact.read(40 * PAGE, 2 * PAGE)
    before = resident(cold)
    assert before[40:42].all() and not before[:30].any()
    drop = exact.dropper(start, exact.size())
    assert drop is not None
    ranges = [(p * PAGE + 5, (p + 2) * PAGE - 5) for p in (1, 12, 20, 39, 40, 41, 50, 62)]
    for low, high in ranges:
        exact.read(low, high - low)
    drop.ranges(ranges)
    after = resident(cold)
    kept = np.zeros(64, bool)
    kept[1:3] = start > 0  # what is before `start` is not its business
    np.testing.assert_array_equal(after, before | kept)
    drop.ranges([(0, PAGE)])


def test_pages_read_ahead_are_spared_once(cold, exact):
    exact.remember_resident()
    exact.read(0, 3 * PAGE)
    exact.read_ahead(40 * PAGE, 2 * PAGE)
    exact.read(40 * PAGE, 2 * PAGE)  # waits for them
    assert exact.present(40 * PAGE, 2 * PAGE)
    exact.drop_seen()
    assert np.flatnonzero(resident(cold)).tolist() == [40, 41]
    exact.drop_seen()
    assert not resident(cold).any()


@pytest.mark.parametrize(("number", "answer"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, True)])
def test_pages_are_absent_if_a_read_would_wait(exact, monkeypatch, number, answer):
    """The kernel's answer is given: to ask begins to read, and a disk can be faster than it."""
    exact.remember_resident()

    def preadv(fd, buffers, offset, flags):
        assert (fd, offset, flags) == (exact.fd, 40 * PAGE, os.RWF_NOWAIT)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", preadv)
    assert exact.present(40 * PAGE, 2 * PAGE) is answer


@pytest.mark.parametrize(
    ("lines", "limits", "most"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000"}, 5000),
        ("0::/a/b\n", {"a/b/memory.max": "4000", "a/memory.max": "5000"}, 4000),
        ("0::/\n", {"memory.max": "7000", "../memory.max": "1"}, 7000),
        ("3:cpu:/x\n4:memory,io:/a:b\n0::/\n", {"memory/a:b/memory.limit_in_bytes": "9"}, 9),
        ("3:cpu:/x\n", {"x/memory.max": "3"}, None),
        ("0::/gone\n", {}, None),
        (None, {"memory.max": "3"}, None),
    ],
)
def test_memory_is_that_of_the_machine_or_of_a_cgroup(tmp_path, lines, limits, most):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    if lines is not None:
        (proc / "self/cgroup").write_text(lines)
    for name, limit in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{limit}\n")
    machine = os.sysconf("SC_PHYS_PAGES") * PAGE
    assert room.memory(proc, groups) == (machine if most is None else most)
    assert 0 < room.memory() <= machine


@pytest.mark.parametrize(("gigabytes", "huge"), [(1, "0"), (8, None)])
def test_little_memory_is_saved_before_numpy_is_there(monkeypatch, gigabytes, huge):
    monkeypatch.delenv("NUMPY_MADVISE_HUGEPAGE", raising=False)
    code = (
        "import os, sys; from winkformats.disk import room; assert 'numpy' not in sys.modules;"
        f"room.memory = lambda: {gigabytes} << 30; room.save_memory();"
        "print(os.environ.get('NUMPY_MADVISE_HUGEPAGE'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(huge)


@pytest.mark.slow
@pytest.mark.parametrize(("fast", "ample"), [(False, 8), (True, 8), (True, 1)])
@pytest.mark.parametrize("kind", ["uncached", "sliding"])
def test_uncached_writes_wait_for_those_before_them(make, monkeypatch, kind, fast, ample):
    """What waits for the disk has a bound, a farther one for a fast disk where there is memory, and
    the last writes are never waited for."""
    dropped, end, part, most = [], 0, 3 << 20, WRITE_WINDOW
    real, clock = pagecache.drop, itertools.count(1)

    def drop(fd: int, start: int, stop: int) -> int:
        assert stop <= end + part - (WRITE_WINDOW // 2)
        dropped.append((start, stop))
        return real(fd, start, stop)

    monkeypatch.setattr(pagecache, "drop", drop)
    monkeypatch.setattr("time.monotonic", lambda: next(clock) * (1e-3 if fast else 1.0))
    monkeypatch.setattr(room, "memory", lambda: ample << 30)
    storage = make(kind)
    for _ in range(48):
        storage.write(end, [b"x" * part])
        end += part
        most = max(most, waiting := end - (dropped[-1][1] if dropped else 0))
        assert waiting <= (FAST_WRITE_WINDOW if fast and dropped and ample >= 4 else WRITE_WINDOW)
    assert most == WRITE_WINDOW or (fast and ample >= 4 and most > FAST_WRITE_WINDOW - part)
    assert dropped[0][0] == 0
    assert all(a[1] == b[0] for a, b in itertools.pairwise(dropped)), dropped


@pytest.mark.parametrize("again", [False, True])
def test_a_sync_of_another_thread_during_an_uncached_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """As on a mount: one thread writes, another one syncs."""
    storage = FileStorage(tmp_path / "file", "x", uncached=True)
    storage._dontcache = False  # as where the kernel does not know it
    write_back, chunk = pagecache.write_back, bytes(SMALL_WRITE)

    def synced(fd: int, start: int, stop: int) -> None:
        write_back(fd, start, stop)
        thread = threading.Thread(target=storage.sync)
        thread.start()
        thread.join()

    if again:
        storage.write(0, [chunk])
    monkeypatch.setattr(pagecache, "write_back", synced)
    for at in range(SMALL_WRITE, 4 * SMALL_WRITE, SMALL_WRITE):
        assert storage.write(at, [chunk]) == SMALL_WRITE
    storage.sync()
    storage.close()
