"""BASE.cols: what it has, when it is believed, what damage does to it."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import golden_containers
import numpy as np
import pytest
import xxhash
from columns_checks import listing, opened, rows, store_of
from constants import shrink
from container_checks import run
from openfiles import descriptors
from oracle_read import check_kvseq
from seam import disk_calls, refusing

import winkfs
from winkformats.disk import pagecache
from winkformats.errors import CorruptError
from winkformats.kv.entry import Layout
from winkformats.kv.superblock import Superblock
from winkfs.cli import main
from winkfs.container.columns import Columns
from winkfs.container.ondisk.cols import open_columns, write_columns
from winkfs.container.select import Selection, columns_between, select


def test_reindex_writes_columns_that_any_slice_can_be_had_of(tmp_path: Path) -> None:
    base = tmp_path / "c"
    golden_containers.RECIPES["plain"](base)
    assert open_columns(str(base)) is None
    winkfs.reindex(base, cols=True)
    with store_of(base) as store, opened(base) as found:
        whole = Columns.of(store)
        assert rows(found.slice(0, len(found))) == rows(whole) == listing(base)
        assert (found.files, found.content) == (len(whole), int(whole.size.sum()))
        for a in range(len(whole) + 1):
            for b in range(a, len(whole) + 1):
                assert rows(found.slice(a, b)) == rows(whole)[a:b]


# --- what is believed ---


def made(base: Path) -> bytes:
    """A container with BASE.cols of two chunks -> what is in that."""
    golden_containers.RECIPES["plain"](base)
    with store_of(base, writable=True) as store:
        whole = Columns.of(store)
        write_columns(store, [whole.slice(0, 6), whole.slice(6, len(whole))])
    return Path(f"{base}.cols").read_bytes()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch, "rows of a chunk of columns", 6)


def read_every_way(base: Path, wanted: Columns) -> int:
    """All that is read is right or refused -> how many reads were refused."""
    found = open_columns(str(base))
    if found is None:
        return 1
    refused = 0
    n = len(wanted)
    with found:
        for ask in (
            lambda: rows(found.slice(0, n)) == rows(wanted),
            lambda: rows(found.slice(n - 1, n)) == rows(wanted)[-1:],
            lambda: rows(found.between(0, int(wanted.pos[0]) + 1)) == rows(wanted)[:1],
            lambda: rows(found.take(np.array([1, 8]))) == [rows(wanted)[1], rows(wanted)[8]],
            lambda: found.column("mtime").tolist() == wanted.mtime.tolist(),
            lambda: (len(found), found.content) == (n, int(wanted.size.sum())),
        ):
            try:
                assert ask()
            except CorruptError:
                refused += 1
    return refused


@pytest.mark.slow
def test_a_flipped_byte_is_refused_or_means_nothing(
    small_chunks: None, tmp_path: Path, every: Callable[[str], slice]
) -> None:
    base = tmp_path / "c"
    good = made(base)
    path = Path(f"{base}.cols")
    with store_of(base) as store:
        wanted = Columns.of(store)
    assert read_every_way(base, wanted) == 0
    entries = check_kvseq(path)[1]
    gaps = {at for one, other in pairwise(entries) for at in range(one.end, other.pos)}
    for at in range(len(good))[every("column bytes")]:
        if 512 < at < 4032:
            continue  # zeros, all of one kind
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        refused = read_every_way(base, wanted)
        assert refused or at in gaps, at
        assert columns_between(str(base), 0, 1 << 60).names() == wanted.names()


def test_cut_short_or_forged_is_as_if_missing(small_chunks: None, tmp_path: Path) -> None:
    base = tmp_path / "c"
    good = made(base)
    path = Path(f"{base}.cols")
    for size in {0, 1, 100, 4095, 4096, len(good) - 1, len(good) // 2}:
        path.write_bytes(good[:size])
        assert open_columns(str(base)) is None
    rng = random.Random(1)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(4096, len(data) - 8)
            data[at : at + 8] = rng.choice([bytes(8), b"\xff" * 8, rng.randbytes(8)])
        path.write_bytes(resealed(data))
        with suppress(CorruptError):
            found = open_columns(str(base))
            if found is not None:
                with found:
                    found.slice(0, len(found)).names()
                    found.between(0, 1 << 62)


def resealed(data: bytearray) -> bytes:
    """With right checksums, as far as the entries can still be followed."""
    with suppress(Exception):
        block = Superblock.decode(bytes(data[:4096]), file="forged")
        layout = Layout.of(block)
        at = 4096
        while at < block["FILESIZE"]:
            span = layout.locate(data, at)
            assert span
            data[span.end - 4 : span.end] = layout.sum(at, bytes(data[at : span.end - 4]))
            at = layout.aligned(span.end)
    return bytes(data)


def test_those_of_another_container_are_not_believed(tmp_path: Path) -> None:
    for name in ("one", "other"):
        with winkfs.create(tmp_path / name) as c:
            c.put("a", name.encode()[:3])
            c.sync()
            c.engine.store.columns.save()
    sizes = {path.stat().st_size for path in tmp_path.glob("*.data")}
    assert len(sizes) == 1
    (tmp_path / "one.cols").replace(tmp_path / "other.cols")
    assert open_columns(str(tmp_path / "other")) is None


def test_stale_ones_are_not_believed(tmp_path: Path) -> None:
    base = tmp_path / "c"
    made(base)
    path = Path(f"{base}.cols")
    old = path.read_bytes()
    with winkfs.open(base, "a") as c:
        c.put("new", b"x")
    assert path.exists()
    assert open_columns(str(base)) is None
    assert b"new" in columns_between(str(base), 0, 1 << 60).names()
    winkfs.reindex(base)  # which keeps one that is there up to date
    with opened(base) as found:
        assert rows(found.slice(0, len(found))) == listing(base)
    path.write_bytes(old)
    assert open_columns(str(base)) is None


def test_container_put_back_from_a_copy_does_not_grow_into_old_columns(tmp_path: Path) -> None:
    base = tmp_path / "c"
    with winkfs.create(base) as c:
        c.put("a", b"1")
    saved = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with winkfs.open(base, "a") as c:
        c.put("b", b"2")
        c.sync()
        c.engine.store.columns.save()
    for path, data in saved.items():
        path.write_bytes(data)
    assert open_columns(str(base)) is None
    with winkfs.open(base, "a") as c:
        c.put("c", b"3")  # now it ends where the other one ended
    assert columns_between(str(base), 0, 1 << 60).names() == [b"a", b"c"]


def test_new_container_of_that_name_has_no_old_columns(tmp_path: Path) -> None:
    base = tmp_path / "c"
    made(base)
    Path(f"{base}.data").unlink()
    winkfs.create(base).close()
    assert not Path(f"{base}.cols").exists()


def test_columns_of_a_data_file_that_was_cut_are_not_believed(tmp_path: Path) -> None:
    base = tmp_path / "c"
    made(base)
    with Path(f"{base}.data").open("r+b") as data:
        data.truncate(6000)
    assert open_columns(str(base)) is None
    with store_of(base) as store:
        assert open_columns(store) is None
    assert columns_between(str(base), 0, 1 << 60).names() == [name for name, *_ in listing(base)]


def test_classic_container_has_none(tmp_path: Path) -> None:
    base = tmp_path / "c"
    golden_containers.RECIPES["classic"](base)
    winkfs.reindex(base, cols=True)
    assert not Path(f"{base}.cols").exists()
    assert columns_between(str(base), 0, 1 << 60).names() == [name for name, *_ in listing(base)]


def test_writer_that_has_not_synced_cannot_write_them(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many([("a", b"x")])
        with pytest.raises(ValueError, match="synced"):
            write_columns(c.engine.store)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["create", "append", "sync", "publish"])
def test_killed_while_writing_leaves_the_old_ones(at: str, tmp_path: Path) -> None:
    base = tmp_path / "c"
    good = made(base)
    run(KILLED, base, at)
    assert Path(f"{base}.cols").read_bytes() == good
    assert (at == "create") or Path(f"{base}.cols.tmp").exists()
    with opened(base) as found:
        assert rows(found.slice(0, len(found))) == listing(base)
    winkfs.open(base, "a").close()
    assert not Path(f"{base}.cols.tmp").exists()


KILLED = """
import os, sys
from winkformats.disk.posix import PosixDirectory
from winkformats.kv.sequence import KVSeq
from winkfs.container.ondisk.cols import write_columns
from winkfs.container.store import Store
base, at = sys.argv[1:]
def die(*_, **__):
    os._exit(0)
