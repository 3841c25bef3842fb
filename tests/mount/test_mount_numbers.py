"""Numbers of files in a read-only mount: they say what the Source says by ids, and stay good."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from constants import shrink
from flips import flip
from mount_requests import parsed
from mounting import WINKFS, mounted, not_by_libfuse, refused, server_of, serving
from mounting import there as there
from sources import at, kept, tree_of
from sources import sources_end as sources_end  # a fixture
from stored import make

import winkfs
from winkfs import FileType
from winkfs.errors import DerivedDamage
from winkfs.mounting.container import ContainerSource
from winkfs.mounting.dataset import DatasetSource
from winkfs.mounting.numbers import TOP, Numbers
from winkmount.kernel import protocol
from winkmount.kernel.server import Server
from winkmount.served import Caching, Served
from winkmount.source import UNREADABLE, Attr

pytestmark = pytest.mark.in_memory

PARTS = ["a", "b", "b-", "b.", "b0", "c", "..", "", "é", "x" * 256, "@", "@file"]
CHANCES = [9, 9, 3, 3, 3, 9, 1, 1, 2, 1, 1, 1]
KINDS = [FileType.FILE, FileType.FILE, FileType.EXEC, FileType.LINK, FileType.DIR]


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "c")


def source_of(base: str) -> ContainerSource:
    return kept(ContainerSource(winkfs.open(base)))


def numbers_of(source: ContainerSource | DatasetSource) -> Numbers:
    numbers = source.numbered()
    assert numbers is not None
    return numbers


def read_by_path(numbers: Numbers, path: bytes) -> bytes:
    node = TOP
    for part in path.split(b"/"):
        node, _ = numbers.find(node, part)
    return numbers.read(node, 0, 99)


def some_name(rng: random.Random) -> str:
    return "/".join(rng.choices(PARTS, CHANCES, k=rng.choice([1, 1, 2, 2, 3, 4])))


def change(container: winkfs.Container, rng: random.Random, count: int) -> None:
    for i in range(count):
        name = some_name(rng)
        ftype = FileType.FILE if name.endswith("/") else rng.choice(KINDS)
        if not name or (rng.random() < 0.2 and name in container):
            continue
        data = b"" if ftype == FileType.DIR else b"%d" % i * rng.randrange(9)
        if rng.random() < 0.3:
            mode = 0o755 if ftype == FileType.DIR else 0o640
            container.put(name, data, ftype=ftype, mode=mode, uid=7, gid=8, mtime_ns=i)
        else:
            container.put(name, data, ftype=ftype, mtime_ns=-i)
        if rng.random() < 0.1:
            container.delete(name)


def listed(numbers: Numbers, node: int, offset: int = 0) -> list[tuple[bytes, int, Attr, int]]:
    """Name, number, attributes and offset of each entry from an offset on."""
    found = []
    while True:
        page, start, stop = numbers.entries(node, offset)
        if start == stop:
            return found
        for i in range(start, stop):
            attr = Attr(*map(int, page.attrs[i]))
            found.append((page.names[i], int(page.nodes[i]), attr, page.offsets[i]))
        offset = page.offsets[stop - 1]


def by_numbers(numbers: Numbers) -> dict[bytes, Attr]:
    """The same by numbers; each can be found by its name, and says its path and attributes."""
    found, left, seen = dict[bytes, Attr](), [(b"", TOP)], {TOP}
    while left:
        above, directory = left.pop()
        entries = listed(numbers, directory)
        for i, (name, node, attr, offset) in enumerate(entries):
            assert above + name not in found
            found[above + name] = attr
            if i % 3 == 0:  # from anywhere
                assert listed(numbers, directory, offset) == entries[i + 1 :]
            if attr.size == UNREADABLE:
                continue
            assert node not in seen
            seen.add(node)
            assert numbers.find(directory, name) == (node, attr)
            assert numbers.path(node) == above + name
            assert numbers.attr(node) == attr
            if attr.is_dir:
                assert numbers.ids(node)[0] == attr.id
                left.append((above + name + b"/", node))
    return found


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("later", [0, 3, 40])
def test_numbers_agree_with_the_source(
    base: str, later: int, amount: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """later: changes that the catalog does not have."""
    for seed in range(amount("trees")):
        rng = random.Random(f"{seed} {later}")
        path = f"{base}{seed}"
        with winkfs.create(path) as container:
            change(container, rng, rng.choice([1, 9, 60, 200]))
        shrink(monkeypatch, "the catalog", block=rng.choice([2, 5, 1024]))
        batch = rng.choice([2, 7, 1024])
        shrink(monkeypatch, "a mount", batch=batch)
        winkfs.reindex(path)
        with winkfs.open(path, "a") as container:
            change(container, rng, later)
        one, two = source_of(path), source_of(path)
        shown = tree_of(one)
        numbers = numbers_of(two)
        started = {name: attr._replace(mtime_ns=0) for name, attr in by_numbers(numbers).items()}
        assert started == {name: attr._replace(mtime_ns=0) for name, attr in shown.items()}
        for name, attr in shown.items():
            if not attr.is_dir and attr.size > 0:
                two.names.recent = b"", None  # what was found may be long ago
                wanted = one.read(at(one, os.fsdecode(name)), 0, 99)
                assert read_by_path(numbers, name) == wanted
        one.close()
        two.close()


# --- damage ---


def tree(base: str, count: int = 4000) -> None:
    """Files in directories of ten."""
    make(base, ((f"{i // 1000}/{i // 10}/{i}", b"%d" % i) for i in range(count)))
    winkfs.reindex(base)


def damage_block(source: ContainerSource, index: int) -> None:
    """Of the catalog: that which has this name, before it is read."""
    run = source.names.order.runs[0]
    run._blocks.clear()
    pos = int(run.parts["pos"][run.find(index)])
    flip(source.names.order.storage.name, pos + 40, bits=4)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_numbers_outlive_a_catalog_that_is_made_anew(base: str, changed: bool) -> None:
    """changed: the rows of the new one are others than those of the old."""
    tree(base)
    if changed:
        with winkfs.open(base, "a") as container:
            container.put("0/0/new", b"new")
            container.delete("0/1/10")
    source = source_of(base)
    numbers = numbers_of(source)
    above, _ = numbers.find(TOP, b"3")
    before = {name: node for name, node, *_ in listed(numbers, above)}
    half = listed(numbers, TOP)[1][3]
    damage_block(source, source.names.order.lower_bound(b"3/360/"))
    with pytest.raises(DerivedDamage) as caught:
        for name in sorted(before):
            listed(numbers, before[name])
    assert source.heal(caught.value)
    lost = 0
    for name, node in before.items():
        try:
            found = [(entry[0], numbers.read(entry[1], 0, 9)) for entry in listed(numbers, node)]
        except OSError as error:  # its name was in the block
            assert changed
            assert error.errno == errno.EIO
            lost += 1
        else:
            assert found == [(name + b"%d" % i, name + b"%d" % i) for i in range(10)]
            assert numbers.path(node) == b"3/" + name
    assert lost < len(before)
    assert lost or not changed
    if changed:  # nothing is passed over and nothing comes twice
        with refused(errno.EIO):
            numbers.entries(TOP, half)
    else:
        assert [name for name, *_ in listed(numbers, TOP, half)] == [b"2", b"3"]
    assert len(by_numbers(numbers)) == 4 + 400 + 4000


# --- what the kernel learns ---


def known_of(server: Server, node: int) -> dict[bytes, int]:
    """The numbers that a listing gives, 0: none."""
    found, offset = dict[bytes, int](), 0
    while True:
        body = struct.pack("=QQIIQII", 0, offset, 4096, 0, 0, 0, 0)
        code, data = server.answer(protocol.READDIRPLUS, node, memoryview(body))
        assert code == 0 and len(data) <= 4096
        if not data:
            return found
        for entry in parsed(data, plus=True):
            assert entry.name not in found
            found[entry.name], offset = entry.number, entry.offset


@pytest.mark.parametrize("batch", [False, True])
def test_the_kernel_gets_no_more_numbers_than_it_may_hold(
    base: str, batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(base, 100)
    source = source_of(base)
    caching = Caching.of(source, pages=True, follow=False)
    server = Server(Served(source, "winkfs", caching), nodes=numbers_of(source))
    shrink(monkeypatch, "a mount", memory=1 << 40, given=33)
    directories = [node for node in known_of(server, known_of(server, TOP)[b"0"]).values() if node]
    assert len(directories) == 10

    def given() -> list[int]:
        return [
            sum(number != 0 for name, number in known_of(server, node).items() if name[0] != 46)
            for node in directories
        ]

    assert given() == [10, 10, 0, 0, 0, 0, 0, 0, 0, 0]
    if batch:
        numbers = struct.pack("=II4Q", 2, 0, directories[0], 3, directories[1], 15)
        server.forget(protocol.BATCH_FORGET, 0, memoryview(numbers))
    else:
        server.forget(protocol.FORGET, TOP, memoryview(struct.pack("=Q", 18)))
    assert given() == [10, 10, 0, 0, 0, 0, 0, 0, 0, 0]


# --- through the kernel ---


def calls_of(server: int) -> int:
    """How often a process has written something: its answers."""
    lines = Path(f"/proc/{server}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscw"))


def walked(directory: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(directory))


@pytest.mark.mount
@not_by_libfuse("opens directories, and forgets what it has listed")
def test_what_was_listed_is_not_asked_for_again(base: str) -> None:
    tree(base)
    with mounted(base, "--ro") as there:
        server = server_of(there)
        begin = calls_of(server)
        assert walked(there) == 4000
        first = calls_of(server) - begin
        assert first < 3 * 405 + 100  # two requests a directory
        assert walked(there) == 4000
        assert all(path.stat().st_size == len(path.name) for path in there.glob("*/*/*"))
        assert calls_of(server) - begin - first < first // 4  # the kernel may forget some


@pytest.mark.few(1)
@pytest.mark.mount
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_server_that_waits(base: str, there: Path, number: int) -> None:
    tree(base, 20)
    with serving([*WINKFS, "mount", base, str(there), "--ro", "-f"], there) as server:
        opened = os.open(there / "0/1/17", os.O_RDONLY)  # also while a file is open
        assert os.read(opened, 9) == b"17"
        server.send_signal(number)
        assert server.wait(20) == 0
        with suppress(OSError):  # the mount is gone
            os.close(opened)


@pytest.mark.mount
def test_owner_and_umask_options_hold_in_a_read_only_mount(base: str) -> None:
    tree(base, 20)
    with mounted(base, "--ro", "-ouid=12,gid=34,umask=027") as there:
        for path in (there, there / "0", there / "0/1", there / "0/1/17"):
            found = path.stat()
            assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (12, 34, 0o750)
        assert all(entry.stat().st_gid == 34 for entry in os.scandir(there / "0/0"))


@pytest.mark.mount
def test_names_that_are_missing_or_too_long(base: str) -> None:
    tree(base, 20)
    with mounted(base, "--ro") as there:
        assert not (there / "0/none").exists()
        assert not (there / "0/1/17/none").exists()
        with refused(errno.ENAMETOOLONG):
            (there / ("x" * 256)).stat()
        names = [entry.name for entry in os.scandir(there / "0")]
        assert names == ["0", "1"]
        assert os.stat(there / "0/..").st_ino == there.stat().st_ino
