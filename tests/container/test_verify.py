"""verify names every kind of damage and nothing else; damage never becomes wrong bytes."""

import errno
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import container_checks
import oracle_kitchen
import pytest
from container_checks import assert_sound, contents_of, copy_files, path_of, put
from flips import flip
from folders import MEMORY
from oracle_faults import FAULTS
from oracle_kitchen import Kitchen
from oracle_read import Tree, check
from seam import disk_calls, refusing
from stored import make, read

import winkfs
from winkformats.errors import CorruptError
from winkfs import FileType, Report, Row
from winkfs.cli import main
from winkfs.container import verify as verify_module
from winkfs.container.verify import info

pytestmark = pytest.mark.in_memory

base = container_checks.base  # fixture
kitchen = oracle_kitchen.kitchen  # fixture

NAMED = {
    "magic": "no #!WINKME",
    "sbsize_not_first": "SBSIZE",
    "format_not_second": "SBSIZE, FORMAT, PURPOSE",
    "sbsize_beyond_the_file": "SBSIZE",
    "sbsize_too_small": "SBSIZE",
    "no_terminator": "superblock has no end",
    "format": "FORMAT",
    "purpose": "FSYSDATA",
    "variable_twice": "twice",
    "sbcksum": "superblock checksum",
    "unknown_incompat": "extension 128",
    "filesize_beyond_the_end": "cut short",
    "filesize_in_the_last_entry": "bad entry .*no good one behind it",
    "file_cut": "cut short",
    "entries": "ENTRIES",
    "aentries": "AENTRIES",
    "itotsz": "ITOTSZ",
    "dtotsz": "DTOTSZ",
    "nextfid_used": "NEXTFID",
    "ckalgo_unknown": "CKALGO",
    "keyrepr_missing": "KEYREPR",
    "valrepr_515": "VALREPR",
    "delflag_2": "bad entry .* at byte 4096",
    "key_byte": "bad entry",
    "value_byte": "bad entry",
    "checksum_byte": "bad entry",
    "entries_of_another_container": "bad entry",
    "entry_in_the_place_of_another": "bad entry",
    "align_skip_byte": "padding is not zero",
    "length_over_the_field": "bad entry .* at byte",
    "tombstone_not_deleted": "AENTRIES",
    "superseded_inode_not_deleted": "superseded",
    "live_data_deleted": "marked deleted",
    "inode_deleted_without_tombstone": "c.data: 1 files are marked deleted",
    "cksum": "inode checksum",
    "classic_cksum": "inode checksum",
    "field_byte": "inode checksum",
    "pair_byte": "inode checksum",
    "nexti": "do not fit together",
    "fileid_0": "do not fit together",
    "fileid_of_another_file": "superseded|no data entry|another file",
    "lsize_over_the_pairs": "do not fit together",
    "lsize_negative": "do not fit together",
    "dcount_over_the_inode": "DCOUNT",
    "dcount_negative": "DCOUNT",
    "pointer_off_by_one": "points to no data entry",
    "pointer_to_an_inode": "points to no data entry",
    "pair_longer_than_the_value": "longer than its entry",
    "skip_and_size_longer_than_the_value": "longer than its entry",
    "skip_negative": "do not fit together",
    "attributes_not_first": "do not fit together",
    "attributes_longer_than_the_value": "longer than its entry",
    "cell_missing": "c.idx.*reindex",
    "cell_deleted": "c.idx.*reindex",
    "cell_behind_a_free_one": "c.idx.*reindex",
    "cell_of_a_dead_inode": "c.idx.*reindex",
    "cell_points_elsewhere": "c.idx.*reindex",
    "cell_twice": "c.idx.*reindex",
    "s_word": "c.idx.*reindex",
    "mark": "c.time.*reindex",
    "mark_position": "c.time.*reindex",
    "mark_missing": "c.time.*reindex",
    "timemn": "c.time.*reindex",
    "attributes_cut": "attributes",
    "data_of_another_file": "another file",
    "pointer_to_another_file": "another file",
    "fmtime_steps_back": "mtime|before",
    "ftype_256": "type",
    "directory_with_content": "type",
    "lastmt": "c.time.*reindex",
    "catalog_without_a_name": "c.cat.*reindex",
    "catalog_with_another_size": "c.cat.*reindex",
    "catalog_clashes": "c.cat.*reindex",
    "catalog_block": "c.cat.*reindex",
    "catalog_run": "c.cat.*reindex",
}
NOT_BELIEVED = (
    "index_purpose",
    "index_sbcksum",
    "index_missing",
    "time_missing",
    "htsize",
    "index_cut",
    "contid",
    "contid_missing",
    "dataend_low",
    "synctime",
    "htalgo_4",
    "htalgo_not_the_datas",
    "htdel_not_the_datas",
    "catalog_from_the_future",
    "timemp",
    "time_keyrepr",
    "time_dataend",
    "time_contid",
)


