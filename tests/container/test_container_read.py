"""Reading a container: parts, many files, file objects, lists and scans."""

import errno
import io
import os
import random
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from container_checks import VARIANTS, assert_sound, contents, path_of, refused
from openfiles import opened
from stored import make

import winkfs
from winkformats import native
from winkfs import Container, CorruptError
from winkfs.container.short import LOOK

pytestmark = pytest.mark.in_memory


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
def test_parts_of_a_file(synced: bool, base: Path) -> None:
    data = bytes(range(256)) * 10_000
    with winkfs.create(base) as container:
        container.put("a", data[:1_500_000])
        container.append("a", data[1_500_000:2_000_000])
        container.append("a", data[2_000_000:])
        if synced:
            container.sync()
        for offset in (0, 1, 999_999, 1_048_575, 1_499_999, 1_999_990, len(data) - 1, len(data)):
            for size in (0, 1, 20, 1_100_000, 1 << 40, -1):
                stop = None if size < 0 else offset + size
                assert container.read("a", offset, size) == data[offset:stop], (offset, size)
        assert container.read("a", len(data) + 5) == b""
        assert container.read("a", 1 << 62, 5) == b""


def test_a_negative_offset_is_refused(kept: Container) -> None:
    for verb in (
        lambda: kept.read("a", -1),
        lambda: kept.read("a", -1, 2),
        lambda: kept.write("a", -1, b"x"),
        lambda: kept.truncate("a", -1),
    ):
        with pytest.raises(ValueError, match="-1"):
            verb()


def test_get_many_keeps_the_order_and_repeats(c: Container) -> None:
    c.put_many((f"n{i}", b"%d" % i) for i in range(5000))
    order = [f"n{i * 7919 % 5000}" for i in range(9000)]
    assert list(c.get_many(order)) == [name[1:].encode() for name in order]
    assert list(c.get_many(name.encode() for name in order[:9])) == list(c.get_many(order[:9]))
    assert list(c.get_many([])) == []


@pytest.mark.parametrize("last", ["a", "a" * 40, "a" * 3000])
def test_get_many_of_names_of_all_lengths_at_the_end_of_the_file(last: str, base: Path) -> None:
    names = [*("n" * length for length in (1, 2, 150, 1000, 20_000)), last]
    for data in (b"", b"x", b"x" * 3000):
        where = base.with_name(f"c{len(data)}")
        make(where, dict.fromkeys(names, data))
        with winkfs.open(where) as container:
            assert list(container.get_many(names)) == [data] * 6
            assert list(container.get_many([last])) == [data]


@pytest.mark.parametrize("at", [0, 1, 1023, 1024, 2999])
def test_get_many_gives_what_comes_before_a_missing_name(at: int, c: Container) -> None:
    names = [f"n{i}" for i in range(3000)]
    c.put_many((name, name.encode()) for name in names)
    names[at] = "missing"
    found = []
    with refused(FileNotFoundError, "missing"):
        for data in c.get_many(names):
            found.append(data)
    assert found == [name.encode() for name in names[:at]]


def test_get_many_sees_changes_between_its_steps(c: Container) -> None:
    c.put_many((f"n{i}", b"old") for i in range(3000))
    reading = c.get_many(f"n{i}" for i in range(3000))
    assert next(reading) == b"old"
    c.put("n2999", b"new")
    c.append("n2998", b"er")
    rest = list(reading)
    assert rest[-2:] == [b"older", b"new"]


ATTRIBUTED = {
    "plain": b"1" * 100,
    "columns": b"2" * 100,
    "columns, empty": b"",
    "mode": b"3" * 70_000,
    "mode, empty": b"",
    "xattrs": b"4",
}


def attributed(base: Path) -> None:
    """Files with and without attributes."""
    with winkfs.create(base, columns={"lang": "string"}) as c:
        c.put("plain", ATTRIBUTED["plain"])
        c.put_many(
            (name, ATTRIBUTED[name], 5, {"lang": "de"}) for name in ("columns", "columns, empty")
        )
        c.put("mode", ATTRIBUTED["mode"], mode=0o600)
        c.put("mode, empty", b"", mode=0o600)
        c.put("xattrs", ATTRIBUTED["xattrs"])
        c.setxattrs("xattrs", {b"user.x": b"y" * 300})
        c.sync()
        c.put("what ends the file", b"")


