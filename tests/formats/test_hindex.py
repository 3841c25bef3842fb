"""HIndex beside a dict, against bytes worked out by hand, and against damage."""

import errno
import struct
from collections.abc import Iterable
from pathlib import Path

import oracle_format
import pytest
from drawn import examples
from folders import unchanged
from hashes import hash_with
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from refusals import all_raise
from seam import disk_calls, refusing

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.hindex.hindex import HIndex
from winkformats.kv.superblock import Superblock

ALGORITHMS = (1, 2, 3)
CELL_SIZES = (1, 2, 4)
MARKS = ((0, 1), (-1, -2), (5, 0))


class Keys:
    """Stands for a kvseq: pointers to keys, and a count of how often one was asked for."""

    def __init__(self) -> None:
        self.at: dict[int, bytes] = {}
        self.asked = 0

    def add(self, key: bytes) -> int:
        pointer = 4096 + 16 * len(self.at)
        self.at[pointer] = key
        return pointer

    def __call__(self, pointer: int) -> bytes:
        self.asked += 1
        return self.at[pointer]


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def index(storage: MemoryStorage, keys: Keys) -> HIndex:
    """A table of 64 free cells."""
    return HIndex.create(storage, htsize=64, key_of=keys)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.idx"


def walk(raw: bytes, key: bytes, keys: Keys) -> tuple[int, ...] | None:
    """The cell of a key, found from the documents alone; it shares nothing with the product."""
    names = {}
    for at in range(8, 4096, 16):
        name, value = struct.unpack(">8sq", raw[at : at + 16])
        if name == bytes(8):
            break
        names[name.decode().strip()] = value
    low63, s = oracle_format.hash_key("test", names["HTALGO"], key)
    size, width = names["HTSIZE"], names["CELLSZ"]
    assert names["FILESIZE"] == names["SBSIZE"] + size * width * 8 == len(raw)
    for step in range(size):
        slot = (low63 + step) % size
        cell = raw[names["SBSIZE"] + slot * width * 8 :][: width * 8]
        words = struct.unpack(f">{width}q", cell)
        if words[0] == names["HTFREE"]:
            assert not any(words[1:])
            return None
        if words[0] == names["HTDEL"]:
            assert not any(words[1:])
        elif keys.at[words[0]] == key:
            assert width == 1 or words[1] & (2**64 - 1) == s
            return words
    return None


def check_counters(raw: bytes) -> None:
    """ENTRIES and AENTRIES in the file, against its cells."""
    block = Superblock.decode(raw, file="test")
    width = block["CELLSZ"]
    words = struct.unpack(f">{block['HTSIZE'] * width}q", raw[block["SBSIZE"] :])
    heads = words[::width]
    entries = sum(head != block["HTFREE"] for head in heads)
    assert block["ENTRIES"] == entries
    assert block["AENTRIES"] == entries - heads.count(block["HTDEL"])


def insert(index: HIndex, names: Iterable[bytes], keys: Keys) -> list[int]:
    """-> the pointers of these names, which are new ones."""
    pointers = [keys.add(name) for name in names]
    for pointer in pointers:
        index.insert(keys.at[pointer], pointer)
    return pointers