if at == "publish":
    PosixDirectory.rename = die
else:
    setattr(KVSeq, at, die)
store = Store(base, writable=True)
write_columns(store)
"""


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_failed_write_leaves_nothing(tmp_path: Path, error: int) -> None:
    base = tmp_path / "c"
    golden_containers.RECIPES["plain"](base)
    with store_of(base, writable=True) as store:
        with disk_calls(refusing("write", ".cols.tmp", error)):
            write_columns(store)
        # A full disk is no news; another failure is, but what it is derived from is safe.
        assert len(store.notes) == (error == errno.EIO)
    assert not list(tmp_path.glob("*.cols*"))


# --- verify, info ---


def test_verify_names_columns_that_say_something_else(tmp_path: Path) -> None:
    base = tmp_path / "c"
    made(base)
    assert winkfs.verify(base).problems == []
    with store_of(base, writable=True) as store:
        whole = Columns.of(store)
        names = whole.name_bytes.copy()
        names[3] ^= 1
        for wrong in (
            whole.slice(1, len(whole)),
            replace(whole, size=whole.size + (whole.size == 8)),
            replace(whole, special=1 - whole.special),
            replace(whole, name_bytes=names),
        ):
            write_columns(store, [wrong])
            (problem,) = winkfs.verify(base).problems
            assert problem.startswith(f"{base}.cols: ")
            assert problem.endswith(": run reindex")
    path = Path(f"{base}.cols")
    data = bytearray(path.read_bytes())
    data[4100] ^= 1
    path.write_bytes(data)
    (problem,) = winkfs.verify(base).problems
    assert problem.startswith(f"{path}: entry checksum at byte 4096")
    winkfs.reindex(base)
    assert winkfs.verify(base).problems == []


def test_verify_takes_stale_columns_for_no_problem(tmp_path: Path) -> None:
    base = tmp_path / "c"
    made(base)
    with winkfs.open(base, "a") as c:
        c.put("new", b"x")
    assert winkfs.verify(base).problems == []


def test_info_and_reindex_of_the_command_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "c"
    golden_containers.RECIPES["plain"](base)
    assert main(["reindex", "--cols", str(base)]) == 0
    assert capfd.readouterr().out == f"{len(listing(base))} files indexed\n"
    assert main(["info", "--json", str(base)]) == 0
    record = json.loads(capfd.readouterr().out)
    assert record["columns"] == {"current": True, "files": record["files"], "chunks": 1}
    assert f"{base}.cols" in record["file_sizes"]
    assert main(["info", "--json", f"{base}.cols"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert (record["purpose"], record["chunks"]) == ("FSYSCOLS", 1)


def test_file_is_as_the_page_on_formats_says(small_chunks: None, tmp_path: Path) -> None:
    """Read with struct, and the oracle's reader of a kvseq."""
    base = tmp_path / "c"
    raw = made(base)
    block, entries = check_kvseq(Path(f"{base}.cols"))
    data = check_kvseq(Path(f"{base}.data"))[0].variables
    wanted = {"KEYREPR": 12, "VALREPR": 3, "ALIGN": 8, "KVCKSUM": 1, "CONTID": data["CONTID"]}
    wanted |= {"DATAEND": data["FILESIZE"], "CHUNKS": entries[-1].pos, "COLSUMS": entries[-2].pos}
    assert wanted.items() <= block.variables.items()
    letters = b"pismfaen"
    keys = [b"%c/%06x" % (letter, chunk) for chunk in range(3) for letter in letters]
    assert [entry.key for entry in entries] == [*keys, b"k/000000", b"t/000000"]
    assert all(raw[entry.pos + 16 :].startswith(entry.value) for entry in entries)
    files, table = [], []
    for chunk in range(3):
        part = entries[8 * chunk : 8 * chunk + 8]
        n = len(part[4].value)
        pos, pointer, size, mtime = (struct.unpack(f"<{n}q", entry.value) for entry in part[:4])
        ends = struct.unpack(f"<{n + 1}q", part[6].value)
        names = [part[7].value[a:b] for a, b in pairwise(ends)]
        files += zip(names, size, mtime, part[4].value, strict=True)
        stats = (min(mtime), max(mtime), min(size), max(size))
        table += [n, sum(size), pos[0], pos[-1], *stats, *(entry.pos for entry in part)]
        assert all(at <= where for at, where in zip(pointer, pos, strict=True))
    assert files == listing(base)
    assert list(struct.unpack(f"<{len(table)}q", entries[-1].value)) == table
    sums = [int.from_bytes(raw[entry.end - 4 : entry.end], "big") for entry in entries[:-2]]
    assert list(struct.unpack(f"<{len(sums)}I", entries[-2].value)) == sums
    both = xxhash.xxh3_64_digest(entries[-2].value + entries[-1].value)
    assert block.variables["COLHASH"] == int.from_bytes(both, "big", signed=True)