@pytest.mark.usefixtures("short_way")
def test_files_with_attributes_are_read_the_short_way(base: Path) -> None:
    attributed(base)
    with winkfs.open(base) as c:
        for name, data in ATTRIBUTED.items():
            assert c.read(name) == data
            assert c.read(name, 1, 3) == data[1:4]
            assert c.short.read(name) == data
        assert list(c.get_many(ATTRIBUTED)) == list(ATTRIBUTED.values())
        found: list[bytes | None] = [None] * len(ATTRIBUTED)
        keys = [name.encode() + b"/I0" for name in ATTRIBUTED]
        pos = c.store.index.candidates(keys)
        c.bulkget._gather(keys, pos, np.arange(len(keys)), found)
        assert [value for value in found if value] == [data for data in ATTRIBUTED.values() if data]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.usefixtures("short_way")
def test_a_flipped_bit_of_a_file_with_attributes_is_found(base: Path) -> None:
    """Whichever way it is read: right bytes, or an error."""
    attributed(base)
    path = path_of(base, ".data")
    whole, names = path.read_bytes(), [name for name in ATTRIBUTED if name != "mode"]
    start = whole.index(b"2" * 100) - 10
    for at in range(start, whole.index(b"3" * 100) - 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with winkfs.open(base) as c:
            for name in names:
                for read in (c.read, lambda name: next(c.get_many([name]))):
                    try:
                        assert read(name) == ATTRIBUTED[name], (at, name)
                    except (CorruptError, FileNotFoundError):
                        assert name.startswith("columns")


def way(container: winkfs.Container | winkfs.Dataset) -> str:
    """By what the next file will be read, compiled."""
    assert isinstance(container, Container)
    if native.code is None:
        pytest.skip("in Python all files are read by reads")
    return "reads" if container.short.limits[1] > 0 else "map"


def test_the_first_files_are_read_by_reads_and_the_others_mapped(base: Path) -> None:
    sizes = [0, 1, 100, 5_000, 2_000_000, 3, 3_000, 60]
    files = {f"n{i}": bytes([i]) * sizes[i % len(sizes)] for i in range(64)}
    make(base, files)
    with winkfs.open(base) as c:
        assert c.read("n1") == files["n1"] and way(c) == "reads"
        for turn in range(3):
            for name, data in files.items():
                assert c.read(name) == data, (turn, name)
                assert c.read(name, 1, 50) == data[1:51]
            assert way(c) == "map"
    with winkfs.open(base, "a") as c:  # what is written shows in the mapping at once
        assert c.read("n1") == files["n1"] and way(c) == "map"


@pytest.mark.usefixtures("short_way")
@pytest.mark.parametrize("short_way", ["by reads"], indirect=True)
def test_what_is_read_by_reads_is_as_the_writer_left_it(base: Path) -> None:
    with winkfs.create(base) as writer:
        writer.put_many((f"n{i}", b"%d" % i) for i in range(1000))
        writer.put("far", b"far from its inode")
        writer.put_many((f"between{i}", bytes(100)) for i in range(200))
        writer.rename("far", "near")
        writer.sync()
        with winkfs.open(base) as c:
            assert c.read("near") == b"far from its inode"
            assert [c.read(f"n{i}") for i in range(0, 1000, 7)] == [
                b"%d" % i for i in range(0, 1000, 7)
            ]
            writer.put("n7", b"changed")
            writer.delete("n14")
            assert c.read("n7") == b"7"
            assert c.read("n14") == b"14"
            writer.sync()
            assert c.read("n7") == b"changed"
            with pytest.raises(FileNotFoundError):
                c.read("n14")
            assert native.code is None or way(c) == "reads"
    winkfs.reindex(base)  # BASE.idx is another file
    with winkfs.open(base) as c:
        assert c.read("n7") == b"changed"
        os.truncate(f"{base}.data", os.path.getsize(f"{base}.data") // 2)
        with pytest.raises(CorruptError):
            [c.read(f"between{i}") for i in range(200)]
    with pytest.raises(ValueError, match="closed"):
        c.read("n7")


def test_own_changes_are_read_before_any_sync(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("put", b"1")
        assert contents(container) == {b"put": b"1"}
        container.put_many([("many", b"2"), ("many too", b"")])
        assert container.read("many") == b"2"
        assert contents(container) == {b"put": b"1", b"many": b"2", b"many too": b""}
        container.append("put", b"+")
        assert container.read("put") == b"1+"
        assert container.read("put", 1, 5) == b"+"
        assert container.stat("put").size == 2
        container.write("many", 3, b"!")
        assert container.read("many") == b"2\0\0!"
        container.truncate("many too", 3)
        changed = {b"put": b"1+", b"many": b"2\0\0!", b"many too": bytes(3)}
        assert contents(container) == changed
        container.rename("put", "moved")
        container.append("moved", b"+")
        container.delete("many")
        assert container.read("moved") == b"1++"
        left = {b"moved": b"1++", b"many too": bytes(3)}
        assert contents(container) == left
    assert_sound(base, left)


def test_open_file_reads_and_seeks(c: Container) -> None:
    data = b"".join(b"line %d\n" % i for i in range(30_000))
    c.put("a", data[:100_000])
    c.append("a", data[100_000:])
    with c.open_file("a") as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        assert file.name == "a"
        assert file.read(10) == data[:10]
        assert file.tell() == 10
        assert file.seek(-5, io.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:]
        assert file.read(1) == b""
        assert file.seek(5) == 5
        assert file.seek(99_990, io.SEEK_CUR) == 99_995
        buffer = bytearray(10)
        assert file.readinto(buffer) == 10
        assert buffer == data[99_995:100_005]
        file.seek(len(data) + 100)
        assert file.read(5) == b""
        file.seek(0)
        assert file.read() == data
        with refused(OSError, code=errno.EINVAL):
            file.seek(-1)
        with pytest.raises(ValueError):
            file.seek(0, 9)
        with pytest.raises((OSError, io.UnsupportedOperation)):
            file.write(b"x")
    for closed in (file.read, file.tell, lambda: file.seek(0)):
        with pytest.raises(ValueError):
            closed()


def test_open_file_under_the_wrappers_of_io(c: Container) -> None:
    data = "".join(f"größe {i}\n" for i in range(20_000))
    c.put("a", data.encode())
    with c.open_file("a", buffering=1000) as buffered:
        assert buffered.read(7) == data.encode()[:7]
        assert buffered.readline() == data.encode()[7:].split(b"\n")[0] + b"\n"
        assert buffered.peek(1)
        buffered.seek(0)
        assert buffered.read() == data.encode()
    with io.TextIOWrapper(c.open_file("a"), "utf-8") as text:
        assert list(text) == data.splitlines(keepends=True)


def test_open_file_of_nothing(c: Container) -> None:
    c.put("empty", b"")
    with c.open_file("empty") as file:
        assert file.read() == b""
        assert file.readinto(bytearray(5)) == 0


def test_open_file_is_buffered_as_open_does_it(c: Container) -> None:
    """Lines of an unbuffered file took 7 ms each."""
    data = b"".join(b"line %d\n" % i for i in range(30_000))
    c.put("a", data)
    with c.open_file("a") as file:
        assert isinstance(file, io.BufferedReader)
        assert list(file) == data.splitlines(keepends=True)
        file.seek(5)
        assert file.readline() == b"0\n"
    with c.open_file("a", buffering=10) as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read1(100) and file.read() == data[100:]
    with c.open_file("a", buffering=0) as raw_file:
        assert isinstance(raw_file, io.RawIOBase) and raw_file.mode == "rb"
        assert raw_file.read(7) == data[:7]
        assert raw_file.readall() == data[7:]
        assert raw_file.read(1) == b""


@pytest.mark.parametrize("synced", [False, True])
def test_any_part_of_an_open_file_is_read_into_a_buffer(synced: bool, base: Path) -> None:
    """Of extents, holes, parts of entries, and of what is in memory only."""
    dice = random.Random(5)
    model = bytearray(dice.randbytes(2_500_000))
    with winkfs.create(base) as c:
        c.put("a", bytes(model))
        for offset, size in ((10, 5), (1 << 20, 100), (2_000_000, 700_000), (4_000_000, 1)):
            piece = dice.randbytes(size)
            c.write("a", offset, piece)
            model += bytes(max(offset + size - len(model), 0))
            model[offset : offset + size] = piece
        c.punch("a", 500_000, 600_000)
        model[500_000:1_100_000] = bytes(600_000)
        c.append("a", b"the tail")
        model += b"the tail"
        if synced:
            c.sync()
        with c.open_file("a", buffering=0) as file:
            for _ in range(100):
                at, size = dice.randrange(len(model) + 99), dice.choice([0, 1, 99, 70_000, 1 << 21])
                buffer = bytearray(b"?" * size)
                assert file.seek(at) == at
                got = file.readinto(buffer)
                assert buffer[:got] == model[at : at + size]
                assert got == len(model[at : at + size]) and buffer[got:] == b"?" * (size - got)
            file.seek(0)
            assert file.read() == model


def test_a_hole_larger_than_the_memory_is_an_error_of_that_file(base: Path) -> None:
    with winkfs.create(base) as c:
        c.put("hole", b"1")
        c.truncate("hole", 1 << 50)
        c.put("other", b"2")
        c.sync()
        for read in (
            lambda: c.read("hole"),
            lambda: list(c.get_many(["other", "hole"])),
            lambda: [entry.read() for entry in c.scan()],
        ):
            with refused(OSError, code=errno.EFBIG, match="to be read at once"):
                read()
        assert c.read("hole", 1 << 49, 5) == bytes(5)
        with c.open_file("hole") as file:
            assert file.read(3) == b"1\0\0"
            assert file.seek(-2, io.SEEK_END) == (1 << 50) - 2
            assert file.read() == bytes(2)


def test_an_open_file_reports_its_deletion(c: Container) -> None:
    c.put("a", b"data")
    file = c.open_file("a")
    c.delete("a")
    with pytest.raises(FileNotFoundError):
        file.read()


# --- lists --------------------------------------------------------------------------------------


def test_names_are_in_byte_order_and_a_scan_in_disk_order(c: Container) -> None:
    c.put_many([("z", b"1"), ("a", b"2"), ("m", b"3")])
    c.put("z", b"4")
    c.rename("a", "b")
    assert list(c.names()) == ["b", "m", "z"]
    assert [entry.name for entry in c.scan()] == ["m", "z", "b"]
    assert list(c) == ["b", "m", "z"]


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize(
    "glob, found",
    [
        ("*", ["A.HTML", "[x]", "a.html", "b/c.html", "b/d.txt", "new\nline", "\udcff.txt"]),
        ("*.html", ["a.html", "b/c.html"]),
        ("?.html", ["a.html"]),
        ("b/*", ["b/c.html", "b/d.txt"]),
        ("[ab].html", ["a.html"]),
        ("[!a]*", ["A.HTML", "[x]", "b/c.html", "b/d.txt", "new\nline", "\udcff.txt"]),
        ("[[]x]", ["[x]"]),
        ("new*", ["new\nline"]),
        ("\udcff*", ["\udcff.txt"]),
        ("a.html", ["a.html"]),
        ("", []),
        ("nothing*", []),
    ],
)
def test_names_by_glob(glob: str, found: list[str], c: Container) -> None:
    c.put_many(
        (name, b"")
        for name in ["a.html", "b/c.html", "b/d.txt", "new\nline", "\udcff.txt", "A.HTML", "[x]"]
    )
    assert list(c.names(glob)) == found


@pytest.mark.parametrize(
    "prefix, found",
    [
        ("", 6),
        ("a", 3),
        ("a/", 2),
        ("ä", 1),
        ("ä".encode()[:1], 1),
        ("\udcff", 1),
        ("zz", 0),
    ],
)
def test_scan_by_prefix(prefix: str | bytes, found: int, c: Container) -> None:
    c.put_many((name, b"") for name in ["a", "a/b", "a/c", "b", "ä", "\udcff"])
    assert len(list(c.scan(prefix=prefix))) == found


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "classic", "ao", "classic ao"])
def test_scan_from_since_on_and_before_until(variant: str, base: Path) -> None:
    seconds = [-61, -60, -1, 0, 1, 59, 60, 60, 61, 119, 120, 500, 501, 1000]
    with winkfs.create(base, **VARIANTS[variant]) as container:  # type: ignore[arg-type]
        container.put_many((f"{i}", b"x", second) for i, second in enumerate(seconds))
        edges = [None, -1000, -61, -60, -59.5, -1, 0, 0.5, 1, 60, 60.5, 61, 120, 500, 1000, 1001]
        for since in edges:
            for until in edges:
                found = [entry.mtime for entry in container.scan(since, until)]
                wanted = [
                    second
                    for second in seconds
                    if (since is None or second >= since) and (until is None or second < until)
                ]
                assert found == wanted, (since, until)


def test_scan_to_the_nanosecond(c: Container) -> None:
    for ns in (999_999_999, 1_000_000_000, 1_000_000_001, 1_500_000_000):
        c.put(f"{ns}", b"", mtime_ns=ns)
    assert [e.mtime_ns for e in c.scan(1, 1.5)] == [1_000_000_000, 1_000_000_001]
    assert [e.mtime_ns for e in c.scan(since=1.5)] == [1_500_000_000]
    assert [e.mtime_ns for e in c.scan(until=1)] == [999_999_999]


@pytest.mark.slow
def test_a_scan_keeps_its_snapshot(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put_many((f"n{i}", b"old %d" % i) for i in range(3000))
        container.setxattrs("n2500", {b"x": b"y"})
        container.chmod("n2501", 0o600)
        scan = container.scan()
        seen = [next(scan)]
        container.put("new", b"new")
        container.put_many((f"n{i}", b"put") for i in range(0, 3000, 2))
        container.delete("n1001")
        container.append("n1003", b" appended")
        container.rename("n1005", "renamed")
        container.truncate("n1007", 0)
        container.chmod("n2501", 0o644)
        container.sync()
        container.put_many((f"more {i}", b"") for i in range(3000))
        container.sync()
        seen += scan
        assert sorted(entry.name for entry in seen) == sorted(f"n{i}" for i in range(3000))
        for entry in seen:
            assert entry.read() == b"old " + entry.name[1:].encode()
            assert entry.size == len(entry.read())
        modes = {entry.name: entry.mode for entry in seen}
        assert modes["n2501"] == 0o600


@pytest.mark.slow
def test_an_entry_is_read_after_its_scan(c: Container) -> None:
    c.put_many((f"n{i}", b"%d" % i * 3000) for i in range(3000))
    entries = list(c.scan())
    for entry in [*reversed(entries), *entries[::100]]:
        assert entry.read() == entry.name[1:].encode() * 3000


@pytest.mark.slow
def test_scan_of_files_larger_than_its_window(base: Path) -> None:
    model = {}
    with winkfs.create(base) as container:
        for i in range(6):
            model[b"%d" % i] = bytes([i]) * (i * 2_000_000)
            container.put(f"{i}", model[b"%d" % i])
            container.append(f"{i}", b"+")
            model[b"%d" % i] += b"+"
            container.put(f"small {i}", b"s")
            model[b"small %d" % i] = b"s"
        assert contents(container) == model
    assert_sound(base, model)


def test_two_scans_at_once(c: Container) -> None:
    c.put_many((f"n{i}", b"%d" % i) for i in range(3000))
    for one, other in zip(c.scan(), c.scan(prefix="n"), strict=True):
        assert one.name == other.name
        assert one.read() == other.read() == one.name[1:].encode()


@pytest.mark.slow
def test_a_scan_left_in_the_middle_closes_its_file(c: Container, base: Path) -> None:
    c.put_many((f"n{i}", b"1") for i in range(3000))
    before = len(opened(base.parent))
    for _ in range(50):
        next(c.scan())
    assert 0 < len(opened(base.parent)) <= before + 1


def test_a_short_name_at_the_end_of_what_a_reader_has_mapped(base: Path) -> None:
    make(base, {"a much longer name": b"1", "a": b"3"})
    with winkfs.open(base) as reader, winkfs.open(base, "a") as writer:
        assert list(reader.get_many(["a"])) == [b"3"]
        writer.put("b", b"4")  # the file ends later now; nothing behind the old end is asked for
        writer.sync()
        assert list(reader.get_many(["a", "a much longer name"])) == [b"3", b"1"]


@pytest.mark.slow
def test_a_read_needs_no_descriptor_more(base: Path) -> None:
    """Where a process has as many open files as it may have, what is open is read all the same."""
    make(base, {f"{n}": b"%d" % n for n in range(2000)})
    with winkfs.open(base) as c:
        time.sleep(2 * LOOK)  # the next read makes the short way anew
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        # Not 0: poll() of a thread that another test has left would fail.
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        try:
            found = [c.read(f"{n}") for n in range(2000)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found == [b"%d" % n for n in range(2000)]
