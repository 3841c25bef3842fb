"""KVSeq beside a list, in every layout; what is durable when; what a refusing disk leaves."""

import errno
import shutil
import tempfile
import threading
from pathlib import Path

import oracle_format
import pytest
from drawn import examples
from folders import unchanged
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from refusals import all_raise

from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.errors import CorruptError, FormatError
from winkformats.kv.entry import KVEntry, Layout
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import FILEINCR, HINDEX, KVSEQ, Superblock, read_superblock

CODES = (0, 1, 2, 3, 4, 7, 24, 259, 260, 263, 459, 514)


def raw_of(storage) -> bytes:
    return storage.read(0, storage.size())


def oracle_of(storage) -> tuple[oracle_format.Superblock, list[oracle_format.Entry]]:
    block = oracle_format.read_superblock("f", raw_of(storage), 0x10, None)
    return block, oracle_format.read_entries(block)


def contents(kv: KVSeq) -> list[tuple[bytes, bytes, bool]]:
    return [(entry.key, entry.value, entry.deleted) for entry in kv]


def stored(storage) -> list[tuple[bytes, bytes, bool]]:
    """What a reader finds."""
    with KVSeq.open(storage) as reader:
        return contents(reader)


@pytest.fixture
def kv() -> KVSeq:
    """A new file in memory."""
    return KVSeq.create(MemoryStorage(name="f"))


