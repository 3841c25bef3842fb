"""Damage in BASE.data: it costs the files that it hit, is told, and everything else is there."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from container_checks import drop, files_of, patch, path_of
from flips import flip
from stored import make

import winkfs
from winkformats.disk.memory import MemoryStorage
from winkformats.errors import CorruptError
from winkformats.kv.scan import resynchronise, scan_intact
from winkformats.kv.sequence import KVSeq
from winkfs import Container

Files = dict[str, bytes]


@pytest.fixture(params=["plain", "ao"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A container of 120 files, some deleted, in three syncs, the index of the second beside it."""
    dice, base = random.Random(5), tmp_path / "c"
    with winkfs.create(base, ao=request.param == "ao") as c:
        for i in range(80):
            c.put(f"d/{i:03}", dice.randbytes(dice.choice([0, 9, 300, 4000])), mtime=1000 + i)
    with winkfs.open(base, "a") as c:
        for i in range(0, 80, 7):
            c.delete(f"d/{i:03}")
    index = path_of(base, ".idx").read_bytes()
    with winkfs.open(base, "a") as c:
        for i in range(80, 120):
            c.put(f"d/{i:03}", dice.randbytes(300), mtime=1000 + i)
    path_of(base, ".idx").write_bytes(index)  # as after a kill: there is a tail
    return base


def entries_of(base: Path) -> list[tuple[int, int]]:
    """Start and end of each entry."""
    with winkfs.open(base) as c:
        kv = c.store.kv
        return [(entry.pos, entry.pos + entry.size) for entry in kv.iterate()]


def damage(base: Path, at: int, data: bytes) -> None:
    """Write over bytes of BASE.data, and remove the index."""
    patch(path_of(base, ".data"), at, data)
    drop(base, ".idx")


def remains(c: Container, truth: Files) -> tuple[set[str], list[str]]:
    """-> the names that can be read, all with the right content, and what is told of the others."""
    reported: list[str] = list(c.notes)
    listed = {entry.name for entry in c.scan(problem=lambda error: reported.append(str(error)))}
    assert listed <= truth.keys()
    read = set()
    for name, content in truth.items():
        try:
            assert c.read(name) == content, name
        except FileNotFoundError:
            continue
        except CorruptError as error:
            reported.append(str(error))
            continue
        read.add(name)
        assert name in listed
    return read, reported


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_each_damaged_length_costs_one_file(
    base: Path, indexed: bool, every: Callable[[str], slice]
) -> None:
    truth, good = files_of(base), path_of(base, ".data").read_bytes()
    index = path_of(base, ".idx").read_bytes()
    dice = random.Random()
    for start, _ in entries_of(base)[every("lengths")]:
        key_length = int.from_bytes(good[start + 1 : start + 3], "big")
        at = start + dice.choice([1, 2, 3 + key_length, 4 + key_length, 5 + key_length])
        bit = dice.randrange(8)
        path_of(base, ".data").write_bytes(good)
        damage(base, at, bytes([good[at] ^ 1 << bit]))
        if indexed:
            path_of(base, ".idx").write_bytes(index)
        with winkfs.open(base) as c:
            read, reported = remains(c, truth)
        assert len(truth) - len(read) <= 1, (start, at, bit)
        assert reported or len(read) == len(truth), (start, at, bit)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["reindex", "write"])