class Machine(RuleBasedStateMachine):
    """Every operation on a table and on a dict: key -> (pointer, words)."""

    names = st.integers(0, 40).map(lambda i: b"k%d" % i)

    @initialize(
        htalgo=st.sampled_from(ALGORITHMS),
        cellsz=st.sampled_from(CELL_SIZES),
        marks=st.sampled_from(MARKS),
        htsize=st.sampled_from((1, 2, 7, 64, 100)),
        sbsize=st.sampled_from((512, 4096)),
    )
    def begin(self, htalgo, cellsz, marks, htsize, sbsize):
        self.model: dict[bytes, tuple[int, tuple[int, ...]]] = {}
        self.keys = Keys()
        self.extra = max(cellsz - 2, 0)
        self.storage = MemoryStorage()
        self.index = HIndex.create(
            self.storage, htsize=htsize, htalgo=htalgo, cellsz=cellsz, htfree=marks[0],
            htdel=marks[1], purpose="TEST", sbsize=sbsize, extra={"MYVAR": 7}, key_of=self.keys,
        )  # fmt: skip

    def words(self, seed: int) -> tuple[int, ...]:
        return tuple(seed - i for i in range(self.extra))

    @rule(key=names, seed=st.integers(-(2**62), 2**62))
    def insert(self, key, seed):
        pointer, words = self.keys.add(key), self.words(seed)
        slot = self.index.insert(key, pointer, words)
        self.model[key] = pointer, words
        assert self.index.get(slot)[0] == pointer

    @rule(key=names)
    def delete(self, key):
        slot = self.index.delete(key)
        assert (slot is None) == (self.model.pop(key, None) is None)

    @rule(more=st.integers(0, 100))
    def grow(self, more):
        self.index.grow(more)

    @rule()
    def reopen(self):
        self.index.close()
        check_counters(bytes(self.storage.data))
        self.index = HIndex.open(self.storage, writable=True, key_of=self.keys)
        assert self.index.superblock["MYVAR"] == 7

    @rule(keys=st.lists(names, max_size=20))
    def look_up(self, keys):
        for key in keys:
            slot = self.index.hash(key)
            assert (slot is not None) == (key in self.model)
            if slot is not None:
                assert self.index.get(slot)[0] == self.model[key][0]

    @invariant()
    def same_as_the_dict(self):
        found = {cell[0]: cell[2:] for _, cell in self.index.iterate()}
        assert found == dict(self.model.values())
        assert len(self.index) == len(self.model)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("cellsz", CELL_SIZES)
@pytest.mark.parametrize("htalgo", ALGORITHMS)
def test_every_shape_is_readable_from_the_documents_alone(
    htalgo, cellsz, marks, keys: Keys, path: Path
):
    names = [b"name %d" % i for i in range(300)]
    with HIndex.create(
        FileStorage(path, "x"), htsize=67, htalgo=htalgo, cellsz=cellsz, htfree=marks[0],
        htdel=marks[1], key_of=keys,
    ) as index:  # fmt: skip
        insert(index, names[:30], keys)
        for name in names[:10]:
            index.delete(name)
        for name in names[30:60]:
            index.insert(name, keys.add(name), [-3] * max(cellsz - 2, 0))
        pointers = insert(index, names[20:], keys)
    raw = path.read_bytes()
    check_counters(raw)
    for name in names[:10]:
        assert walk(raw, name, keys) is None
    for name, pointer in zip(names[20:], pointers, strict=True):
        assert walk(raw, name, keys)[0] == pointer
    with HIndex.open(FileStorage(path), key_of=keys) as index:
        assert len(index) == 290
        assert [index.hash(name) is None for name in names] == [i < 10 for i in range(300)]


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("cellsz", CELL_SIZES)
@pytest.mark.parametrize("htalgo", ALGORITHMS)
def test_table_made_from_the_documents_alone_is_read(htalgo, cellsz, marks, keys: Keys):
    htsize = 53
    table = [(marks[0],) + (0,) * (cellsz - 1)] * htsize
    for i in range(50):
        low63, s = oracle_format.hash_key("test", htalgo, b"%d" % i)
        slot = low63 % htsize
        while table[slot][0] != marks[0]:
            slot = (slot + 1) % htsize
        words = (keys.add(b"%d" % i), s - (s >> 63 << 64), i, -i)
        table[slot] = (marks[1],) + (0,) * (cellsz - 1) if i % 5 == 0 else words[:cellsz]
    variables = {"HTSIZE": htsize, "HTALGO": htalgo, "CELLSZ": cellsz, "HTFREE": marks[0]}
    variables |= {"HTDEL": marks[1]}
    image = b"#!WINKME" + b"".join(
        struct.pack(">8sq", name.encode().ljust(8), value)
        for name, value in ({"SBSIZE": 512, "FORMAT": 0x20, "PURPOSE": 0} | variables).items()
    )
    image = image.ljust(512, b"\0") + b"".join(struct.pack(f">{cellsz}q", *cell) for cell in table)
    index = HIndex.open(MemoryStorage(image), key_of=keys)
    assert len(index) == 40
    for i in range(55):
        slot = index.hash(b"%d" % i)
        if i % 5 == 0 or i >= 50:
            assert slot is None
        else:
            assert keys.at[index.get(slot)[0]] == b"%d" % i
            assert index.get(slot)[2:] == (i, -i)[: max(cellsz - 2, 0)]