# --- the machine -------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """Every operation on a kvseq and on a list of [pos, key, value, deleted]."""

    @initialize(
        keyrepr=st.sampled_from(CODES),
        valrepr=st.sampled_from(CODES),
        kvdelfl=st.sampled_from((0, 1)),
        align=st.sampled_from((0, 1, 8, 13, 512)),
        kvcksum=st.sampled_from((0, 1)),
        sbsize=st.sampled_from((512, 4096)),
        fileincr=st.sampled_from((0, 4096, 1 << 16)),
        on_disk=st.booleans(),
    )
    def begin(self, keyrepr, valrepr, kvdelfl, align, kvcksum, sbsize, fileincr, on_disk):
        if keyrepr == valrepr == 4:
            valrepr = 0  # else an entry may have no bytes
        self.folder = Path(tempfile.mkdtemp()) if on_disk else None
        self.memory = MemoryStorage()
        self.model: list[list] = []
        self.synced: list[tuple[bytes, bytes, bool]] = []
        self.kv = KVSeq.create(
            self.storage("x"), purpose="TEST", keyrepr=keyrepr, valrepr=valrepr, kvdelfl=kvdelfl,
            align=align, kvcksum=kvcksum, contid=2**63 - 3, sbsize=sbsize,
            extra={"FILEINCR": fileincr, "MYVAR": -9},
        )  # fmt: skip
        self.layout = self.kv.layout

    def teardown(self):
        if getattr(self, "folder", None):
            self.kv.storage.close()
            shutil.rmtree(self.folder)

    def storage(self, mode: str):
        return FileStorage(self.folder / "f", mode) if self.folder else self.memory

    def text(self, data, field, byte: int) -> bytes:
        longest = min(field.limit, 6000)
        if field.prefix == 0:
            return bytes([byte]) * longest
        length = data.draw(st.sampled_from((0, 1, longest)) | st.integers(0, min(longest, 40)))
        return bytes([byte]) * length

    def pair(self, data) -> tuple[bytes, bytes]:
        byte = data.draw(st.integers(0, 255))
        key, value = self.text(data, self.layout.key, byte), self.text(data, self.layout.value, 255)
        return key, value

    def some(self, data) -> int:
        return data.draw(st.integers(0, len(self.model) - 1))

    def expected(self, row: list) -> KVEntry:
        pos, key, value, deleted = row
        return KVEntry(pos, deleted, key, value, self.layout.size(len(key), len(value)))

    @rule(data=st.data(), deleted=st.booleans())
    def append(self, data, deleted):
        key, value = self.pair(data)
        deleted = deleted and self.layout.delflag == 1
        pos = self.kv.append(key, value, deleted=deleted)
        self.model.append([pos, key, value, deleted])

    @rule(data=st.data(), count=st.integers(0, 40))
    def append_several(self, data, count):
        for key, value in [self.pair(data) for _ in range(min(count, 3))] * (count // 3):
            self.model.append([self.kv.append(key, value), key, value, False])

    @precondition(lambda self: self.layout.align <= 1)
    @rule(data=st.data(), count=st.integers(1, 5))
    def append_encoded(self, data, count):
        chunk, rows = bytearray(), []
        for _ in range(count):
            key, value = self.pair(data)
            rows.append([self.kv.end + len(chunk), key, value, False])
            chunk += self.layout.encode(rows[-1][0], key, value)
        self.kv.append_encoded([chunk], count)
        self.model += rows

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace_by_the_same_size(self, data):
        row = self.model[self.some(data)]
        row[2] = bytes([data.draw(st.integers(0, 255))]) * len(row[2])
        row[1] = row[1][::-1]
        self.kv.replace(*row[:3])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def replace_the_last(self, data):
        row = self.model[-1]
        row[1], row[2] = self.pair(data)
        self.kv.replace(*row[:3])

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data())
    def replace_by_another_size_is_refused(self, data):
        row = self.model[self.some(data)]
        key, value = self.pair(data)
        sizes = {self.layout.size(len(key), len(value)), self.expected(row).size}
        if row is not self.model[-1] and len(sizes) == 2:
            with pytest.raises(ValueError, match="only the last entry"):
                self.kv.replace(row[0], key, value)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data):
        row = self.model[self.some(data)]
        if self.layout.delflag:
            self.kv.delete(row[0])
            row[3] = True
        else:
            with pytest.raises(PermissionError):
                self.kv.delete(row[0])

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def get(self, data):
        rows = [self.model[self.some(data)] for _ in range(3)]
        assert [self.kv.get(row[0]) for row in rows] == [self.expected(row) for row in rows]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def view(self, data):
        row = self.model[self.some(data)]
        seen = self.kv.view(row[0])
        entry = self.expected(row)
        stop = entry.pos + entry.size
        assert len(seen) >= stop
        found = self.layout.decode(bytes(seen[entry.pos : stop]), 0, entry.pos, "f")
        assert found[2:] == entry[2:]

    @rule(data=st.data())
    def iterate(self, data):
        at = data.draw(st.integers(0, len(self.model)))
        start = self.model[at][0] if at < len(self.model) else self.kv.end
        assert list(self.kv.iterate(start)) == [self.expected(row) for row in self.model[at:]]
        if at == 0:
            assert list(self.kv) == [self.expected(row) for row in self.model]

    @rule(now=st.integers(0, 2**40))
    def sync(self, now):
        self.kv.sync({"MYVAR": now}, now=now)
        self.synced = [(key, value, deleted) for _, key, value, deleted in self.model]
        with KVSeq.open(self.storage("r")) as reader:
            assert contents(reader) == self.synced
            block = reader.superblock
        assert (block["MYVAR"], block["SYNCTIME"], block["SYNCSIZE"]) == (now, now, self.kv.end)

    @rule()
    def close_and_reopen(self):
        self.kv.close()
        self.kv.close()
        self.check_file(self.storage("r"))
        self.kv = KVSeq.open(self.storage("w"), writable=True)
        assert self.kv.superblock["MYVAR"] >= -9 and self.kv.superblock.purpose == "TEST"

    def check_file(self, storage) -> None:
        """The oracle reads the same, and nothing lies behind the end."""
        block, entries = oracle_of(storage)
        oracle_format.check_entry_counters(block, entries)
        assert block.filesize == storage.size() == self.kv.end
        found = [[e.pos, e.key, e.value, e.delflag == 1] for e in entries]
        assert found == self.model
        storage.close()

    @invariant()
    def counters(self):
        assert len(self.kv) == self.kv.entries == len(self.model)
        assert self.kv.aentries == sum(not row[3] for row in self.model)
        if self.model:
            last = self.expected(self.model[-1])
            assert self.kv.end == last.pos + last.size