def problems(base: Path) -> list[str]:
    """What verify says; nothing may change, and each problem is one line."""
    before = {path.name: path.read_bytes() for path in base.parent.iterdir()}
    report = winkfs.verify(base)
    assert {path.name: path.read_bytes() for path in base.parent.iterdir()} == before
    assert not any("\n" in problem for problem in report.problems)
    return report.problems


def plant(fault: str, kitchen: Kitchen, base: Path) -> dict[bytes, bytes]:
    recipe, _, deed = FAULTS[fault]
    deed(kitchen.damage(recipe, base.parent))
    return {name: file.content for name, file in kitchen.made[recipe].items()}


@pytest.mark.slow
@pytest.mark.parametrize("fault", NAMED)
def test_a_planted_fault_is_named(fault: str, kitchen: Kitchen, base: Path) -> None:
    plant(fault, kitchen, base)
    text = "\n".join(problems(base))
    assert re.search(NAMED[fault], text), text
    assert main(["verify", str(base)]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", NOT_BELIEVED)
def test_a_derived_file_that_is_not_believed_is_no_damage(
    fault: str, kitchen: Kitchen, base: Path
) -> None:
    model = plant(fault, kitchen, base)
    assert problems(base) == []
    assert contents_of(base) == model
    winkfs.reindex(base)
    assert_sound(base, model)


@pytest.mark.few(40)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_never_ends_in_another_error(
    fault: str, kitchen: Kitchen, base: Path
) -> None:
    """Reading all there is gives CorruptError, FormatError or the file: nothing else."""
    model = plant(fault, kitchen, base)
    try:
        container = winkfs.open(base)
    except ValueError as error:
        assert "c.data" in str(error) and "\n" not in str(error)
        return
    with container:
        for name in model:
            for look in (container.read, container.stat, container.getxattrs):
                with suppress(ValueError, FileNotFoundError):
                    look(name)
        try:
            for entry in container.scan():
                entry.read()
        except ValueError as error:
            assert "c.data" in str(error)
    assert main(["unpack", str(base), str(base.parent / "out")]) in (0, 1)


# --- no false alarms ----------------------------------------------------------------------------


def test_verify_of_no_container(base: Path) -> None:
    with pytest.raises(FileNotFoundError):
        winkfs.verify(base)


@pytest.mark.slow
@pytest.mark.parametrize("classic", [False, True])
def test_no_false_alarm_while_a_writer_works(classic: bool, base: Path) -> None:
    with winkfs.create(base, classic=classic) as container:
        for turn in range(12):
            container.put_many((f"{turn}.{i}", b"%d" % i) for i in range(50))
            container.put_many((f"same{i}", b"%d" % turn) for i in range(20))
            if turn:
                container.delete(f"{turn - 1}.0")
                container.append(f"{turn}.1", b"x" * turn)
                container.rename(f"{turn}.2", f"renamed{turn}")
            assert winkfs.verify(base).problems == []
            if turn % 2:
                container.sync()
                assert winkfs.verify(base).problems == []
    assert winkfs.verify(base).problems == []


def test_the_report_counts(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put_many((f"{i}", b"x" * i) for i in range(100))
        container.delete("99")
    seen: list[int] = []
    report = winkfs.verify(base, progress=seen.append)
    assert isinstance(report, Report)
    assert (report.files, report.bytes) == (99, sum(range(99)))
    assert report.entries == len(check(base).entries)
    assert sum(seen) == path_of(base, ".data").stat().st_size - 8192


@pytest.mark.long
@pytest.mark.slow
def test_a_thousand_problems_are_named_and_the_rest_counted(base: Path) -> None:
    make(base, ((f"{i}", b"x") for i in range(600)))
    raw = bytearray(path_of(base, ".data").read_bytes())
    for entry in check(base).entries:
        if entry.key.endswith(b"/D0"):
            raw[entry.end - 1] ^= 1
    path_of(base, ".data").write_bytes(raw)
    report = winkfs.verify(base)
    assert len(report.problems) == 1000
    assert report.more == 200  # of each entry, and of the inode that points to it


# --- flipped bytes ------------------------------------------------------------------------------

CONTENTS: dict[str, bytes] = {
    f"folder/file {i}": (b"%d, " % i * 500)[: i * 37 % 1900] for i in range(40)
}


@pytest.fixture(scope="module", params=["plain", "classic", "ao"])
def made(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with a sound container "c" of every kind of file."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        base = Path(folder) / "c"
        ao, classic = request.param == "ao", request.param == "classic"
        with winkfs.create(base, ao=ao, classic=classic) as container:
            container.put_many(CONTENTS.items())
            container.put("large", b"0123456789" * 120_000)
            container.put("empty", b"")
            container.put("again", b"old")
            container.sync()
            container.put("again", b"new")
            container.put("gone", b"gone")
            container.delete("gone")
            if not ao:
                container.append("folder/file 5", b"appended")
                container.write("large", 500_000, b"<written>")
                container.rename("folder/file 6", "renamed")
            if request.param == "plain":
                container.put("attributes", b"a", mode=0o600)
                container.setxattrs("attributes", {b"user.x": b"y"})
            if not classic:
                container.put_rows([Row("link", b"large", ftype=FileType.LINK)])
        yield Path(folder)


@pytest.fixture(scope="module")
def tree(made: Path) -> Tree:
    """What it holds, for the oracle."""
    return check(made / "c")


def owners(tree: Tree) -> list[tuple[int, int, bytes]]:
    """(start, end, file) of every entry that a live file needs."""
    by_pos = {entry.pos: entry for entry in tree.entries}
    found = []
    for name, file in tree.files.items():
        for pos in {file.inode_pos, *(pair.pointer for pair in file.pairs if pair.pointer)}:
            found.append((pos, by_pos[pos].end, name))
    return found


def places_in(tree: Tree, seed: int, count: int) -> list[tuple[int, int]]:
    """Places all over the entries, more of them where small entries are."""
    dice = random.Random(seed)
    entries = tree.entries
    found = []
    for _ in range(count):
        entry = dice.choice(entries)
        place = dice.choice([dice.randrange(entry.pos, entry.end), entry.pos + dice.randrange(9)])
        found.append((min(place, entry.end - 1), dice.choice([1, 2, 0x80, dice.randrange(1, 256)])))
    return found


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_byte_never_gives_wrong_bytes(
    seed: int, made: Path, tree: Tree, base: Path, every: Callable[[str], slice]
) -> None:
    """What the flip did not hit is all there; what it hit raises, or is gone by its flag or name.

    Classic entries have no checksum: there a flip in content or in a name goes unseen.
    """
    model = {name: file.content for name, file in tree.files.items()}
    checked = tree.superblock.get("KVCKSUM", 0) == 1
    needed, starts = owners(tree), {entry.pos for entry in tree.entries}
    heads = [(e.pos, e.end - len(e.value)) for e in tree.entries if e.key.endswith(b"/I0")]
    for place, change in places_in(tree, seed, 60)[every("data bytes")]:
        copy_files(made, base.parent)
        flip(path_of(base, ".data"), place, bits=change)
        hit = {name for start, end, name in needed if start <= place < end}
        with winkfs.open(base) as container:
            for name in model.keys() - hit:
                assert container.read(name) == model[name], (place, change, name)
            rest = [name for name in model if name not in hit]
            assert list(container.get_many(rest)) == [model[name] for name in rest]
            for name in hit:
                ways = [lambda: container.read(name), lambda: next(container.get_many([name]))]  # noqa: B023
                for way in ways:
                    try:
                        found = way()
                    except CorruptError as error:
                        assert error.file.endswith("c.data")
                        assert error.offset <= place
                        assert "byte" in str(error) and "\n" not in str(error)
                    except FileNotFoundError:
                        assert any(start <= place < end for start, end in heads)
                    else:
                        flag = place in starts and change == 1  # a data entry's, without effect
                        assert found == model[name] if flag or checked else True
        if checked:
            assert problems(base), (place, change)


@pytest.mark.parametrize("part", ["inode", "data"])
def test_the_error_names_the_damaged_file_and_its_place(
    part: str, made: Path, tree: Tree, base: Path
) -> None:
    if part == "data" and not tree.superblock.get("KVCKSUM", 0):
        pytest.skip("classic data has no checksum")
    copy_files(made, base.parent)
    file = tree.files[b"folder/file 7"]
    pos = file.inode_pos if part == "inode" else file.pairs[0].pointer
    end = next(entry.end for entry in tree.entries if entry.pos == pos)
    key = b"folder/file 7/I0" if part == "inode" else b"%x/D" % file.fileid
    place = path_of(base, ".data").read_bytes().index(key, pos, end) + len(key) + 4 + 30
    flip(path_of(base, ".data"), place, bits=0x10)
    with winkfs.open(base) as container:
        for way in (
            lambda: container.read("folder/file 7"),
            lambda: container.read("folder/file 7", 1, 1),
            lambda: list(container.get_many(["folder/file 8", "folder/file 7"])),
            lambda: container.open_file("folder/file 7").read(),
            lambda: [entry.read() for entry in container.scan(prefix="folder/file 7")],
        ):
            with pytest.raises(CorruptError) as caught:
                way()
            assert caught.value.file == str(path_of(base, ".data"))
            assert caught.value.offset == pos
    assert any(f"at byte {pos}" in problem for problem in problems(base))


def test_unpack_gives_every_undamaged_file(made: Path, tree: Tree, base: Path) -> None:
    copy_files(made, base.parent)
    damaged = [b"folder/file 3", b"folder/file 20", b"folder/file 33"]
    raw = path_of(base, ".data").read_bytes()
    for name in damaged:
        file = tree.files[name]
        end = next(entry.end for entry in tree.entries if entry.pos == file.inode_pos)
        at = raw.index(name, file.inode_pos, end) + len(name) + 3 + 4 + 9
        flip(path_of(base, ".data"), at, bits=0x40)
    target = base.parent / "out"
    assert main(["unpack", str(base), str(target)]) == 1
    for name, file in tree.files.items():
        path = target / name.decode()
        if name in damaged:
            assert not path.exists()
        elif file.ftype == FileType.FILE:
            assert path.read_bytes() == file.content
    with winkfs.open(base) as container:
        reported: list[CorruptError] = []
        found = {entry.name.encode() for entry in container.scan(problem=reported.append)}
        assert found == tree.files.keys() - set(damaged)
        assert [error.offset for error in reported] == sorted(
            tree.files[n].inode_pos for n in damaged
        )
        with pytest.raises(CorruptError):
            list(container.scan())


def damage_one(made: Path, tree: Tree, base: Path) -> int:
    """A copy with a bit of the inode of "folder/file 3" flipped -> the position of its entry."""
    copy_files(made, base.parent)
    pos = tree.files[b"folder/file 3"].inode_pos
    place = path_of(base, ".data").read_bytes().index(b"file 3/I0", pos) + 9 + 4 + 9
    flip(path_of(base, ".data"), place, bits=0x40)
    return pos


def test_a_writer_beside_damage_leaves_the_rest_in_order(
    made: Path, tree: Tree, base: Path
) -> None:
    """Changing other files works, and the damage stays where it is, and named."""
    model = {name: file.content for name, file in tree.files.items()}
    pos = damage_one(made, tree, base)
    del model[b"folder/file 3"]
    with winkfs.open(base, "a") as container:
        container.put("new", b"1")
        container.delete("again")
        container.put("folder/file 4", b"replaced")
        model |= {b"new": b"1", b"folder/file 4": b"replaced"}
        del model[b"again"]
    for _ in range(2):
        with winkfs.open(base) as container:
            for name, content in model.items():
                assert container.read(name) == content
            with pytest.raises((CorruptError, FileNotFoundError)):
                container.read("folder/file 3")
        assert any(f"at byte {pos}" in problem for problem in problems(base))
        winkfs.reindex(base)  # then it is not in the index any more


@pytest.mark.parametrize("suffix", [".idx", ".time"])
def test_damage_and_a_lost_index(suffix: str, made: Path, tree: Tree, base: Path) -> None:
    """Without its index a container is read through: what is whole is found."""
    pos = damage_one(made, tree, base)
    path_of(base, suffix).unlink(missing_ok=True)
    with winkfs.open(base) as container:
        for name, found in tree.files.items():
            if name != b"folder/file 3":
                assert container.read(name) == found.content
        if suffix == ".idx":
            assert any(f"at byte {pos}" in note for note in container.notes)


@pytest.mark.few(1)
@pytest.mark.slow
def test_a_data_file_cut_short(made: Path, tree: Tree, base: Path) -> None:
    """A reader has the intact part and says so; a writer refuses."""
    raw = path_of(made / "c", ".data").read_bytes()
    needed = owners(tree)
    dice = random.Random(1)
    sizes = [dice.randrange(4096, len(raw)) for _ in range(12)]
    for size in [4096, 8192, *[entry.pos for entry in tree.entries[::19]], *sizes, len(raw) - 1]:
        copy_files(made, base.parent)
        path_of(base, ".data").write_bytes(raw[:size])
        with winkfs.open(base) as container:
            assert any("cut short" in note for note in container.notes)
            whole = set(tree.files) - {name for _, end, name in needed if end > size}
            for name in whole:
                assert container.read(name) == tree.files[name].content
            for name in tree.files.keys() - whole:
                try:
                    found = container.read(name)
                except (FileNotFoundError, CorruptError):
                    continue
                assert found != b"new" or name != b"again"  # an older version, perhaps
        assert any("cut short" in problem for problem in problems(base))
        with pytest.raises(CorruptError, match="cut short"):
            winkfs.open(base, "a")


@pytest.mark.slow
def test_random_bytes_behind_a_good_superblock(base: Path) -> None:
    dice = random.Random(3)
    winkfs.create(base).close()
    for _ in range(20):
        put(base, "a", b"1")
        size = dice.choice([0, 1, 10, 300, 5000])
        raw = path_of(base, ".data").read_bytes()
        path_of(base, ".data").write_bytes(raw[:4096] + dice.randbytes(len(raw) - 4096 + size))
        assert problems(base)
        try:
            assert read(base, "a") == b"1"
        except (CorruptError, FileNotFoundError) as error:
            assert "\n" not in str(error)
        path_of(base, ".data").write_bytes(raw)


@pytest.mark.parametrize("suffix", [".idx", ".cat"])
def test_an_unreadable_derived_file_is_named(suffix: str, base: Path) -> None:
    winkfs.create(base).close()
    winkfs.reindex(base)
    with disk_calls(refusing("read", suffix, errno.EACCES)):
        notes = winkfs.verify(base).notes
    assert f"{path_of(base, suffix)}: Permission denied: it is not used" in notes


def test_a_put_over_a_deleted_inode_leaves_one_cell(base: Path) -> None:
    """Only its delflag says that the file is gone, and the index still has it."""
    make(base, [("a", b"1"), ("b", b"2")], classic=True)
    with winkfs.open(base) as reader:
        pos = reader.store.index.lookup(b"a/I0")
    data = Path(f"{base}.data")
    raw = bytearray(data.read_bytes())
    raw[pos] = 1
    data.write_bytes(raw)
    put(base, "a", b"new")
    assert [line for line in problems(base) if "cells" in line] == []
    assert read(base, "a") == b"new"


def test_an_estimate_of_dead_bytes_is_not_0_if_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = make(tmp_path / "c", {f"{i:03}": b"0123456789" for i in range(500)})
    with winkfs.open(base, "a") as c:
        c.delete("007")
    true = info(str(base))
    monkeypatch.setattr(verify_module, "EXACT_BYTES", 0)
    found = info(str(base))
    assert true["dead_bytes_exact"] and not found["dead_bytes_exact"]
    assert true["dead_bytes"] / 2 < found["dead_bytes"] <= true["dead_bytes"]