def test_insert_reuses_a_deleted_cell_and_entries_stays(keys: Keys, index: HIndex):
    slot = index.insert(b"a", keys.add(b"a"))
    index.delete(b"a")
    assert index.insert(b"a", keys.add(b"a")) == slot
    index.sync()
    assert (index.superblock["ENTRIES"], index.superblock["AENTRIES"]) == (1, 1)


def test_a_deleted_cell_on_the_way_does_not_hide_a_key_behind_it(
    monkeypatch, keys: Keys, index: HIndex
):
    same_place(monkeypatch)
    slots = [index.insert(name, keys.add(name)) for name in (b"a", b"b", b"c")]
    index.delete(b"a")
    assert index.insert(b"c", keys.add(b"c")) == slots[2]  # not a second cell in a's place
    assert len(list(index.iterate())) == 2


def same_place(monkeypatch) -> None:
    """All keys get the same S and the same slot."""
    hash_with(monkeypatch, lambda key: 7)


def test_two_keys_with_one_hash_are_distinguished(monkeypatch, keys: Keys, index: HIndex):
    same_place(monkeypatch)
    names = (b"a", b"b", b"c")
    for name, pointer in zip(names, insert(index, names, keys), strict=True):
        assert index.get(index.hash(name))[0] == pointer
    assert index.hash(b"d") is None


def test_stored_hash_filters_before_keys_are_asked_for(monkeypatch, keys: Keys, index: HIndex):
    insert(index, (b"%d" % i for i in range(600)), keys)
    keys.asked = 0
    assert all(index.hash(b"other %d" % i) is None for i in range(500))
    assert keys.asked == 0


def test_probing_wraps_past_the_last_cell(monkeypatch, keys: Keys, index: HIndex):
    hash_with(monkeypatch, lambda key: key[0], lambda key: 63)
    assert [index.insert(name, keys.add(name)) for name in (b"a", b"b", b"c")] == [63, 0, 1]
    assert index.hash(b"c") == 1


def test_user_words_survive_growth_and_deletes_clear_them(keys: Keys, storage: MemoryStorage):
    index = HIndex.create(storage, htsize=3, cellsz=4, key_of=keys)
    for i in range(100):
        index.insert(b"%d" % i, keys.add(b"%d" % i), (i, -i))
    slot = index.delete(b"50")
    assert index.get(slot) == (1, 0, 0, 0)
    assert {cell[2:] for _, cell in index.iterate()} == {(i, -i) for i in range(100) if i != 50}


@pytest.mark.parametrize("fill", [1, 5000])
def test_lookup_in_a_table_without_free_cells_ends(fill, keys: Keys, storage: MemoryStorage):
    HIndex.create(storage, htsize=50, key_of=keys).close()
    storage.data[4096:] = struct.pack(">qq", fill, 0) * 50
    keys.at[5000] = b"x"
    index = HIndex.open(storage, writable=True, key_of=keys)
    assert index.hash(b"a") is None
    assert index.hash(b"b") is None
    index.insert(b"a", keys.add(b"a"))
    assert index.hash(b"a") is not None


def test_wrong_counters_are_neither_believed_nor_kept(
    keys: Keys, storage: MemoryStorage, index: HIndex
):
    insert(index, (b"%d" % i for i in range(40)), keys)
    index.sync()
    index.superblock["ENTRIES"] = index.superblock["AENTRIES"] = -3
    storage.write(0, [index.superblock.encode()])
    index = HIndex.open(storage, writable=True, key_of=keys)
    insert(index, (b"+%d" % i for i in range(40)), keys)
    index.close()
    check_counters(bytes(storage.data))
    assert len(HIndex.open(storage)) == 80


def test_counters_are_not_added_where_the_file_has_none(
    keys: Keys, storage: MemoryStorage, index: HIndex
):
    del index.superblock["ENTRIES"], index.superblock["AENTRIES"]
    index.insert(b"a", keys.add(b"a"))
    index.grow(100)
    index.close()
    with HIndex.open(storage, key_of=keys) as index:
        assert "ENTRIES" not in index.superblock
        assert len(index) == 1


@pytest.mark.parametrize("pointer", [0, 1, 1 << 63, -(1 << 63) - 1])
def test_pointer_that_no_cell_can_hold_is_refused(pointer, storage: MemoryStorage, index: HIndex):
    before = bytes(storage.data)
    all_raise(
        ValueError, (lambda: index.insert(b"a", pointer), lambda: index.insert(b"a", 5000, [1]))
    )
    assert bytes(storage.data) == before