Machine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestKVSeqBesideAList = Machine.TestCase


# --- creating and opening ----------------------------------------------------------------------


def test_superblock_of_a_new_file():
    kv = KVSeq.create(MemoryStorage(), purpose="ABC", contid=7, htalgo=3, align=16)
    block = read_superblock(kv.storage)
    wanted = {
        "HTALGO": 3, "ALIGN": 16, "KVDELFL": 1, "KEYREPR": 1, "VALREPR": 2, "KVCKSUM": 1,
        "INCOMPAT": 1, "CONTID": 7, "FILESIZE": 8192, "SYNCSIZE": 8192, "FILEINCR": FILEINCR,
    }  # fmt: skip
    assert (block.purpose, block | wanted) == ("ABC", block)
    assert kv.storage.read(0, 4096) == kv.storage.read(4096, 4096)  # two superblocks


def test_superblock_without_extensions():
    kv = KVSeq.create(MemoryStorage(), kvcksum=0)
    assert not {"KVCKSUM", "INCOMPAT", "CONTID", "SBCKSUM", "ALIGN"} & kv.superblock.keys()


def test_two_files_have_different_ids():
    ids = {KVSeq.create(MemoryStorage()).superblock["CONTID"] for _ in range(5)}
    assert len(ids) == 5 and min(ids) >= 0


def test_first_entry_is_aligned_where_the_superblock_is_not():
    kv = KVSeq.create(MemoryStorage(), align=100, sbsize=512)
    assert kv.start == kv.append(b"k", b"v") == 600
    kv.sync()
    assert [entry.pos for entry in oracle_of(kv.storage)[1]] == [600]


@pytest.mark.parametrize("name", ["keyrepr", "valrepr"])
def test_an_undefined_representation_is_refused_before_a_write(name):
    storage = MemoryStorage()
    with pytest.raises(FormatError, match="515"):
        KVSeq.create(storage, **{name: 515})
    assert storage.size() == 0


@pytest.mark.parametrize(
    ("form", "variables", "error", "message"),
    [
        (HINDEX, {}, FormatError, "f: FORMAT is 0x20, not a kvseq"),
        (KVSEQ, {"INCOMPAT": 128}, FormatError, "f: needs extension 128 "),
        (KVSEQ, {"FILESIZE": -1}, CorruptError, "FILESIZE"),
        (KVSEQ, {"FILESIZE": 0}, CorruptError, "FILESIZE"),
        (KVSEQ, {"FILESIZE": 4095}, CorruptError, "FILESIZE"),
    ],
)
def test_a_superblock_that_makes_no_kvseq_is_refused_and_named(form, variables, error, message):
    block = Superblock.new(form, "", {"KEYREPR": 1, "VALREPR": 2})
    block.update(variables)
    with pytest.raises(error, match=message):
        KVSeq.open(MemoryStorage(block.encode(), "f"))


def test_without_filesize_the_real_size_counts_until_a_sync():
    block = Superblock.new(0x10, "", {"KEYREPR": 0, "VALREPR": 0})
    del block["FILESIZE"]
    storage = MemoryStorage(block.encode() + b"\1a\1b\1c\1d")
    kv = KVSeq.open(storage, writable=True)
    assert contents(kv) == [(b"a", b"b", False), (b"c", b"d", False)]
    kv.append(b"e", b"f")
    kv.close()
    assert raw_of(storage)[4096:] == b"\1a\1b\1c\1d\1e\1f"
    assert read_superblock(storage)["FILESIZE"] == 4096 + 12


def test_counters_are_kept_only_where_they_stand():
    block = Superblock.new(0x10, "", {"KEYREPR": 0, "VALREPR": 0})
    storage = MemoryStorage(block.encode())
    with KVSeq.open(storage, writable=True) as kv:
        kv.append(b"a", b"b")
    assert list(read_superblock(storage)) == [*block]


