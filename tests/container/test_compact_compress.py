"""compact --compress: the same files with their contents in frames, or plain; the old container or
the new one at any moment."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import Run
from compressed_files import document, documents, frames_of, make
from container_checks import assert_sound, path_of
from interrupts import Interrupter
from oracle_read import check
from seam import Call, disk_calls

import winkfs
from winkformats.kv.superblock import Superblock
from winkfs import Container, FileType, NotAllowed, Refusal
from winkfs.container.compact import compact
from winkfs.container.frames import ENOUGH_BYTES
from winkfs.container.ondisk.inode import FRAME, Extent, Inode

zstandard = pytest.importorskip("zstandard")

run = commands.run  # a fixture
FILES = documents()
COLUMNS = {"lang": "string", "score": "float64"}
State = dict[str, tuple[Any, ...]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "c"


def live(base: Path, *, ao: bool = False, compress: str | None = None) -> None:
    """A container of files of every kind, some of them replaced, changed and deleted."""
    with winkfs.create(base, ao=ao, compress=compress, columns=COLUMNS) as c:
        c.put_many((name, data, i) for i, (name, data) in enumerate(FILES.items()))
        c.put("typed", document(3), columns={"lang": "de", "score": 0.5}, mtime=100)
        c.put("run", document(4), mode=0o755, mtime=101)
        c.put("odd", document(5), mode=0o4640, mtime=102)
        c.put("link", b"some/where" * 50, ftype=FileType.LINK, mtime=103)
        c.put("dir", b"", ftype=FileType.DIR, mtime=104)
        c.put("label", document(6), ftype=FileType.ZSTD, mtime=105)
        c.put("d/001.html", document(99), mtime=106)
        c.delete("d/002.html")
        c.sync()
        if not ao:
            change(c)
    winkfs.reindex(base)


def change(c: Container) -> None:
    """What only a plain container can do: holes, pieces, attributes, times of changes."""
    c.truncate("d/003.html", 5_000_000)
    c.write("d/003.html", 4_000_000, document(7, 9000))
    c.punch("d/040.html", 1000, 1000)
    for i in range(120):  # more than a list of extents: its inode builds on the one before
        c.write("large", i * 5000, b"%05d" % i)
        if i % 40 == 39:
            c.sync()
    c.append("random", document(8))
    c.setxattrs("d/005.html", {b"user.a": b"1", b"security.b": b"\0"})
    c.chown("d/006.html", 7, 8)
    c.setxattrs("d/006.html", {b"user.a": b"2"}, ctime_ns=(int(time.time()) + 999) * 10**9)


def state(base: Path) -> State:
    """All that is to be seen of each file, but how its content is stored."""
    with winkfs.open(base) as c:
        holes = {name: [e.size for e in c.extents(name) if not e.pointer] for name in c.names()}
        return {
            e.name: (c.stat(e.name), c.getxattrs(e.name), c.getcolumns(e.name), holes[e.name],
                     e.read(), c.read(e.name), c.read(e.name, 100, 50))
            for e in c.scan()
        }  # fmt: skip


def framed(base: Path) -> set[str]:
    """The files that have frames."""
    with winkfs.open(base) as c:
        return {name for name in c.names() if frames_of(c, name)}


def size_of(base: Path) -> int:
    return path_of(base, ".data").stat().st_size


# --- the same files ---


@pytest.mark.parametrize("wanted", ["zstd:3", "none"])
@pytest.mark.parametrize("was", [None, "zstd"])
@pytest.mark.parametrize("ao", [False, True])
def test_the_same_files_with_contents_stored_otherwise(
    wanted: str, was: str | None, ao: bool, base: Path
) -> None:
    live(base, ao=ao, compress=was)
    before, old = state(base), size_of(base)
    would = compact(base, dry_run=True, compress=wanted)
    assert (size_of(base), state(base)) == (old, before)
    seen: list[int] = []
    done = compact(base, progress=seen.append, compress=wanted)
    assert done == would
    assert (done.before, done.after, done.files) == (old, size_of(base), len(before))
    assert min(seen) >= 0 and (was == wanted or old - 8192 <= sum(seen) <= old)
    assert state(base) == before
    some = {"d/050.html", "typed", "run", "odd", "large", "zeros"}
    assert framed(base) & {*some, "link", "label", "short"} == (some if wanted != "none" else set())
    check(base)  # by the oracle
    assert winkfs.verify(base).problems == []
    with winkfs.open(base) as c:
        block, level = c.superblock, c.store.frames.level
        assert c.columns == COLUMNS
        assert (block["INCOMPAT"] & 32 > 0, level) == (
            (True, 3) if wanted != "none" else (False, 0)
        )
        assert "INCHAIN" not in block and len(block) <= 31
        assert [e.name for e in c.scan(where="lang = 'de'")] == ["typed"]
    again = compact(base)
    assert (again.before, again.after) == (done.after, done.after)
    with winkfs.open(base, "a") as c:
        fileids = {stat.fileid for stat, *_ in before.values()}
        c.put("new", document(9))
        c.put_many([("newer", document(10))])
        assert c.stat("new").fileid > max(fileids)
    assert {"new", "newer"} & framed(base) == ({"new", "newer"} if wanted != "none" else set())
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_in_the_order_of_names(wanted: str, base: Path) -> None:
    live(base, compress="zstd" if wanted == "none" else None)
    before = state(base)
    compact(base, order="name", compress=wanted)
    assert state(base) == before
    with winkfs.open(base) as c:
        assert [e.name for e in c.scan()] == sorted(before)
    assert winkfs.verify(base).problems == []


def test_it_becomes_what_a_new_container_is(base: Path) -> None:
    """Whichever way it came there: the variables of the superblock are those of a fresh one."""
    for ao in (False, True):
        for wanted in ("zstd", "none"):
            for was in ("zstd", None):
                path = Path(f"{base}-{ao}-{wanted}-{was}")
                make(path, FILES, ao=ao, compress=was)
                compact(path, compress=wanted)
                make(fresh := Path(f"{path}-fresh"), FILES, ao=ao, compress=wanted)
                with winkfs.open(path) as c, winkfs.open(fresh) as other:
                    left = {"HAVEDUPS", "HTFREE", "HTDEL"}  # where they are missing, they are usual
                    assert c.superblock.keys() - left == other.superblock.keys() - left
                    assert c.superblock["INCOMPAT"] == other.superblock["INCOMPAT"]
                    assert bool(c.superblock.get("PAIROFF")) == bool(
                        other.superblock.get("PAIROFF")
                    )
                assert_sound(path, {name.encode(): data for name, data in FILES.items()})


def test_without_the_option_frames_are_copied_as_they_are(base: Path) -> None:
    make(base, FILES)
    with winkfs.open(base) as c:
        before = {c.store.entry_at(pos).value for n in FILES for pos in frames_of(c, n)}
        chosen = c.store.frames.compression
    with winkfs.open(base, "a") as c:
        c.delete("d/001.html")
    compact(base)
    with winkfs.open(base) as c:
        after = {c.store.entry_at(pos).value for n in c.names() for pos in frames_of(c, n)}
        assert after < before and len(after) == len(before) - 1
        assert c.store.frames.compression == chosen


def test_an_empty_container(base: Path) -> None:
    for was, wanted in ((None, "zstd"), ("zstd", "none"), ("zstd", "zstd:19"), (None, "none")):
        path = Path(f"{base}-{was}-{wanted}".replace(":", ""))
        winkfs.create(path, compress=was).close()
        assert compact(path, compress=wanted, dry_run=True) == compact(path, compress=wanted)
        with winkfs.open(path, "a") as c:
            c.put_many((f"{i}", document(i)) for i in range(200))
            assert bool(frames_of(c, "7")) == (wanted != "none")
            # none was trained on nothing: the first files that come train one
            assert bool(c.store.frames.compression.dictid) == (wanted != "none")
        assert winkfs.verify(path).problems == []


# --- the dictionary ---


def test_the_dictionary_is_trained_on_what_lives(base: Path) -> None:
    secret = b"this is the very secret password of all of them "
    with winkfs.create(base, compress="zstd") as c:
        c.put_many((f"secret/{i}", secret * 60 + document(i)) for i in range(400))
        assert secret in c.store.frames.compression.dictionary
        for i in range(400):
            c.delete(f"secret/{i}")
        c.put_many((f"{i}", document(i)) for i in range(900))
    compact(base, compress="zstd:19")
    with winkfs.open(base) as c:
        chosen = c.store.frames.compression
        assert chosen.level == 19 and chosen.tried and chosen.dictid
        ids = {zstandard.get_frame_parameters(c.store.entry_at(pos).value).dict_id
               for name in c.names() for pos in frames_of(c, name)}  # fmt: skip
    assert ids == {chosen.dictid}
    assert b"secret" not in path_of(base, ".data").read_bytes()


def test_a_dictionary_that_does_not_pay_is_left_out(base: Path) -> None:
    noise = random.Random(1)
    with winkfs.create(base) as c:
        c.put_many((f"{i}", noise.randbytes(ENOUGH_BYTES // 50)) for i in range(100))
    compact(base, compress="zstd")
    with winkfs.open(base) as c:
        chosen = c.store.frames.compression
    assert (chosen.level, chosen.tried, chosen.dictid) == (9, True, 0)


# --- refusals ---


def test_what_cannot_have_compressed_content_is_left_as_it_is(base: Path, run: Run) -> None:
    with winkfs.create(base, classic=True) as c:
        c.put("a", document(1))
    before = path_of(base, ".data").read_bytes()
    said = commands.one_line(run("compact", "--compress", "zstd", base))
    assert said == f"winkfs: {base}: a classic container cannot have compressed content\n"
    assert path_of(base, ".data").read_bytes() == before
    assert run("compact", "--compress", "none", base).status == 0
    with winkfs.open(base) as c:
        assert c.classic and c.read("a") == document(1)


def test_a_variant_that_only_others_write_is_refused(base: Path) -> None:
    """Entries of another form, which `put_many` does not write either."""
    with winkfs.create(base) as c:
        c.put("a", document(1))
    path = path_of(base, ".data")
    data = path.read_bytes()
    block = Superblock.decode(data[:8192], file="c")
    block.update(FILESIZE=8192, SYNCSIZE=8192, ENTRIES=0, AENTRIES=0, ITOTSZ=0, DTOTSZ=0)
    block.update(ALIGN=64)
    path.write_bytes(b"".join(block.images()))
    with pytest.raises(NotAllowed, match="variant that cannot have compressed content"):
        compact(base, compress="zstd")


@pytest.mark.parametrize("word", ["gzip", "zstd:0", "zstd:23", "zstd:x", "none:1", ""])
def test_a_codec_that_there_is_not(word: str, base: Path, run: Run) -> None:
    make(base, {"a": document(1)})
    before = path_of(base, ".data").read_bytes()
    with pytest.raises(ValueError, match="zstd"):
        compact(base, compress=word)
    assert "--compress" in commands.one_line(run("compact", "--compress", word, base), 2)
    assert path_of(base, ".data").read_bytes() == before


def test_without_zstandard_it_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, {"a": document(1)})
    with winkfs.create(f"{base}0") as c:
        c.put("a", document(1))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for path, wanted in ((f"{base}0", "zstd"), (base, "none")):
        with pytest.raises(Refusal, match=r"pip install 'winkfs\[compress\]'"):
            compact(path, compress=wanted)
    compact(f"{base}0", compress="none")


@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_an_unreadable_frame_is_copied_unchanged(wanted: str, base: Path) -> None:
    """Its checksum is right: only who decompresses it finds that."""
    make(base, {"a": document(1)})
    with winkfs.open(base, "a") as c:
        store = c.store
        fileid = store.new_fileid()
        pos = store.kv.append(b"%x/D0" % fileid, b"plain text, no frame")
        inode = Inode(fileid, 900, FileType.FILE, 1, [Extent(pos, FRAME, 900)])
        value = inode.encode(store.settings.form, store.settings.isz)
        at = store.kv.append(b"f/I0", value)
        store.itotsz, store.dtotsz = store.itotsz + len(value), store.dtotsz + 900
        store.index.assign(b"f/I0", at, new=True)
    before = path_of(base, ".data").read_bytes()
    with pytest.raises(Refusal, match=r"damaged.*repair it first"):
        compact(base, compress=wanted)
    assert path_of(base, ".data").read_bytes() == before
    assert not list(base.parent.glob("*.tmp"))


# --- at any moment ---


@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_full_disk_leaves_the_old_one(wanted: str, base: Path) -> None:
    live(base, compress="zstd" if wanted == "none" else None)
    before, data = state(base), path_of(base, ".data").read_bytes()

    def full(call: Call) -> None:
        if call.verb == "write" and call.path.endswith(".data.tmp") and call.offset >= 8192:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), call.path)

    with disk_calls(full), pytest.raises(OSError, match="No space left"):
        compact(base, compress=wanted)
    assert path_of(base, ".data").read_bytes() == data
    assert not list(base.parent.glob("*.tmp"))
    assert state(base) == before


COMPACT = """
import sys
from winkfs.container.compact import compact
print("begun", flush=True)
compact(sys.argv[1], compress=sys.argv[2])
"""


# What was being opened at the moment is closed when it is collected, which says so.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_an_interrupt_anywhere_leaves_one_of_the_two(wanted: str, base: Path) -> None:
    files = {name: FILES[name] for name in ("d/001.html", "d/002.html", "large", "empty")}
    make(base, files, compress="zstd" if wanted == "none" else None)
    whole = path_of(base, ".data").read_bytes()
    with Interrupter(0) as counted:
        compact(base, compress=wanted)
    new = size_of(base)
    for at in range(1, counted.lines, counted.lines // 25):
        for path in base.parent.glob("c.*"):
            path.unlink()
        path_of(base, ".data").write_bytes(whole)
        with Interrupter(at) as interrupter, suppress(KeyboardInterrupt):
            compact(base, compress=wanted)
        assert size_of(base) in (len(whole), new), interrupter.fired
        with winkfs.open(base, "a") as c:
            assert {e.name: e.read() for e in c.scan()} == files, interrupter.fired
        assert not list(base.parent.glob("*.tmp")), interrupter.fired
    gc.collect()


@pytest.mark.slow
def test_kill_at_any_moment_is_harmless(base: Path) -> None:
    dice = random.Random(4)
    files = {f"{i}": document(i, 2000) for i in range(1500)}
    with winkfs.create(base) as c:
        c.put_many(files.items())
    wanted, longest = ["zstd", "none"], 0.0
    for word in wanted:
        began = time.monotonic()
        compact(base, compress=word)
        longest = max(longest, time.monotonic() - began)
    done = 0
    for i in range(8):
        command = [sys.executable, "-c", COMPACT, str(base), wanted[i % 2]]
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"begun\n"
        time.sleep(dice.random() * longest)
        child.kill()
        done += child.wait() == 0
        child.stdout.close()
        with winkfs.open(base) as c:
            assert {e.name: e.read() for e in c.scan()} == files
        assert winkfs.verify(base).problems == []
    winkfs.open(base, "a").close()
    assert not list(base.parent.glob("*.data.tmp"))


@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_readers_go_on(wanted: str, base: Path) -> None:
    live(base, compress="zstd" if wanted == "none" else None)
    before = state(base)
    with winkfs.open(base) as reader:
        entries = list(reader.scan())
        compact(base, compress=wanted)
        assert {e.name: e.read() for e in entries} == {n: f[4] for n, f in before.items()}
        time.sleep(0.1)
        assert {name: reader.read(name) for name in before} == {n: f[4] for n, f in before.items()}
        assert {e.name: e.read() for e in reader.scan()} == {n: f[4] for n, f in before.items()}


# --- the command ---


def test_the_command_prints_what_it_saved(run: Run) -> None:
    name = "größe und maß"
    make(Path(name), FILES, compress=None)
    size = size_of(Path(name))
    dry = run("compact", "-n", "--compress", "zstd:3", name)
    assert (dry.status, dry.err) == (0, "") and size_of(Path(name)) == size
    done = json.loads(run("compact", "--json", "--compress", "zstd:3", name).out)
    assert done["bytes_after"] == size_of(Path(name)) < size == done["bytes_before"]
    assert f" would become {done['bytes_after']}, {len(FILES)} files" in dry.out.decode()
    said = json.loads(run("info", "--json", name).out)["compression"]
    assert (said["codec"], said["level"]) == ("zstd", 3) and said["ratio"] > 1.3
    assert run("compact", "--compress", "none", name).status == 0
    assert "compression" not in json.loads(run("info", "--json", name).out)
    assert size_of(Path(name)) == size


def test_an_update_goes_by_the_mark_of_the_pack_before(tmp_path: Path, run: Run) -> None:
    for name, data in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    time.sleep(0.05)
    assert run("pack", "tree", "c").status == 0
    refused = commands.one_line(run("pack", "--update", "--compress", "zstd", "tree", "c"))
    assert "winkfs compact --compress" in refused
    assert run("compact", "--compress", "zstd", "c").status == 0
    with winkfs.open("c") as c:
        end, packed = c.store.kv.end, c.store.packed
        assert packed["PACKEND"] == end
    assert run("pack", "--update", "--compress", "zstd", "tree", "c").status == 0
    (tmp_path / "tree/d/001.html").write_bytes(document(50))
    assert run("pack", "--update", "tree", "c").status == 0
    with winkfs.open("c") as c:
        assert c.read("d/001.html") == document(50) and frames_of(c, "d/001.html")
    assert run("pack", "--update", "--compress", "none", "tree", "c").status == 0
    (tmp_path / "tree/d/002.html").write_bytes(document(51))
    assert run("pack", "--update", "tree", "c").status == 0  # it remembers that, too
    with winkfs.open("c") as c:
        assert c.read("d/002.html") == document(51) and not frames_of(c, "d/002.html")