@pytest.mark.parametrize("slot", [-1, 64])
def test_slot_outside_the_table_is_a_wrong_call(slot, index: HIndex):
    with pytest.raises(ValueError, match="HTSIZE is 64"):
        index.get(slot)


# --- growth and order of writes ---


def filled(path: Path, keys: Keys, **options) -> HIndex:
    index = HIndex.create(FileStorage(path, "x"), htsize=101, key_of=keys, **options)
    insert(index, (b"%d" % i for i in range(60)), keys)
    index.sync()
    return index


@pytest.mark.parametrize("htalgo", [2, 3])
def test_growth_with_stored_hashes_asks_for_no_key(tmp_path, htalgo, keys: Keys):
    index = filled(tmp_path / "t.idx", keys, htalgo=htalgo)
    keys.asked = 0
    index.grow(1000)
    assert keys.asked == 0
    assert None not in [index.hash(b"%d" % i) for i in range(60)]
    index.close()


@pytest.mark.parametrize("verb", ["write", "rename"])
def test_growth_that_fails_leaves_the_old_table(tmp_path, verb, keys: Keys, path: Path):
    index = filled(path, keys)
    with (
        unchanged(path),
        disk_calls(refusing(verb, "", errno.ENOSPC)),
        pytest.raises(OSError, match="No space"),
    ):
        index.grow(1000)
    assert list(tmp_path.iterdir()) == [path]
    index.insert(b"0", keys.add(b"0"))
    index.close()
    check_counters(path.read_bytes())


def test_growth_keeps_the_mode_and_replaces_a_leftover_file(tmp_path, keys: Keys, path: Path):
    link = tmp_path / "link.idx"
    filled(path, keys).close()
    path.chmod(0o640)
    link.symlink_to(path)
    (tmp_path / "t.idx.tmp").write_bytes(b"half a table")
    with HIndex.open(FileStorage(link, "w"), writable=True, key_of=keys) as index:
        index.grow(1000)
        index.insert(b"new", keys.add(b"new"))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert not (tmp_path / "t.idx.tmp").exists()
    with HIndex.open(FileStorage(path), key_of=keys) as index:
        assert len(index) == 61


class Recorder(MemoryStorage):
    """Notes what is written and synced: (DATAEND then on the disk, did a cell change?)."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = b""
        self.cells_changed_under: set[int] = set()

    def write(self, offset, buffers):
        if offset >= 4096 and self.synced:
            self.note()
        return super().write(offset, buffers)

    def note(self) -> None:
        self.cells_changed_under.add(Superblock.decode(self.synced, file="test").get("DATAEND", 0))

    def sync(self):
        self.synced = bytes(self.data)


@pytest.mark.parametrize("change", ["insert", "delete"])
def test_no_cell_changes_while_the_disk_still_vouches_for_it(change, keys: Keys):
    storage = Recorder()
    index = HIndex.create(
        storage, htsize=64, extra={"DATAEND": 0, "SYNCTIME": 0, "SYNCSIZE": 0}, key_of=keys
    )
    index.insert(b"a", keys.add(b"a"))
    for round_ in (1, 2):
        index.sync({"DATAEND": 9000 * round_}, now=5)
        assert Superblock.decode(storage.synced, file="test")["DATAEND"] == 9000 * round_
        storage.cells_changed_under = set()
        if change == "insert":
            index.insert(b"b%d" % round_, keys.add(b"b%d" % round_))
        else:
            index.delete(b"a")
            index.insert(b"a", keys.add(b"a"))
        assert storage.cells_changed_under == {0}
    index.sync()
    block = Superblock.decode(storage.synced, file="test")
    assert block["DATAEND"] == 0  # nobody said what the cells stand for now
    assert block["SYNCSIZE"] == block["FILESIZE"]


def test_cells_are_synced_before_the_superblock_names_them(keys: Keys):
    storage = Recorder()
    index = HIndex.create(storage, htsize=64, key_of=keys)
    index.insert(b"a", keys.add(b"a"))
    synced = []
    sync = storage.sync
    storage.sync = lambda: (sync(), synced.append(storage.synced))  # type: ignore[method-assign]
    index.sync()
    first, last = (Superblock.decode(image, file="test") for image in synced)
    assert (first["AENTRIES"], last["AENTRIES"]) == (0, 1)
    assert synced[0][4096:] == synced[1][4096:]