def test_reading_a_file_changes_nothing_in_it(tmp_path):
    with KVSeq.create(FileStorage(tmp_path / "f", "x")) as kv:
        kv.append(b"a", b"b")
    with (tmp_path / "f").open("ab") as file:
        file.write(bytes(5000))  # the reserve that a killed writer left
    with unchanged(tmp_path), KVSeq.open(FileStorage(tmp_path / "f")) as kv:
        assert len(list(kv)) == 1
        all_raise(
            PermissionError,
            (
                lambda: kv.append(b"a", b"b"),
                lambda: kv.append_encoded([], 0),
                lambda: kv.replace(kv.start, b"a", b"c"),
                lambda: kv.delete(kv.start),
                kv.sync,
            ),
            "for reading only",
        )


# --- positions and limits ----------------------------------------------------------------------


def test_positions_that_are_no_entries_are_damage():
    kv = KVSeq.create(MemoryStorage(name="f"), align=8)
    pos = kv.append(b"key", b"value")
    for wrong in (-8, 0, 8, pos + 1, pos + 8, kv.end, 2**62):
        with pytest.raises(CorruptError) as caught:
            kv.get(wrong)
        assert caught.value.offset == wrong


def test_what_a_file_cannot_represent_changes_nothing():
    kv = KVSeq.create(MemoryStorage(), keyrepr=0, valrepr=260)
    kv.append(b"a", b"b")
    end = kv.end
    all_raise(
        ValueError,
        (
            lambda: kv.append(bytes(256), b"b"),
            lambda: kv.append(b"a", b"bc"),
            lambda: kv.replace(kv.start, bytes(256), b"b"),
            lambda: kv.replace(kv.start, b"a", b"bc"),
        ),
        "do not fit",
    )
    assert (kv.end, kv.entries, contents(kv)) == (end, 1, [(b"a", b"b", False)])


def test_deleting_twice_counts_once(kv: KVSeq):
    pos = kv.append(b"a", b"b")
    kv.delete(pos)
    kv.delete(pos)
    assert (kv.entries, kv.aentries) == (1, 0)
    assert kv.get(pos).deleted


def test_a_deleted_entry_stays_deleted_when_it_is_replaced(kv: KVSeq):
    pos = kv.append(b"a", b"b")
    kv.delete(pos)
    kv.replace(pos, b"a", b"longer")
    assert kv.get(pos)[1:4] == (True, b"a", b"longer")


class Counting(MemoryStorage):
    """Counts the bytes that are read and the writes."""

    bytes_read = 0

    def read(self, offset: int, length: int) -> bytes:
        data = super().read(offset, length)
        self.bytes_read += len(data)
        return data


def with_a_long_key(**options: int) -> tuple[KVSeq, int]:
    """-> a file, and the position of an entry with a long key before a large one."""
    kv = KVSeq.create(Counting(), **options)
    pos = kv.append(b"k" * 5000, b"v" * 3000)
    kv.append(b"big", bytes(3 << 20))
    kv.sync()
    kv.storage.bytes_read = 0
    return kv, pos


@pytest.mark.parametrize("keyrepr", [2, 3])
def test_getting_a_long_key_does_not_read_the_rest_of_the_file(keyrepr):
    kv, pos = with_a_long_key(keyrepr=keyrepr)
    entry = kv.get(pos)
    assert (len(entry.key), len(entry.value)) == (5000, 3000)
    assert kv.storage.bytes_read < 40_000


@pytest.mark.parametrize("keyrepr", [2, 3])
def test_a_damaged_key_length_does_not_read_the_rest_of_the_file(keyrepr):
    kv, pos = with_a_long_key(keyrepr=keyrepr, kvcksum=0)
    kv.storage.patch(pos + 1, b"\x7f")
    with pytest.raises(CorruptError, match="past the end"):
        kv.get(pos)
    assert kv.storage.bytes_read < 40_000


@pytest.mark.parametrize("size", [4073, 4077, 4078, 4096, 5000, 1 << 20, (1 << 20) + 1])
def test_values_around_the_first_read_and_the_write_buffer(size, kv: KVSeq):
    rows = [(b"a", b"x" * size, False), (b"b", b"", False), (b"c", b"y" * size, False)]
    positions = [kv.append(key, value) for key, value, _ in rows]
    assert [kv.get(pos)[2] for pos in positions] == [b"a", b"b", b"c"]
    assert contents(kv) == rows