def test_a_writer_passes_damage_and_reports_it(base: Path, verb: str) -> None:
    truth, places = files_of(base), entries_of(base)
    start, end = places[len(places) // 2]
    flip(path_of(base, ".data"), start + 2, bits=4)
    drop(base, ".idx")
    if verb == "reindex":
        winkfs.reindex(base)
    with winkfs.open(base, "a") as c:
        assert [note for note in c.notes if f"at byte {start}" in note] or verb == "reindex"
        c.put("new", b"behind the damage", mtime=10_000)
    with winkfs.open(base) as c:
        read, _ = remains(c, truth | {"new": b"behind the damage"})
    assert len(truth) + 1 - len(read) <= 1
    assert [p for p in winkfs.verify(base).problems if f"next good one at byte {end}" in p]


def test_no_file_is_lost_where_a_length_leads_past_good_entries(tmp_path: Path) -> None:
    """A length that has grown by just what follows: the walk meets nothing impossible."""
    base = tmp_path / "c"
    make(base, ((f"{i:04}", b"x" * 50) for i in range(1000)))
    places = entries_of(base)
    start, target = places[100][0], places[160][1]
    at = start + 3 + len("0033/I0")
    damage(base, at, (target - at - 8).to_bytes(4, "big"))
    with winkfs.open(base) as c:
        assert len(list(c.names())) >= 999
        assert c.notes


@pytest.mark.slow
@pytest.mark.parametrize("old", [512, 4096, 8192])
@pytest.mark.parametrize("indexed", [True, False])
def test_superblock_that_is_put_back_rolls_nothing_back(
    tmp_path: Path, old: int, indexed: bool
) -> None:
    base = tmp_path / "c"
    with winkfs.create(base) as c:
        c.put("a", b"1")
        c.sync()
        before = path_of(base, ".data").read_bytes()[:old]
        c.put("b", b"acknowledged")
        c.sync()
    patch(path_of(base, ".data"), 0, before)
    if not indexed:
        drop(base, ".idx")
    with winkfs.open(base) as c:
        assert c.read("b") == b"acknowledged"
        assert c.notes
    with winkfs.open(base, "a") as c:
        assert path_of(base, ".cat").exists()
        c.put("c", b"2")
    assert files_of(base) == {"a": b"1", "b": b"acknowledged", "c": b"2"}
    assert winkfs.verify(base).problems == []


# --- the search -------------------------------------------------------------------------------


def intact(kv: KVSeq, problems: list[CorruptError]) -> list[int]:
    """Positions of the good entries."""
    batches = scan_intact(kv.storage, kv.layout, kv.start, kv.end, problem=problems.append)
    return [int(pos) for batch in batches for pos in batch.pos]


@pytest.mark.parametrize("seed", range(40))
def test_every_good_entry_is_found_whatever_is_damaged(seed: int) -> None:
    dice = random.Random(seed)
    kv = KVSeq.create(
        MemoryStorage(),
        keyrepr=dice.choice([0, 1, 2, 3, 260, 300, 12]),
        valrepr=dice.choice([0, 1, 2, 3, 514, 270]),
        kvdelfl=dice.choice([0, 1]),
        align=dice.choice([0, 0, 8, 13, 64]),
    )
    layout, truth = kv.layout, {}
    for i in range(dice.randrange(1, 60)):
        key, value = b"%x/D%d" % (i, i), dice.randbytes(dice.choice([0, 5, 100, 250]))
        key = key.ljust(8, b".") if layout.key.prefix == 0 else key[: layout.key.limit]
        truth[kv.append(key, value[: layout.value.limit])] = key
    kv.sync()
    data: bytearray = kv.storage.data  # type: ignore[attr-defined]
    for _ in range(dice.randrange(1, 4)):
        at, size = dice.randrange(kv.start, kv.end), dice.choice([1, 1, 4, 64, 512])
        old = bytes(data[at : min(at + size, kv.end)])
        new = dice.choice([bytes(len(old)), dice.randbytes(len(old)), bytes(b ^ 1 for b in old)])
        data[at : at + len(old)] = new

    def is_good(pos: int) -> bool:
        try:
            return layout.decode(bytes(data[: kv.end]), pos, pos, "f").key == truth[pos]
        except CorruptError:
            return False

    good = [pos for pos in truth if is_good(pos)]
    problems: list[CorruptError] = []
    found = intact(kv, problems)
    assert bool(problems) or len(good) == len(truth)
    assert set(found) == set(good)


def test_one_good_entry_between_damaged_ones_is_found() -> None:
    kv = KVSeq.create(MemoryStorage())
    places = [kv.append(b"key%d" % i, b"value" * 20) for i in range(9)]
    kv.sync()
    data: bytearray = kv.storage.data  # type: ignore[attr-defined]
    for number in (2, 4, 6):
        data[places[number] + 1] = 0xFF  # a length: it does not lead to the next one
    assert intact(kv, []) == [places[i] for i in (0, 1, 3, 5, 7, 8)]


@pytest.mark.parametrize("content", ["zeros", "random", "empty entries"])
def test_search_among_what_looks_like_entries_ends(content: str) -> None:
    kv = KVSeq.create(MemoryStorage())
    junk = {
        "zeros": bytes(8 << 20),
        "random": random.Random(1).randbytes(1 << 20),
        "empty entries": b"\0\0\0\0\0\0\0" * 50_000,
    }[content]
    storage = MemoryStorage(kv.storage.read(0, 8192) + junk)
    assert resynchronise(storage, kv.layout, 8192, storage.size()) == storage.size()


def test_container_inside_a_document_is_not_taken_for_entries(tmp_path: Path) -> None:
    inner, base = tmp_path / "inner", tmp_path / "c"
    make(inner, ((f"inner{i}", b"y" * 30) for i in range(50)))
    document = path_of(inner, ".data").read_bytes()
    with winkfs.create(base) as c:
        c.put("before", b"1")
        c.put("document", document)
        c.put("behind", b"2")
    path = path_of(base, ".data")
    flip(path, path.read_bytes().index(document) - 3)  # its length
    drop(base, ".idx")
    with winkfs.open(base) as c:
        assert set(c.names()) <= {"before", "behind", "document"}
        assert (c.read("before"), c.read("behind")) == (b"1", b"2")


def test_classic_container_opens_with_what_its_index_names(tmp_path: Path) -> None:
    base = tmp_path / "c"
    make(base, ((f"{i:03}", b"%d" % i) for i in range(100)), classic=True)
    index, start = path_of(base, ".idx"), entries_of(base)[100][0]
    # A length: nothing says where the next entry is; and an index that is not simply believed.
    patch(path_of(base, ".data"), start + 1, b"\xff")
    patch(index, index.read_bytes().index(b"SYNCTIME") + 8, (1).to_bytes(8, "big"))
    with winkfs.open(base) as c:
        assert len(list(c.names())) >= 99
        assert c.read("099") == b"99"
        assert c.notes
    with pytest.raises(CorruptError):
        winkfs.open(base, "a")


def test_length_of_a_key_that_leads_past_the_end_is_damage(tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c") as container:
        container.put("a", b"1" * 50)
        container.put("b", b"2")
    with winkfs.open(tmp_path / "c") as container:
        pointer = container.extents("b")[0].pointer
    patch(tmp_path / "c.data", pointer + 2, b"\xff")  # low byte of the length of its key
    with winkfs.open(tmp_path / "c") as container:
        assert container.read("a") == b"1" * 50
        with pytest.raises(CorruptError):
            container.read("b")


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("indexed", [True, False])
def test_a_flipped_delflag_loses_no_file(base: Path, indexed: bool) -> None:
    """It has no checksum; but whoever deletes a file appends a tombstone, and counts."""
    truth, path = files_of(base), path_of(base, ".data")
    sound = path.read_bytes()
    with winkfs.open(base) as c:
        places = [c.store.index.lookup(f"{name}/I0".encode()) for name in truth]
    for pos in places[::13]:
        path.write_bytes(sound)
        patch(path, pos, b"\1")
        if not indexed:
            drop(base, ".idx")
        with winkfs.open(base) as c:
            assert {name: c.read(name) for name in truth} == truth
            assert c.notes or indexed
        assert "1 files are marked deleted" in winkfs.verify(base).problems[0]
        assert winkfs.reindex(base) == len(truth)
        assert winkfs.verify(base).problems == []
        assert path.read_bytes()[pos] == 0
