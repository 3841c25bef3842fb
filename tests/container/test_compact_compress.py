"""compact --compress: the same files with their contents in frames, or plain; the old container or
the new one at any moment."""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

import commands
import pytest
from commands import Run
from compacted import COLUMNS, FILES, assert_compacted, framed, life, size_of
from compressed_files import document, forge, frames_of, make
from container_checks import assert_sound, change_superblock, delete, files_of, path_of
from folders import unchanged, write_files
from interrupts import Interrupter

import winkfs
from winkfs import NotAllowed, Refusal
from winkfs.container.compact import compact
from winkfs.container.frames import ENOUGH_BYTES

pytestmark = pytest.mark.in_memory

zstandard = pytest.importorskip("zstandard")


# --- the same files ---


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["zstd:3", "none"])
@pytest.mark.parametrize("was", [None, "zstd"])
@pytest.mark.parametrize("ao", [False, True])
def test_the_same_files_with_contents_stored_otherwise(
    wanted: str, was: str | None, ao: bool, base: Path
) -> None:
    life(base, ao=ao, compress=was)
    before = assert_compacted(base, wanted)
    some = {"d/050.html", "typed", "run", "odd", "large", "zeros"}
    assert framed(base) & {*some, "link", "label", "short"} == (some if wanted != "none" else set())
    with winkfs.open(base) as c:
        block, level = c.superblock, c.store.frames.level
        assert c.columns == COLUMNS
        assert (block["INCOMPAT"] & 32 > 0, level) == (
            (True, 3) if wanted != "none" else (False, 0)
        )
        assert "INCHAIN" not in block and len(block) <= 31
        assert [e.name for e in c.scan(where="lang = 'de'")] == ["typed"]
    with winkfs.open(base, "a") as c:
        fileids = {stat.fileid for stat, *_ in before.values()}
        c.put("new", document(9))
        c.put_many([("newer", document(10))])
        assert c.stat("new").fileid > max(fileids)
    assert {"new", "newer"} & framed(base) == ({"new", "newer"} if wanted != "none" else set())
    assert winkfs.verify(base).problems == []


@pytest.mark.slow
def test_it_becomes_what_a_new_container_is(base: Path) -> None:
    """Whichever way it came there: the variables of the superblock are those of a fresh one."""
    for ao in (False, True):
        for wanted in ("zstd", "none"):
            make(fresh := Path(f"{base}-{ao}-{wanted}"), FILES, ao=ao, compress=wanted)
            for was in ("zstd", None):
                path = Path(f"{fresh}-{was}")
                make(path, FILES, ao=ao, compress=was)
                compact(path, compress=wanted)
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
    delete(base, "d/001.html")
    compact(base)
    with winkfs.open(base) as c:
        after = {c.store.entry_at(pos).value for n in c.names() for pos in frames_of(c, n)}
        assert after < before and len(after) == len(before) - 1
        assert c.store.frames.compression == chosen


@pytest.mark.slow
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


@pytest.mark.long
@pytest.mark.slow
def test_the_dictionary_is_trained_on_what_lives(base: Path) -> None:
    secret = b"this is the very secret password of all of them "
    with winkfs.create(base, compress="zstd") as c:
        c.put_many((f"secret/{i}", secret * 60 + document(i)) for i in range(400))
        assert secret in c.store.frames.compression.dictionary
        for i in range(400):
            c.delete(f"secret/{i}")
        c.put_many((f"{i}", document(i)) for i in range(300))
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
    files = {f"{i}": noise.randbytes(ENOUGH_BYTES // 50) for i in range(100)}
    make(base, files, compress=None)
    compact(base, compress="zstd")
    with winkfs.open(base) as c:
        chosen = c.store.frames.compression
    assert (chosen.level, chosen.tried, chosen.dictid) == (9, True, 0)


# --- refusals ---


def test_what_cannot_have_compressed_content_is_left_as_it_is(base: Path, run: Run) -> None:
    make(base, {"a": document(1)}, classic=True, compress=None)
    with unchanged(path_of(base, ".data")):
        answer = commands.one_line(run("compact", "--compress", "zstd", base))
    assert answer == f"winkfs: {base}: a classic container cannot have compressed content\n"
    assert run("compact", "--compress", "none", base).status == 0
    with winkfs.open(base) as c:
        assert c.classic and c.read("a") == document(1)


def test_a_variant_that_only_others_write_is_refused(base: Path) -> None:
    """Entries of another form, which `put_many` does not write either."""
    make(base, {"a": document(1)}, compress=None)
    empty = dict.fromkeys(("ENTRIES", "AENTRIES", "ITOTSZ", "DTOTSZ"), 0)
    change_superblock(
        base, lambda block: block.update(empty, FILESIZE=8192, SYNCSIZE=8192, ALIGN=64)
    )
    with pytest.raises(NotAllowed, match="variant that cannot have compressed content"):
        compact(base, compress="zstd")


@pytest.mark.parametrize("word", ["gzip", "zstd:0", "zstd:23", "zstd:x", "none:1", ""])
def test_a_codec_that_there_is_not(word: str, base: Path, run: Run) -> None:
    make(base, {"a": document(1)})
    with unchanged(path_of(base, ".data")):
        with pytest.raises(ValueError, match="zstd"):
            compact(base, compress=word)
        assert "--compress" in commands.one_line(run("compact", "--compress", word, base), 2)


def test_without_zstandard_it_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(base, {"a": document(1)})
    make(Path(f"{base}0"), {"a": document(1)}, compress=None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for path, wanted in ((f"{base}0", "zstd"), (base, "none")):
        with pytest.raises(Refusal, match=r"pip install 'winkfs\[compress\]'"):
            compact(path, compress=wanted)
    compact(f"{base}0", compress="none")


@pytest.mark.parametrize("wanted", ["zstd", "none"])
def test_an_unreadable_frame_is_copied_unchanged(wanted: str, base: Path) -> None:
    """Its checksum is right: only who decompresses it finds that."""
    forge(base, b"plain text, no frame", 900)
    with (
        unchanged(path_of(base, ".data")),
        pytest.raises(Refusal, match=r"damaged.*repair it first"),
    ):
        compact(base, compress=wanted)
    assert not list(base.parent.glob("*.tmp"))


# --- at any moment ---


# What was being opened at the moment is closed when it is collected, which says so.
@pytest.mark.few(1)
@pytest.mark.slow
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
    for at in range(1, counted.lines, counted.lines // 12):
        for path in base.parent.glob("c.*"):
            path.unlink()
        path_of(base, ".data").write_bytes(whole)
        with Interrupter(at) as interrupter, suppress(KeyboardInterrupt):
            compact(base, compress=wanted)
        assert size_of(base) in (len(whole), new), interrupter.fired
        winkfs.open(base, "a").close()
        assert files_of(base) == files, interrupter.fired
        assert not list(base.parent.glob("*.tmp")), interrupter.fired
    gc.collect()


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
    answer = json.loads(run("info", "--json", name).out)["compression"]
    assert (answer["codec"], answer["level"]) == ("zstd", 3) and answer["ratio"] > 1.3
    assert run("compact", "--compress", "none", name).status == 0
    assert "compression" not in json.loads(run("info", "--json", name).out)
    assert size_of(Path(name)) == size


def test_an_update_goes_by_the_mark_of_the_pack_before(tmp_path: Path, run: Run) -> None:
    write_files(tmp_path / "tree", FILES)
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