# --- the view ----------------------------------------------------------------------------------


def entry_in_view(kv: KVSeq, pos: int) -> bytes:
    view = kv.view(pos)
    span = kv.layout.locate(view, pos)
    assert span.end <= len(view)
    return bytes(view[span.value : span.value + span.value_len])


@pytest.fixture
def exact(tmp_path):
    """A file without FILEINCR: nothing is reserved, a mapping ends where the entries end."""
    kv = KVSeq.create(FileStorage(tmp_path / "f", "x"), extra={"FILEINCR": 0})
    yield kv
    kv.close()


def test_view_holds_a_last_entry_that_grew_in_its_place(exact):
    pos = exact.append(b"a", b"short")
    assert entry_in_view(exact, pos) == b"short"
    exact.replace(pos, b"a", b"long" * 5000)
    assert entry_in_view(exact, pos) == b"long" * 5000


def test_view_holds_an_entry_appended_after_the_last_one_shrank(exact):
    exact.append(b"a", b"first")
    pos = exact.append(b"b", b"long" * 100)
    assert entry_in_view(exact, pos) == b"long" * 100
    exact.replace(pos, b"b", b"")
    new = exact.append(b"c", b"new")
    assert entry_in_view(exact, new) == b"new"


# --- writing behind ----------------------------------------------------------------------------


CHUNK = [b"x" * 3000] * 5


class Gate(MemoryStorage):
    """A storage whose writes wait; `fail` is raised by the next one."""

    def __init__(self) -> None:
        super().__init__(name="f")
        self.open = threading.Event()
        self.open.set()
        self.fail: OSError | None = None

    def write(self, offset, buffers):
        assert self.open.wait(10)
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        return super().write(offset, buffers)


@pytest.fixture
def gated() -> KVSeq:
    return KVSeq.create(Gate())


def chunk_of(kv: KVSeq, values: list[bytes]) -> tuple[bytearray, list[int]]:
    chunk, positions = bytearray(), []
    for value in values:
        positions.append(kv.end + len(chunk))
        chunk += kv.layout.encode(positions[-1], b"k", value)
    return chunk, positions


@pytest.fixture
def waiting(gated: KVSeq) -> list[int]:
    """The positions of CHUNK, which is being written."""
    chunk, positions = chunk_of(gated, CHUNK)
    gated.reserve(2 * len(chunk))
    gated.storage.open.clear()
    gated.append_encoded([chunk], 5)
    threading.Timer(0.05, gated.storage.open.set).start()
    return positions


@pytest.mark.parametrize("look", [lambda kv, pos: kv.get(pos).value, entry_in_view])
def test_a_look_waits_for_the_chunk_that_is_being_written(gated: KVSeq, waiting: list[int], look):
    assert look(gated, waiting[0]) == b"x" * 3000


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda kv, pos: None, CHUNK),  # the look below
        (lambda kv, pos: kv.sync(), CHUNK),
        (lambda kv, pos: kv.append(b"k", b"small"), [*CHUNK, b"small"]),
        (lambda kv, pos: kv.delete(pos[0]), CHUNK),
        (lambda kv, pos: kv.replace(pos[4], b"k", b"other"), [*CHUNK[:4], b"other"]),
    ],
    ids=["iterate", "sync", "append", "delete", "replace"],
)
def test_everything_else_waits_too(gated: KVSeq, waiting: list[int], use, expected: list[bytes]):
    use(gated, waiting)
    assert [entry.value for entry in gated] == expected
    gated.close()


# --- when the disk refuses ---------------------------------------------------------------------


def full() -> OSError:
    return OSError(errno.ENOSPC, "no room")