def resident(path: Path) -> int:
    """Bytes of a file that the page cache holds."""
    with path.open("rb") as file:
        absent = pagecache.absent(file.fileno(), path.stat().st_size)
    assert absent is not None
    return int((~absent).sum()) * pagecache.PAGE


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        pagecache.forget(file.fileno(), 0, path.stat().st_size)


@pytest.mark.parametrize("size", [300, 17_000])
def test_neither_columns_nor_data_stay_in_the_page_cache(size: int, tmp_path: Path) -> None:
    base, count = tmp_path / "c", 6000
    data, cols = Path(f"{base}.data"), Path(f"{base}.cols")
    with winkfs.create(base) as c:
        c.put_many((f"{'long' * 20}/{i}", bytes(size)) for i in range(count))
    forget(data)
    if resident(data):
        pytest.skip("this filesystem does not drop pages")
    with store_of(base, writable=True) as store:
        write_columns(store)
    margin = 256 << 10  # superblocks, and what was read ahead of them
    assert cols.stat().st_size > 2 * margin
    assert resident(cols) < margin
    assert resident(data) < margin
    with opened(base) as found:
        assert len(found.slice(0, count).names()) == count
        assert resident(cols) > margin
    assert resident(cols) < margin


def test_no_file_handle_is_left(tmp_path: Path) -> None:
    base = tmp_path / "c"
    before = descriptors()
    made(base)
    with opened(base) as found:
        kept = found.slice(0, 5)
    columns_between(str(base), 0, 1 << 60)
    for wanted in (Selection(), Selection(paths=(b"a.txt",)), Selection(prefix=b"docs/")):
        select(str(base), wanted)
    assert winkfs.verify(base).problems == []
    Path(f"{base}.cols").unlink()  # what is mapped must not become shorter
    Path(f"{base}.cols").write_bytes(b"no columns")
    assert open_columns(str(base)) is None
    select(str(base), Selection())
    assert kept.names() == [name for name, *_ in listing(base)[:5]]
    del kept, found
    winkfs.verify(base)
    assert descriptors() <= before
