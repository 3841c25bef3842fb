"""Compressed content: every way in gives the document back by every way out, also after changes,
rewrites and damage; nobody is ever served a frame."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from commands import Run
from compressed_files import PUTS, document, documents, forge, frames_of, make
from container_checks import assert_sound, change_superblock, files_of, path_of, refused
from flips import flip
from folders import unchanged, write_files

import winkfs
from winkfs import Container, CorruptError, FileType
from winkfs.archive.update import Stored
from winkfs.container import verify
from winkfs.container.compact import compact
from winkfs.container.frames import trained
from winkfs.container.ondisk.compressed import (
    FRAME_CONTENT_BYTES,
    KEY,
    MAX_FRAME_CONTENT,
    Compression,
    level_of,
)
from winkfs.container.repair import repair
from winkfs.container.salvage import salvage
from winkfs.dataset import Dataset
from winkfs.dataset.compaction import rebalance
from winkfs.dataset.maintain import vacuum
from winkfs.errors import NotAllowed, Refusal
from winkfs.mounting.container import ContainerSource

pytestmark = pytest.mark.in_memory

zstandard = pytest.importorskip("zstandard")

FILES = documents()
ALIKE = {f"{i:03}": document(i) for i in range(100)}  # enough for a dictionary
NOISE = os.urandom(3000)


def compression_of(base: Path) -> Compression:
    with winkfs.open(base) as c:
        return c.store.frames.compression


def frame_of(base: Path, name: str) -> int:
    """Return the position of the first frame of a file."""
    with winkfs.open(base) as c:
        return frames_of(c, name)[0]


def inode_of(base: Path, name: str) -> int:
    """Return the position of the inode of a file."""
    with winkfs.open(base) as c:
        return c.store.index.lookup(name.encode() + b"/I0")


def assert_unreadable(
    c: Container,
    name: str,
    *parts: str,
    kind: type[Exception] = CorruptError,
    match: str | None = None,
) -> None:
    """Every way to read a file is refused in one line that has these parts."""
    size = c.stat(name).size
    for read in (
        lambda: c.read(name),
        lambda: list(c.get_many([name])),
        lambda: c.read(name, size - 1, 1),
        lambda: [entry.read() for entry in c.scan(prefix=name)],
    ):
        with refused(kind, *parts, match=match):
            read()


def raw(files: dict[str, bytes]) -> dict[bytes, bytes]:
    return {name.encode(): data for name, data in files.items()}


# --- in and out ---


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("way", PUTS)
def test_every_way_in_and_every_way_out(way: str, ao: bool, base: Path) -> None:
    if way == "put_batch":
        pytest.importorskip("pyarrow")
    files = FILES if way != "append" or not ao else {"d/001.html": FILES["d/001.html"]}
    make(base, files, way, ao=ao)
    assert_sound(base, raw(files))
    with winkfs.open(base) as c:
        assert frames_of(c, "d/001.html")
        if "large" in files:
            assert len(frames_of(c, "large")) == -(-700_000 // FRAME_CONTENT_BYTES)
        assert not [n for n in ("empty", "short", "random") if n in files and frames_of(c, n)]
        for name, data in files.items():
            assert_read(c, name, data)
    size = path_of(base, ".data").stat().st_size
    assert len(files) == 1 or sum(map(len, files.values())) > 1.3 * size


def assert_read(c: Container, name: str, data: bytes) -> None:
    """All ways to read one file, of a container that has it."""
    stat, half = c.stat(name), len(data) // 2
    assert stat.size == len(data) == sum(extent.size for extent in c.extents(name))
    assert c.read(name) == c[name] == data == next(c.get_many([name]))
    assert c.read(name, half, 1000) == data[half : half + 1000]
    assert c.read(name, len(data), 10) == b""
    into = bytearray(len(data) + 5)
    assert c.read_into(name, 0, memoryview(into)) == len(data) and into[: len(data)] == data
    part = memoryview(bytearray(min(half, 70)))
    assert c.read_into(name, half, part) == len(part) and part == data[half : half + len(part)]
    with c.open_file(name) as file:
        file.seek(half)
        assert file.read() == data[half:]
    assert Stored(c, name.encode()).read() == data
    (entry,) = (found for found in c.scan(prefix=name) if found.name == name)
    assert entry.size == len(data) and entry.read() == data
    assert b"".join(piece for _, piece in entry.pieces()) == data
    for rows in c.rows(name.encode(), None):
        for key, found in zip(rows.names, c.contents(rows), strict=True):
            assert key != name.encode() or found in (None, data)  # None: it is read by name


def test_types_and_modes_are_those_of_the_file(base: Path) -> None:
    make(base, {})
    with winkfs.open(base, "a") as c:
        c.put("run", document(1), mode=0o755)
        c.put("plain", document(2))
        c.put("odd", document(3), mode=0o600)
        c.put("label", document(4), ftype=FileType.ZSTD)
        c.put("link", b"some/where" * 50, ftype=FileType.LINK)
    with winkfs.open(base) as c:
        kinds = {e.name: (e.ftype, e.mode, bool(frames_of(c, e.name))) for e in c.scan()}
    assert kinds == {
        "run": (FileType.EXEC, 0o755, True), "plain": (FileType.FILE, 0o644, True),
        "odd": (FileType.FILE, 0o600, True), "label": (FileType.ZSTD, 0o644, False),
        "link": (FileType.LINK, 0o777, False),
    }  # fmt: skip


def test_a_label_z_without_the_bit_is_given_as_stored(base: Path) -> None:
    frame = zstandard.compress(document(1))
    with winkfs.create(base) as c:
        c.put("a.zst", frame, ftype=FileType.ZSTD)
    with winkfs.open(base) as c:
        assert c.read("a.zst") == frame
        assert c.superblock["INCOMPAT"] & 32 == 0


def test_a_part_of_a_large_file_is_read_from_its_frame_alone(base: Path) -> None:
    make(base, {"large": FILES["large"]})
    with winkfs.open(base) as c:
        seen: list[int] = []
        frames = c.store.frames
        content = frames.content
        frames.content = lambda frame, pos: seen.append(pos) or content(frame, pos)  # type: ignore[method-assign, func-returns-value]
        assert c.read("large", 400_000, 50) == FILES["large"][400_000:400_050]
        assert seen == frames_of(c, "large")[1:2]


# --- changes ---


# Of a file: a change, and what its content is then.
EDITS: list[tuple[str, Callable[[Container, str], object], Callable[[bytes], bytes]]] = [
    ("large", lambda c, name: c.append(name, b"the end"), lambda old: old + b"the end"),
    ("large", lambda c, name: c.write(name, 262_100, b"?" * 100),
     lambda old: old[:262_100] + b"?" * 100 + old[262_200:]),
    ("d/020.html", lambda c, name: c.truncate(name, 100), lambda old: old[:100]),
    ("d/020.html", lambda c, name: c.truncate(name, 200), lambda old: old + bytes(100)),
    ("d/021.html", lambda c, name: c.write(name, 3, b"xyz"),
     lambda old: old[:3] + b"xyz" + old[6:]),
    ("d/022.html", lambda c, name: c.punch(name, 10, 50),
     lambda old: old[:10] + bytes(50) + old[60:]),
    ("d/024.html", lambda c, name: c.chmod(name, 0o600), bytes),
    ("d/025.html", lambda c, name: c.utime(name, 5), bytes),
    ("d/026.html", lambda c, name: c.setxattrs(name, {b"user.a": b"1"}), bytes),
    ("d/027.html", lambda c, name: c.put(name, document(99)), lambda old: document(99)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("synced", [False, True])
def test_files_that_are_changed_after_they_were_compressed(synced: bool, base: Path) -> None:
    files = dict(FILES)
    make(base, files)
    with winkfs.open(base, "a") as c:
        for name, edit, then in EDITS:
            edit(c, name)
            files[name] = then(files[name])
            if synced:
                c.sync()
            assert c.read(name) == files[name], name
        c.rename("d/023.html", "moved")
        files["moved"] = files.pop("d/023.html")
        c.delete("d/028.html")
        c.put("d/028.html", b"again " * 100)
        files["d/028.html"] = b"again " * 100
        if synced:
            c.sync()
        assert {name: c.read(name) for name in files} == files
        assert c.stat("d/024.html").mode == 0o600
        assert c.getxattrs("d/026.html") == {b"user.a": b"1"}
    assert_sound(base, raw(files))
    for order in ("disk", "name"):
        compact(base, order=order)
        assert_sound(base, raw(files))


@pytest.mark.slow
def test_many_small_overwrites_of_a_compressed_file(base: Path) -> None:
    make(base, {"f": FILES["large"]})
    model = bytearray(FILES["large"])
    with winkfs.open(base, "a") as c:
        for i in range(300):
            at = i * 7919 % (len(model) - 10)
            model[at : at + 5] = b"%05d" % i
            c.write("f", at, b"%05d" % i)
        assert c.read("f") == model
    assert_sound(base, {b"f": bytes(model)})


def test_an_append_only_container_takes_no_change(base: Path) -> None:
    make(base, {"a": document(1)}, ao=True)
    with winkfs.open(base, "a") as c:
        with pytest.raises(PermissionError):
            c.append("a", b"more")
        c.put("b", document(2))
        c.append("b", document(3))
        with pytest.raises(PermissionError):
            c.truncate("b", 5)
    assert_sound(base, {b"a": document(1), b"b": document(2) + document(3)})


# --- the dictionary ---


@pytest.mark.slow
def test_a_dictionary_is_trained_where_it_pays_and_kept(base: Path) -> None:
    files = {f"{i:03}": document(i) for i in range(400)}
    make(base, files)
    make(Path(f"{base}0"), {name: os.urandom(3000) for name in files})
    with winkfs.open(base) as c, winkfs.open(f"{base}0") as other:
        chosen = c.store.frames.compression
        assert chosen.tried and chosen.dictid and chosen.level == 9
        ids = {zstandard.get_frame_parameters(c.store.entry_at(pos).value).dict_id
               for name in files for pos in frames_of(c, name)}  # fmt: skip
        assert ids == {chosen.dictid}
        assert other.store.frames.compression == Compression(9, tried=True)
    with winkfs.open(base, "a") as c:
        c.put_many((f"more/{name}", data) for name, data in files.items())
        assert c.store.frames.compression == chosen  # one is trained once
        c.delete("000")
    compact(base)
    assert compression_of(base) == chosen
    for name in list(files):
        files[f"more/{name}"] = files[name]
    del files["000"]
    assert_sound(base, raw(files))


def test_what_a_dictionary_is_trained_for_must_pay_for_it() -> None:
    alike = [document(i, 2000) for i in range(200)]
    assert trained(alike, 9, 1 << 30, "f").dictionary
    assert not trained(alike[:10], 9, 1 << 30, "f").dictionary
    assert not trained([os.urandom(2000) for _ in alike], 9, 1 << 30, "f").dictionary


def test_the_level_is_remembered_and_can_be_changed(base: Path) -> None:
    make(base, {"a": document(1)}, compress="zstd:19")
    with winkfs.open(base, "a") as c:
        assert c.store.frames.compression.level == 19
        c.change(c.changes.set_compression, 0)
        c.put("b", document(2))
        assert not frames_of(c, "b")
        c.change(c.changes.set_compression, 3)
        c.put("c", document(3))
        c.sync()
        assert frames_of(c, "c")
    files = {b"a": document(1), b"b": document(2), b"c": document(3)}
    assert_sound(base, files)
    compact(base)
    assert len(assert_sound(base, files).entries) == 2 * len(files) + 1
    with winkfs.create(f"{base}0") as c, pytest.raises(NotAllowed, match="--compress"):
        c.change(c.changes.set_compression, 3)


@pytest.mark.parametrize("text", ["lzo", "zstd:", "zstd:0", "zstd:23", "zstd:x", "zstd:²", ""])
def test_what_content_cannot_be_compressed_with(text: str, base: Path) -> None:
    with pytest.raises(ValueError, match="zstd"):
        level_of(text)
    with pytest.raises(ValueError, match="zstd"):
        winkfs.create(base, compress=text)
    assert not path_of(base, ".data").exists()


def test_a_classic_container_is_refused(base: Path) -> None:
    with pytest.raises(ValueError, match="classic"):
        winkfs.create(base, compress="zstd", classic=True)


# --- damage ---


def test_a_flipped_bit_in_a_frame_costs_one_file(base: Path) -> None:
    make(base, FILES)
    pos = frame_of(base, "d/030.html")
    flip(path_of(base, ".data"), pos + 40, bits=4)
    others = {name: data for name, data in FILES.items() if name != "d/030.html"}
    with winkfs.open(base) as c:
        assert {name: c.read(name) for name in others} == others
        assert_unreadable(c, "d/030.html", str(pos))
    assert str(pos) in "".join(winkfs.verify(base).problems)
    found = salvage(base, f"{base}s")
    assert (found.files, found.partial) == (len(FILES) - 1, 0)
    assert files_of(Path(f"{base}s")) == others
    assert compression_of(Path(f"{base}s")).level == 9
    repair(base, apply=True)
    assert_sound(base, raw(others))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d/030.html", "large"])
def test_a_damaged_frame_is_counted_as_plain_content_is(name: str, base: Path) -> None:
    """The entry that is damaged, and the file that misses it: a line each, whatever it has."""
    reported = []
    for compress in ("zstd", None):
        path = Path(f"{base}-{compress}")
        make(path, FILES, compress=compress)
        with winkfs.open(path) as c:
            pos = c.extents(name)[0].pointer
        flip(path_of(path, ".data"), pos + 40, bits=4)
        reported.append([line for line in winkfs.verify(path).problems if str(pos) in line])
        assert len(winkfs.verify(path).problems) == 2, reported
    assert [len(lines) for lines in reported] == [2, 2]


def test_a_damaged_dictionary_is_reported_with_its_files(base: Path, run: Run) -> None:
    make(base, ALIKE | {"plain": NOISE})
    with winkfs.open(base) as c:
        at = c.superblock["COMPRESS"]
    flip(path_of(base, ".data"), at + 100, bits=4)
    with winkfs.open(base) as c:
        assert c.read("plain") == NOISE
        assert c.stat("001").size == 3000
        assert_unreadable(c, "001", "dictionary", str(at))
        entries = {entry.name: entry for entry in c.scan()}
        assert entries["plain"].read() == NOISE
    with winkfs.open(base, "a") as c:  # new files are plain
        c.put("new", document(5))
        assert c.read("new") == document(5)
        assert any("not compressed" in note for note in c.notes)
    problems = winkfs.verify(base).problems
    assert sum("dictionary" in line for line in problems) >= 100
    done = run("cat", base, "003")
    assert done.status == 1 and done.err.count("\n") == 1 and "003" in done.err
    assert run("unpack", base, "out").status == 1
    assert sorted(os.listdir("out")) == ["new", "plain"]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["repair", "repair --apply", "rollback", "compact", "salvage"])
def test_what_a_newer_version_wrote_is_not_mended(words: str, base: Path, run: Run) -> None:
    make(base, FILES)
    change_superblock(base, lambda block: block.update(INCOMPAT=block["INCOMPAT"] | 128))
    with unchanged(path_of(base, ".data")):
        done = run(*words.split(), base, *([f"{base}-out"] if words == "salvage" else []))
    assert "needs extension 128" in commands.one_line(done)


@pytest.mark.slow
@pytest.mark.parametrize("ao", [False, True])
def test_a_repair_takes_out_what_needs_a_damaged_dictionary(ao: bool, base: Path) -> None:
    files = ALIKE | {"plain": NOISE}
    make(base, files, ao=ao)
    with winkfs.open(base) as c:
        at, words = c.superblock["COMPRESS"], c.store.frames.compression.dictionary
    flip(path_of(base, ".data"), at + 100, bits=4)
    with unchanged(path_of(base, ".data")):
        found = repair(base)
    assert sorted(found.lost) == [f"{i:03}" for i in range(100)]
    assert any("compressed" in step and str(at) in step for step in found.steps)
    done = repair(base, apply=True)
    assert_sound(base, raw({"plain": files["plain"]}))
    assert repair(base).steps == []
    with winkfs.open(done.removed) as c:
        reader = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(words))
        for name in found.lost:  # whoever has the dictionary still can read them
            assert reader.decompress(c.read(f"frames/{name}")) == files[name]
        assert "ranges" in c.listdir("")
    with winkfs.open(base, "a") as c:
        c.put_many((name, data) for name, data in files.items() if name != "plain")
        assert c.notes == []
    assert_sound(base, raw(files))


def test_repair_restores_a_dictionary_lost_by_an_older_repair(base: Path) -> None:
    make(base, ALIKE)
    first = frame_of(base, "000")
    change_superblock(base, lambda block: block.update(COMPRESS=first))
    assert any("compressed" in line for line in winkfs.verify(base).problems)
    assert repair(base, apply=True).lost == []  # there is a good one
    assert_sound(base, raw(ALIKE))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lost", "guessed", "guessed ao"])
def test_a_dictionary_that_no_superblock_names_is_found(how: str, base: Path) -> None:
    make(base, ALIKE, ao="ao" in how)
    if how == "lost":
        change_superblock(base, lambda block: block.pop("COMPRESS"))
        assert files_of(base) == ALIKE
        return
    path = path_of(base, ".data")
    path.write_bytes(bytes(8192) + path.read_bytes()[8192:])
    repair(base, apply=True)
    assert_sound(base, raw(ALIKE))
    with winkfs.open(base) as c:
        assert c.store.frames.compression.dictid and c.ao == ("ao" in how)
        assert len(c.superblock) <= 31


@pytest.mark.parametrize("ao", [False, True])
def test_all_variables_lie_in_one_sector(ao: bool, base: Path) -> None:
    with winkfs.create(base, ao=ao, compress="zstd", columns={"lang": "string"}) as c:
        c.put("a", document(1), columns={"lang": "de"})
        c.sync()
        assert len(c.superblock) <= 31
    compact(base)
    with winkfs.open(base) as c:
        assert len(c.superblock) <= 31
        assert c.getcolumns("a") == {"lang": "de"}
    assert_sound(base, {b"a": document(1)})


def test_the_bit_without_pairoff_is_refused(base: Path) -> None:
    make(base, {"a": document(1)})
    change_superblock(base, lambda block: block.update(INCOMPAT=55, PAIROFF=0))
    with pytest.raises(winkfs.FormatError, match="PAIROFF"):
        winkfs.open(base)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [b"\x37\xa4\x30\xec\x4d\0\0\0" + os.urandom(3000), b"plain text " * 300, b"x"]
)
def test_a_dictionary_of_a_stranger(words: bytes, base: Path) -> None:
    make(base, ALIKE)
    with winkfs.open(base, "a") as c:
        c.store.compress(Compression(9, True, c.store.frames.compression.dictid, words))
    with winkfs.open(base) as c:
        assert_unreadable(c, "001", "zstd")
    with winkfs.open(base, "a") as c:  # what nobody could read is not written
        assert any("zstd cannot use" in note for note in c.notes)
        c.put("new", document(5))
        c.put_many([("newer", document(6))])
        assert (c.read("new"), c.read("newer")) == (document(5), document(6))
    assert len(winkfs.verify(base).problems) >= 100


def test_an_inode_of_which_a_bit_is_flipped(base: Path) -> None:
    make(base, FILES)
    flip(path_of(base, ".data"), inode_of(base, "d/030.html") + 90, bits=4)
    with winkfs.open(base) as c:
        with pytest.raises(CorruptError):
            c.read("d/030.html")
        assert c.read("d/031.html") == FILES["d/031.html"]


def test_a_lost_inode_leaves_its_document_and_no_frame(base: Path) -> None:
    make(base, ALIKE)
    flip(path_of(base, ".data"), inode_of(base, "007") + 90, bits=4)
    found = salvage(base, f"{base}s")
    assert (found.files, found.orphans) == (99, 1)
    with winkfs.open(f"{base}s") as c:
        (name,) = [n for n in c.names() if n.startswith("lost+found/")]
        assert c.read(name) == document(7)


# --- containers of strangers: everything is checked, and nothing is believed ---


def huge() -> bytes:
    """A frame that says that it has 10 GB in it, and has."""
    made = zstandard.ZstdCompressor().compressobj(size=10 << 30)
    return made.compress(bytes(1 << 20)) + made.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


HOSTILE = {
    "10 GB": (huge(), 3000, "more in it"),
    "no size": (zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 9), 9, "more"),
    "too large": (zstandard.compress(bytes(MAX_FRAME_CONTENT + 1)), 3000, "more in it"),
    "shorter than the file": (zstandard.compress(b"x" * 90), 91, "longer|content of a frame"),
    "no frame": (b"plain text, no frame", 20, "zstd cannot read"),
    "nothing": (b"", 1, "zstd cannot read"),
    "cut": (zstandard.compress(document(2))[:-9], 3000, "zstd cannot read"),
    "two": (zstandard.compress(b"x" * 90) * 2, 90, "zstd cannot read"),
    "skippable": (b"\x50\x2a\x4d\x18\x05\0\0\0hello", 5, "longer|zstd cannot read|content of"),
    "another dictionary": (
        zstandard.ZstdCompressor(
            dict_data=zstandard.train_dictionary(4096, [document(i) for i in range(100)])
        ).compress(document(9)), 3000, "not there",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_frame_of_a_stranger(kind: str, base: Path) -> None:
    frame, size, words = HOSTILE[kind]
    forge(base, frame, size)
    with winkfs.open(base) as c:
        assert c.read("a") == document(1)
        assert_unreadable(c, "f", match=words)
    problems = winkfs.verify(base).problems
    assert any("frame" in line or "dictionary" in line for line in problems)


def test_verify_reports_a_frame_without_its_bit(base: Path) -> None:
    forge(base, zstandard.compress(b"x" * 90), 90)
    change_superblock(base, lambda block: block.update(INCOMPAT=block["INCOMPAT"] & ~32))
    assert any("longer than its entry" in line for line in winkfs.verify(base).problems)


def test_what_content_is_compressed_with_is_checked() -> None:
    good = Compression(5, True, 7, b"words")
    assert Compression.decode(good.encode(), file="f", offset=1) == good
    for wrong in (
        b"", good.encode()[:-1], good.encode() + b"x", Compression(23).encode(),
        Compression(-1).encode(), Compression(1, True, 7).encode(),
        Compression(1, True, 0, b"x").encode(), b"\2" * 40,
    ):  # fmt: skip
        with refused(CorruptError, "99"):
            Compression.decode(wrong, file="f", offset=99)


# --- without the library ---


def test_without_zstandard_there_is_one_line(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, {"a": document(1), "b": os.urandom(500)})
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with winkfs.open(base) as c:
        assert c.stat("a").size == 3000 and c.read("b")
        assert_unreadable(c, "a", "pip install 'winkfs[compress]'", str(base), kind=Refusal)
    with winkfs.open(base) as c, pytest.raises(Refusal, match=r"winkfs\[compress\]"):
        ContainerSource(c)  # a mount
    for call in (lambda: winkfs.open(base, "a"), lambda: winkfs.create("x", compress="zstd")):
        with pytest.raises(Refusal, match=r"winkfs\[compress\]"):
            call()


# --- the command line, and trees ---


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    write_files(folder, FILES)
    (folder / "run").write_bytes(document(3))
    (folder / "run").chmod(0o755)
    return folder


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--ao",), ("--shards", "2")])
def test_a_tree_comes_back(tree: Path, run: Run, options: tuple[str, ...]) -> None:
    done = run("pack", "--compress", "zstd:5", *options, tree, "c")
    assert (done.status, done.err) == (0, "")
    assert run("verify", "c").status == 0
    assert run("unpack", "c", "out").status == 0
    compared = subprocess.run(["diff", "-r", tree, "out"], capture_output=True, check=False)
    assert (compared.returncode, compared.stdout) == (0, b"")
    assert os.access("out/run", os.X_OK)
    assert run("cat", "c", "d/001.html").out == FILES["d/001.html"]
    sizes = run("ls", "-l", "c", "d/001.html").out.split()
    assert b"%d" % len(FILES["d/001.html"]) in sizes
    (tree / "d/001.html").write_bytes(document(77))
    assert run("pack", "--update", tree, "c").status == 0
    assert run("cat", "c", "d/001.html").out == document(77)
    assert run("verify", "c").status == 0


@pytest.mark.slow
def test_what_is_left_out_is_in_no_dictionary(tmp_path: Path, run: Run) -> None:
    secret = b"this is the very secret password of all of them "
    write_files(tmp_path / "t", {f"in/{i}": document(i) for i in range(400)})
    write_files(tmp_path / "t", {f"out/{i}": secret * 60 for i in range(400)})
    assert run("pack", "--compress", "zstd", "--exclude", "out", "t", "c").status == 0
    words = compression_of(Path("c")).dictionary
    assert words and b"secret" not in words


@pytest.mark.slow
def test_info_prints_the_space_saved(tree: Path, run: Run) -> None:
    run("pack", "--compress", "zstd", tree, "c")
    assert re.search(r"compression: zstd:9, .* ratio \d", run("info", "c").out.decode())
    answer = run("info", "c", "--raw").out.decode()
    for word in ("codec:", "zstd", "level:", "dictionary_bytes:", "compressed_bytes:", "ratio:"):
        assert word in answer
    done = run("create", "x", "--compress", "gzip")
    assert done.status == 2 and "zstd" in done.err
    assert run("create", "x", "--compress", "zstd").status == 0
    assert run("put", "x", "a", stdin=document(1)).status == 0
    assert run("cat", "x", "a").out == document(1)
    assert frame_of(Path("x"), "a")


def test_what_is_empty_has_no_ratio_of_nothing(run: Run) -> None:
    assert run("create", "x", "--compress", "zstd").status == 0
    assert json.loads(run("info", "--json", "x").out)["compression"]["ratio"] == 1.0
    assert run("put", "x", "a", stdin=document(1)).status == 0
    assert json.loads(run("info", "--json", "x").out)["compression"]["ratio"] > 1.5


def test_the_key_is_none_of_a_file(base: Path) -> None:
    make(base, {KEY.decode(): document(1)})
    assert_sound(base, {KEY: document(1)})


# --- data sets ---


@pytest.mark.slow
def test_a_data_set_stays_compressed_when_it_is_rewritten(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    winkfs.pack(tree, root, shards=3, compress="zstd:4")
    with winkfs.open(root, "a") as found:
        assert isinstance(found, Dataset)
        found.delete("d/002.html")
        found.put("d/003.html", document(77))
    wanted = FILES | {"d/003.html": document(77), "run": document(3)}
    del wanted["d/002.html"]
    rebalance(root, shards=2)
    vacuum(root, older_than=0)
    bases = [path.with_suffix("") for path in root.glob("*/*.data")]
    assert len(bases) in (2, 3)
    for base in bases:
        with winkfs.open(base) as shard:
            assert shard.store.frames.level == 4
    with winkfs.open(root) as found:
        read = {entry.name: entry.read() for entry in found.scan() if entry.ftype != FileType.DIR}
        assert read == wanted
        assert all(found.read(name) == data for name, data in wanted.items())
        assert found.most_content > sum(map(len, wanted.values()))
    assert winkfs.verify(root).problems == []


def test_dead_bytes_of_a_compressed_shard_are_counted(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    winkfs.pack(tree, root, shards=1, compress="zstd")
    (base,) = (path.with_suffix("") for path in root.glob("*/*.data"))
    with winkfs.open(base, "a") as shard:
        for i in range(40):
            shard.delete(f"d/{i:03}.html")
    with winkfs.open(base) as shard:
        dead = verify.info(str(base))["dead_bytes"]
        assert 40 * 150 < dead < shard.stored_bytes
