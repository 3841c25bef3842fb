"""Digest sets: what was put in is found, by one or by many; what is damaged is not handed out."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import xxhash
from drawn import examples
from flips import flip
from xxh3_clash import clash

import winkfs.digests
from winkformats import hashing
from winkformats.disk.paths import locate
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import read_superblock
from winkfs.digests import NAME, Digest, shard_name, shard_of
from winkfs.errors import Closed, DamageWarning, NoSuchFile
from winkfs.names import to_str
from winkfs.results import digestshard
from winkfs.results import store as results
from winkfs.results.digestshard import DigestColumns, DigestShardWriter

MANY = 5000


def pairs(count: int, seed: int = 1) -> dict[bytes, Digest]:
    """Paths with digests of every kind: empty title, long title, no UTF-8 in the path."""
    random.seed(seed)
    found = {}
    for i in range(count):
        path = b"site%d/page \xff %d.html" % (i % 7, i) if i % 3 else b"%d" % i
        title = [None, f"Titel {i} ü", "x" * 1024, "a"][i % 4]
        lang = [None, "de", "x" * 35][i % 3]
        size = random.choice([0, 1, 1 << 40, i])
        sums = random.getrandbits(64), random.randbytes(16)
        found[path] = Digest(*sums, size, -i * 10**9, title, lang)
    return found


def columns(chosen: dict[bytes, Digest]) -> DigestColumns:
    xxh3, mmh3, size, mtime, titles, langs = zip(*chosen.values(), strict=True)
    return DigestColumns(
        list(chosen), np.array(xxh3, np.uint64),
        np.frombuffer(b"".join(mmh3), np.uint8).reshape(-1, 16), np.array(size, np.int64),
        np.array(mtime, np.int64), [(title or "").encode() for title in titles],
        [(lang or "").encode() for lang in langs],
    )  # fmt: skip


def made_twice(
    tmp_path: Path, again: int = 5
) -> tuple[dict[bytes, Digest], dict[bytes, Digest], Path]:
    """A digest set in which some of ten paths come again -> first and later digests, its folder."""
    old, new = pairs(10, seed=1), pairs(again, seed=2)
    folder = results.begin(tmp_path / "d", NAME)
    writer = DigestShardWriter(folder / "a")
    writer.add(columns(old))
    writer.add(columns(new))
    winkfs.digests.publish(folder, [writer.finish()], {})
    return old, new, folder


def make(target: Path, content: dict[bytes, Digest], shards: int = 4) -> Path:
    folder = results.begin(target, NAME)
    made = []
    for number in range(shards):
        chosen = [p for p in content if shard_of(hashing.hash_key(2, p)[0], shards) == number]
        mine = {path: content[path] for path in chosen}
        writer = DigestShardWriter(folder / f"attempt-{number}")
        rows = list(mine.items())
        for at in range(0, len(rows), 700):
            writer.add(columns(dict(rows[at : at + 700])))
        made.append(writer.finish())
    winkfs.digests.publish(folder, made, {"source": "somewhere"})
    return target


@pytest.fixture(scope="module")
def content() -> dict[bytes, Digest]:
    return pairs(MANY)


@pytest.fixture
def made(content: dict[bytes, Digest], tmp_path: Path) -> Iterator[Path]:
    yield make(tmp_path / "d", content)


@pytest.mark.slow
def test_every_document_is_found_and_no_other(made: Path, content: dict[bytes, Digest]) -> None:
    with winkfs.digests.open(made) as found:
        assert len(found) == MANY
        for path, digest in content.items():
            assert found.get(path) == digest
        assert found.get("site1/page \udcff 1.html") == content[b"site1/page \xff 1.html"]
        assert found.get(b"no") is None and "no" not in found and b"0" in found
        asked = [*content, b"no", b"", *reversed(content)]
        assert found.get_many(asked) == [content.get(path) for path in asked]
        assert found.get_many([]) == []
        assert {p.encode("utf-8", "surrogateescape"): d for p, d in found.items()} == content


def test_a_set_of_nothing_answers_nothing(tmp_path: Path) -> None:
    with winkfs.digests.open(make(tmp_path / "d", {}, 1)) as found:
        assert (len(found), found.get("a"), found.get_many(["a", "b"])) == (0, None, [None] * 2)
        assert list(found.items()) == []


def test_two_paths_with_one_hash_are_distinguished(tmp_path: Path) -> None:
    paths = [path for number in range(20) for path in clash(number)]
    content = dict(zip(paths[:-1], pairs(39).values(), strict=True))
    with winkfs.digests.open(make(tmp_path / "d", content, 2)) as found:
        assert [found.get(path) for path in paths] == [*content.values(), None]
        assert found.get_many(paths) == [*content.values(), None]


def test_the_later_digest_of_a_path_counts(tmp_path: Path) -> None:
    old, new, folder = made_twice(tmp_path)
    with winkfs.digests.open(tmp_path / "d") as found:
        assert len(found) == 10
    assert_has(tmp_path / "d", old | new)
    (tmp_path / "d" / folder.name / "shard-0000.hindex").unlink()
    assert_has(tmp_path / "d", old | new)


def test_an_index_that_is_lost_or_of_another_shard_is_made_anew(
    made: Path, content: dict[bytes, Digest]
) -> None:
    (folder,) = made.glob("job-*")
    (folder / "shard-0000.hindex").unlink()
    shutil.copy(folder / "shard-0002.hindex", folder / "shard-0001.hindex")
    (folder / "shard-0003.hindex").write_bytes(b"cut")
    assert_has(made, content)


@pytest.mark.slow
def test_a_flipped_bit_is_never_handed_out(made: Path, content: dict[bytes, Digest]) -> None:
    (folder,) = made.glob("job-*")
    data = bytearray((folder / "shard-0001.kvseq").read_bytes())
    random.seed(3)
    for at in random.sample(range(4096, len(data)), examples(20)):
        data[at] ^= 1 << random.randrange(8)
        (folder / "shard-0001.kvseq").write_bytes(data)
        with winkfs.digests.open(made) as found:
            for path, digest in content.items():
                try:
                    assert found.get(path) == digest
                except CorruptError:
                    continue
            with pytest.raises(CorruptError):
                found.get_many(content)
        data[at] ^= data[at] ^ (folder / "shard-0001.kvseq").read_bytes()[at]


def entries(path: Path) -> list[tuple[bytes, int]]:
    """Return the path of each digest of a shard, and the position of its entry."""
    with KVSeq.open(FileStorage(path)) as kv:
        return [(entry.key, entry.pos) for entry in kv]


def assert_has(made: Path, content: dict[bytes, Digest]) -> None:
    """Check that a set has these digests and no other, by one and by many."""
    with winkfs.digests.open(made) as found:
        assert len(dict(found.items())) == len(content)
        assert found.get_many(content) == list(content.values())
        assert [found.get(path) for path in content] == list(content.values())


def strip_sums(path: Path) -> None:
    """Make a file one that has no checksums of its pages."""
    with FileStorage(path, "w") as storage:
        block = read_superblock(storage)
        del block["PAGESUMS"]
        storage.write(0, [block.encode()])
        storage.truncate(block["FILESIZE"])


def test_a_dangling_index_without_sums_is_damage_not_a_crash(
    made: Path, content: dict[bytes, Digest]
) -> None:
    (folder,) = made.glob("job-*")
    path = folder / "shard-0002.hindex"
    strip_sums(path)
    cells = np.frombuffer(bytearray(path.read_bytes()), ">i8").copy()
    pointers = cells[512:][::2]
    for wrong in (5, 1 << 40, -8):
        pointers[pointers != 0] = wrong
        path.write_bytes(cells.tobytes())
        with winkfs.digests.open(made) as found:
            key = next(p for p in content if shard_of(xxhash.xxh3_64_intdigest(p), 4) == 2)
            with pytest.raises(CorruptError):
                found.get(key)
            with pytest.raises(CorruptError):
                found.get_many([key])


def test_files_of_another_set_and_cut_ones_are_refused(made: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "other", pairs(100))
    (mine,), (theirs,) = made.glob("job-*"), other.glob("job-*")
    name = f"{shard_name(0)}.kvseq"
    whole = (mine / name).read_bytes()
    (mine / name).write_bytes((theirs / name).read_bytes())
    with winkfs.digests.open(made) as found, pytest.raises(FormatError, match="not a shard of"):
        list(found.items())
    (mine / name).write_bytes(whole[:9000])
    with winkfs.digests.open(made) as found, pytest.raises(CorruptError, match="cut short"):
        list(found.items())


def test_a_set_of_an_older_version_has_titles_and_no_languages(tmp_path: Path) -> None:
    folder = results.begin(tmp_path / "d", NAME)
    wanted = {path: digest._replace(lang=None) for path, digest in pairs(50).items()}
    directory, name = locate(f"{folder}/a.kvseq")
    kv = KVSeq.create(directory.create_new(name), purpose="DIGDATA", contid=5)
    for path, (xxh3, mmh3, size, mtime, title, _) in wanted.items():
        kv.append(path, struct.pack(">Q16s2q", xxh3, mmh3, size, mtime) + (title or "").encode())
    kv.sync()
    shard = {"file": "a", "contid": 5, "entries": 50, "size": kv.end}
    kv.close()
    (folder / "a.hindex").touch()  # made anew in memory
    winkfs.digests.publish(folder, [shard], {})
    with winkfs.digests.open(tmp_path / "d") as found:
        assert {path: found.get(path) for path in wanted} == wanted
        assert found.get_many(wanted) == list(wanted.values())
        assert {path.encode("utf-8", "surrogateescape"): d for path, d in found.items()} == wanted


def test_what_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    writer = DigestShardWriter(results.begin(tmp_path / "d", NAME) / "a")
    for path, title, lang in ((b"x" * 65_536, "a", "de"), (b"x", "t" * 1025, "de"),
                              (b"x", "a", "d" * 36)):  # fmt: skip
        with pytest.raises(ValueError, match="at most"):
            writer.add(columns({path: Digest(1, bytes(16), 1, 1, title, lang)}))
    writer.add(columns({b"x" * 65_535: Digest(1, bytes(16), 1, 1, "t" * 1024)}))
    assert writer.finish()["entries"] == 1


def test_a_missing_or_closed_set_is_one_clear_line(made: Path, tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="no digest set"):
        winkfs.digests.open(tmp_path / "x")
    found = winkfs.digests.open(made)
    found.close()
    with pytest.raises(Closed, match="is closed"):
        found.get("a")


def test_shards_are_about_equal_and_match_their_table() -> None:
    s, _ = hashing.hash_keys(hashing.XXH3, [b"%d" % i for i in range(20_000)])
    for shards in (1, 3, 16):
        counts = np.bincount(shard_of(s, shards).astype(int), minlength=shards)
        assert len(counts) == shards and counts.min() > 0.8 * 20_000 / shards
        assert [shard_of(int(x), shards) for x in s[:100]] == shard_of(s, shards)[:100].tolist()
    assert digestshard.RECORD_HEAD.size == 40


# --- damage in what is derived ------------------------------------------------------------------


@pytest.fixture(scope="module")
def few() -> dict[bytes, Digest]:
    return pairs(25, seed=4)


@pytest.fixture
def small(few: dict[bytes, Digest], tmp_path: Path) -> Path:
    """A set of one shard."""
    return make(tmp_path / "d", few, 1)


def changed(raw: bytes, part: slice) -> Iterator[tuple[str, bytes]]:
    """A part of the bytes flipped in one bit, and each sector zeroed and doubled."""
    for at in [*range(512), *range(512, 4096, 100), *range(4096, len(raw))][part]:
        bit = random.randrange(8)
        yield f"byte {at}, bit {bit}", raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
    for at in range(0, len(raw) - 1024, 512):
        sector = raw[at : at + 512]
        yield f"sector {at} zeroed", raw[:at] + bytes(512) + raw[at + 512 :]
        yield f"sector {at} doubled", raw[: at + 512] + sector + raw[at + 1024 :]


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_damaged_index_never_reports_an_absent_path(
    one_by_one: bool, small: Path, few: dict[bytes, Digest], every: Callable[[str], slice]
) -> None:
    (path,) = small.glob("job-*/*.hindex")
    asked = [*few, b"no such", b"nor this"]
    wanted = [*few.values(), None, None]
    for what, data in changed(path.read_bytes(), every("digest bytes")):
        path.write_bytes(data)
        with winkfs.digests.open(small) as found:
            answers = [found.get(p) for p in asked] if one_by_one else found.get_many(asked)
            assert answers == wanted, what


def test_a_flipped_delflag_hides_no_digest(small: Path, few: dict[bytes, Digest]) -> None:
    """It is the one byte of an entry that no checksum has."""
    (path,) = small.glob("job-*/*.kvseq")
    flip(path, *(pos for _, pos in entries(path)[::5]))
    assert_has(small, few)
    path.with_suffix(".hindex").unlink()
    assert_has(small, few)


def damage(made: Path, *hit: bytes) -> None:
    """Flip a bit in the lengths of the digests of these paths, in a set of one shard."""
    (file,) = made.glob("job-*/*.kvseq")
    flip(file, *(pos + 2 for key, pos in entries(file) if key in hit), bits=0x40)


@pytest.mark.parametrize("indexed", [True, False])
def test_a_damaged_digest_costs_no_other(
    indexed: bool, small: Path, few: dict[bytes, Digest]
) -> None:
    hit = [list(few)[i] for i in (3, 5, 20)]  # a good one is alone between two of them
    damage(small, *hit)
    others = {path: digest for path, digest in few.items() if path not in hit}
    if not indexed:
        next(small.glob("job-*/*.hindex")).unlink()
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        with winkfs.digests.open(small) as found:
            assert [found.get(path) for path in others] == list(others.values())
            assert found.get_many(others) == list(others.values())
            for path in hit:
                with pytest.raises(CorruptError, match=r"shard-0000\.kvseq: .* at byte"):
                    found.get(path)
                with pytest.raises(CorruptError, match="at byte"):
                    found.get_many([path, *others])
            listed: dict[str, Digest] = {}
            with pytest.raises(CorruptError, match="bad entry"):
                listed.update(found.items())
            listed = {}
            with contextlib.suppress(CorruptError):
                for path, digest in found.items():
                    listed[path] = digest
            assert listed == {to_str(path): digest for path, digest in others.items()}
            assert len(found.problems) == (0 if indexed else 3)
    assert len(reported) == (0 if indexed else 1)
    if reported:
        assert reported[0].category is DamageWarning and reported[0].filename == __file__


def test_a_miss_among_damaged_digests_is_not_reported_as_absent(
    small: Path, few: dict[bytes, Digest]
) -> None:
    """Without the index nobody knows the path of a damaged one."""
    damage(small, list(few)[3])
    with winkfs.digests.open(small) as found:
        assert found.get("no such") is None and "no such" not in found
        assert found.get_many(["no such"]) == [None]
    next(small.glob("job-*/*.hindex")).unlink()
    with winkfs.digests.Digests(small, warn=False) as found:
        for ask in (found.get, lambda path: found.get_many([path]), found.__contains__):
            with pytest.raises(CorruptError, match="at byte"):
                ask("no such")


def test_an_older_digest_does_not_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    old, new, folder = made_twice(tmp_path)
    last = dict(entries(folder / "shard-0000.kvseq"))
    hit = list(new)[2]
    flip(folder / "shard-0000.kvseq", last[hit] + 40)
    (folder / "shard-0000.hindex").unlink()
    with winkfs.digests.Digests(tmp_path / "d", warn=False) as found:
        for path, digest in (old | new).items():
            if path == hit:
                for ask in (found.get, lambda path: found.get_many([path])):
                    with pytest.raises(CorruptError):
                        ask(path)
            else:
                assert found.get(path) == digest
        with pytest.raises(CorruptError):
            list(found.items())


def test_a_cell_of_an_older_digest_is_not_believed(tmp_path: Path) -> None:
    _, new, folder = made_twice(tmp_path, again=10)
    path = folder / "shard-0000.hindex"
    first: dict[bytes, int] = {}
    there = entries(folder / "shard-0000.kvseq")
    moved = {pos: first.setdefault(key, pos) for key, pos in there}
    raw = path.read_bytes()
    for pos, older in moved.items():
        raw = raw.replace(pos.to_bytes(8, "big"), older.to_bytes(8, "big"))
    path.write_bytes(raw)
    assert_has(tmp_path / "d", new)


@pytest.mark.slow
def test_each_byte_of_the_record_is_checked(
    small: Path, few: dict[bytes, Digest], every: Callable[[str], slice]
) -> None:
    path = small / "digests.json"
    raw = path.read_bytes()
    for at in range(len(raw))[every("record bytes")]:
        for bit in (1, 0x80):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            try:
                found = winkfs.digests.open(small)
            except FormatError as error:
                assert "digests.json" in str(error) and "\n" not in str(error)
                continue
            with found:  # the name of the checksum was hit, or white space at the end
                assert found.get_many(few) == list(few.values())
                assert found.record["source"] == "somewhere"


def test_a_record_without_a_checksum_is_read(small: Path, few: dict[bytes, Digest]) -> None:
    path = small / "digests.json"
    record = json.loads(path.read_bytes())
    del record["xxh3"]
    path.write_text(json.dumps(record, indent=1) + "\n")
    assert_has(small, few)


def test_a_damaged_record_has_a_copy_but_none_of_another_job(
    small: Path, few: dict[bytes, Digest]
) -> None:
    path = small / "digests.json"
    for wrong in (b"", bytes(512), path.read_bytes()[:-9], path.read_bytes().replace(b"1", b"2")):
        path.write_bytes(wrong)
        assert_has(small, few)
    results.begin(small, NAME)  # which of the two jobs the record named nobody knows
    with pytest.raises(FormatError, match="make it anew"):
        winkfs.digests.open(small)