def test_nothing_is_appended_in_the_wrong_place_after_a_failure(gated: KVSeq):
    gated.append(b"a", b"1")
    gated.sync()
    gated.append(b"lost", b"x")
    gated.storage.fail = full()
    with pytest.raises(OSError, match="no room"):
        gated.flush()
    assert gated.broken
    all_raise(
        OSError,
        (lambda: gated.append(b"b", b"2"), gated.sync, lambda: gated.delete(gated.start)),
        "settle",
    )
    gated.close()
    assert stored(gated.storage) == [(b"a", b"1", False)]
    oracle_of(gated.storage)


def test_after_settle_it_goes_on_behind_what_was_written(gated: KVSeq):
    gated.append(b"a", b"1")
    gated.flush()
    gated.append(b"lost", b"x")
    gated.storage.fail = full()
    with pytest.raises(OSError):
        gated.flush()
    gated.settle()
    gated.entries = gated.aentries = 1
    assert not gated.broken
    gated.append(b"b", b"2")
    gated.close()
    assert stored(gated.storage) == [(b"a", b"1", False), (b"b", b"2", False)]
    block, entries = oracle_of(gated.storage)
    oracle_format.check_entry_counters(block, entries)


def test_a_failure_of_the_writing_thread_reaches_the_next_caller(gated: KVSeq):
    first, _ = chunk_of(gated, [b"x"])
    gated.append_encoded([first], 1)
    gated.drain()
    kept = gated.end
    gated.storage.fail = full()
    for _ in range(2):
        chunk, _ = chunk_of(gated, [b"y"])
        try:
            gated.append_encoded([chunk], 1)
        except OSError as error:
            assert "no room" in str(error)
    with pytest.raises(OSError, match="no room"):
        gated.sync()
    assert gated.broken
    gated.settle()
    assert (gated.end, gated.broken) == (kept, False)
    gated.entries = gated.aentries = 1
    gated.close()
    assert stored(gated.storage) == [(b"k", b"x", False)]


def test_an_error_inside_with_leaves_no_hole():
    storage = Gate()
    with pytest.raises(OSError, match="no room"), KVSeq.create(storage) as kv:
        kv.append(b"a", b"1")
        kv.sync()
        storage.fail = full()
        kv.append(b"b", bytes(2 << 20))
    assert stored(storage) == [(b"a", b"1", False)]


class Refusing(Gate):
    refused = False

    def sync(self):
        if self.refused:
            raise OSError(errno.EIO, "disk")
        super().sync()


def test_no_superblock_is_written_after_a_failed_sync():
    kv = KVSeq.create(Refusing())
    before = raw_of(kv.storage)[:4096]
    kv.append(b"a", b"1")
    kv.storage.refused = True
    with pytest.raises(OSError, match="disk"):
        kv.sync()
    assert kv.broken
    assert raw_of(kv.storage)[:4096] == before


# --- what is durable ---------------------------------------------------------------------------


class Log(MemoryStorage):
    """Writes and syncs in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, offset, buffers):
        self.calls.append({0: "superblock", 4096: "second"}.get(offset, "data"))
        return super().write(offset, buffers)

    def sync(self):
        self.calls.append("sync")


def test_sync_writes_data_then_the_superblock_each_made_durable():
    kv = KVSeq.create(Log())
    kv.append(b"a", b"b")
    kv.storage.calls.clear()
    kv.sync()
    assert kv.storage.calls == ["data", "sync", "superblock", "sync", "second"]
    kv.append(b"b", b"c")
    kv.sync()  # which makes the second superblock durable before it changes the first
    assert kv.storage.calls[5:] == ["data", "sync", "superblock", "sync", "second"]


def test_superblocks_of_31_variables_take_one_sector_each():
    sizes = []
    extra = {f"V{i}": 1 for i in range(31 - 17)}
    kv = KVSeq.create(Log(), contid=1, extra=extra)
    assert len(kv.superblock) == 31
    real = kv.storage.write
    kv.storage.write = lambda at, parts: (sizes.append((at, sum(map(len, parts)))), real(at, parts))
    kv.sync()
    assert sizes == [(0, 512), (4096, 512)]


def test_what_was_not_synced_is_not_there_after_a_kill(tmp_path):
    kv = KVSeq.create(FileStorage(tmp_path / "f", "x"))
    kv.append(b"a", b"1")
    kv.sync()
    kv.append(b"b", b"2")
    kv.flush()
    image = (tmp_path / "f").read_bytes()  # as a kill leaves it
    kv.close()
    (tmp_path / "f").write_bytes(image)
    with KVSeq.open(FileStorage(tmp_path / "f", "w"), writable=True) as again:
        assert contents(again) == [(b"a", b"1", False)]
        again.append(b"c", b"3")
    with FileStorage(tmp_path / "f") as storage:
        assert [entry.key for entry in oracle_of(storage)[1]] == [b"a", b"c"]


@pytest.mark.on_disk
def test_reserved_space_keeps_the_end_and_goes_on_close(tmp_path):
    path = tmp_path / "f"
    kv = KVSeq.create(FileStorage(path, "x"))
    kv.append(b"a", b"b")
    kv.sync()
    assert path.stat().st_size == FILEINCR
    assert read_superblock(kv.storage)["FILESIZE"] == kv.end < 9000
    kv.close()
    assert path.stat().st_size == kv.end


def test_a_silly_fileincr_reserves_no_more_than_a_gibibyte():
    storage, asked = MemoryStorage(), []
    storage.preallocate = asked.append  # and makes no room
    kv = KVSeq.create(storage, extra={"FILEINCR": 2**62})
    kv.append(b"a", b"b")
    kv.flush()
    assert max(asked) == 1 << 30


# --- a file that is cut short ------------------------------------------------------------------


@pytest.fixture
def cut():
    """-> a function: bytes to take off -> a storage of three entries that is shorter by them."""

    def make(missing: int) -> MemoryStorage:
        kv = KVSeq.create(MemoryStorage(name="f"))
        for key in (b"a", b"b", b"c"):
            kv.append(key, b"value")
        kv.close()
        kv.storage.truncate(kv.end - missing)
        return kv.storage

    return make


def test_a_writer_refuses_a_file_that_is_cut_short(cut):
    with pytest.raises(CorruptError, match="f: the file is cut short, what is there"):
        KVSeq.open(cut(1), writable=True)


def test_a_reader_of_a_cut_file_gets_whole_entries_then_an_error(cut):
    kv = KVSeq.open(cut(3))
    assert kv.truncated
    found = []
    with pytest.raises(CorruptError, match="past the end"):
        for entry in kv:
            found.append(entry.key)
    assert found == [b"a", b"b"]
    with pytest.raises(CorruptError):
        kv.get(kv.start + 2 * 17)


def test_a_file_cut_between_two_entries_ends_there(cut):
    kv = KVSeq.open(cut(17))
    assert kv.truncated and [entry.key for entry in kv] == [b"a", b"b"]


# --- readers beside a writer -------------------------------------------------------------------


def test_a_reader_sees_each_sync_when_it_takes_up_the_superblock():
    storage = MemoryStorage()
    writer = KVSeq.create(storage)
    reader = KVSeq.open(storage)
    writer.append(b"a", b"1")
    writer.flush()
    assert contents(reader) == []
    writer.sync()
    reader.advance(read_superblock(storage))
    assert contents(reader) == [(b"a", b"1", False)]


def test_an_iteration_ends_where_the_file_ended_when_it_began(kv: KVSeq):
    kv.append(b"a", b"1")
    keys = []
    for entry in kv:
        keys.append(entry.key)
        kv.append(b"more", b"2")
    assert keys == [b"a"]
    assert len(kv) == 2


def test_an_iteration_dropped_after_close_is_quiet(tmp_path):
    kv = KVSeq.create(FileStorage(tmp_path / "f", "x"))
    for _ in range(1000):
        kv.append(b"k", b"v" * 100)
    entries = iter(kv)
    next(entries)
    kv.close()
    del entries  # its pages are dropped from the cache of a file that is closed by now


def test_layout_is_that_of_the_superblock():
    kv = KVSeq.create(MemoryStorage(), keyrepr=300, valrepr=3, align=8, contid=5)
    assert kv.layout == Layout.of(kv.superblock)
