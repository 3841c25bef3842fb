"""Perm beside a list, against bytes worked out by hand, and against damage."""

import struct

import numpy as np
import oracle_format
import pytest
from drawn import examples
from folders import unchanged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from refusals import all_raise
from seam import disk_calls, refusing

from winkformats import extsort
from winkformats.disk.memory import MemoryStorage
from winkformats.disk.posix import FileStorage
from winkformats.extsort import ByKey, ByRight
from winkformats.kv.superblock import Superblock
from winkformats.perm import PAIR, Perm

int64s = st.integers(-(2**63), 2**63 - 1)
rights = st.integers(0, 5) | int64s  # many ties
pairs_of = st.tuples(int64s, rights)
TINY = 1  # bytes: two pairs in memory at a time


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def perm(storage: MemoryStorage) -> Perm:
    return Perm.create(storage)


def on_disk(data: bytes) -> list[tuple[int, int]]:
    block = Superblock.decode(data, file="test")
    body = data[block["SBSIZE"] :]
    assert len(data) == block["FILESIZE"] == block["SBSIZE"] + 16 * block["PERMSIZE"]
    return list(struct.iter_unpack(">qq", body))


def by_left(a: tuple[int, int], b: tuple[int, int]) -> int:
    return (a[0] > b[0]) - (a[0] < b[0])


class Machine(RuleBasedStateMachine):
    """Every operation on a perm and on a list of pairs."""

    @initialize(sbsize=st.sampled_from((256, 4096)), htsize=st.sampled_from((0, 11)))
    def begin(self, sbsize, htsize):
        self.model: list[tuple[int, int]] = []
        self.storage = MemoryStorage()
        self.perm = Perm.create(
            self.storage, htsize=htsize, purpose="TEST", sbsize=sbsize, extra={"MYVAR": 7}
        )

    @rule(pair=pairs_of)
    def append(self, pair):
        assert self.perm.append(*pair) == len(self.model)
        self.model.append(pair)

    @rule(pairs=st.lists(pairs_of, max_size=30))
    def append_many(self, pairs):
        first = self.perm.append_many([p[0] for p in pairs], [p[1] for p in pairs])
        assert first == len(self.model)
        self.model += pairs

    @rule(budget=st.sampled_from((TINY, 1 << 20)), compare=st.sampled_from((None, by_left)))
    def group(self, budget, compare):
        self.perm.group(compare, budget=budget)
        if compare:
            self.model.sort(key=lambda pair: pair[0])
        self.model.sort(key=lambda pair: pair[1])

    @rule(budget=st.sampled_from((TINY, 1 << 20)))
    def sort(self, budget):
        self.perm.sort(by_left, budget=budget)
        self.model.sort(key=lambda pair: pair[0])

    @rule(budget=st.sampled_from((TINY, 1 << 20)))
    def sort_by_key(self, budget):
        self.perm.sort(key=lambda pair: pair[1] % 7, budget=budget)
        self.model.sort(key=lambda pair: pair[1] % 7)

    @rule()
    def reopen(self):
        self.perm.close()
        assert on_disk(bytes(self.storage.data)) == self.model
        self.perm = Perm.open(self.storage, writable=True)
        assert self.perm.superblock["MYVAR"] == 7

    @invariant()
    def same_as_the_list(self):
        assert len(self.perm) == len(self.model)
        assert list(self.perm.iterate()) == self.model
        half = len(self.model) // 2
        assert list(self.perm.iterate(half)) == self.model[half:]
        if self.model:
            assert self.perm.get(half) == self.model[half]
        backwards = list(range(len(self.model)))[::-1]
        assert list(map(tuple, self.perm.get_many(backwards).tolist())) == self.model[::-1]


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def shuffled(n: int, hashes: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.arange(n), rng.integers(0, hashes, n)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("budget", [TINY, 1000, 15_000, 1 << 24])
@pytest.mark.parametrize("hashes", [1, 3, 180, 1 << 62])
def test_group_is_the_same_stable_sort_within_any_memory(tmp_path, budget, hashes):
    left, right = shuffled(750, hashes)
    with Perm.create(FileStorage(tmp_path / "p", "x")) as perm:
        perm.append_many(left, right)
        perm.group(budget=budget)
    order = np.argsort(right, kind="stable")
    expected = list(zip(left[order].tolist(), right[order].tolist(), strict=True))
    assert on_disk((tmp_path / "p").read_bytes()) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [TINY, 2000, 1 << 24])
@pytest.mark.parametrize("hashes", [1, 16, 1 << 62])
def test_group_orders_equal_hashes_by_their_keys(budget, hashes, perm: Perm):
    left, right = shuffled(400, hashes)
    keys = [b"key %d" % (i * 7919 % 200) for i in range(400)]  # each key twice

    def compare(a, b):
        assert a[1] == b[1]  # only equal hashes are worth a look at the keys
        return (keys[a[0]] > keys[b[0]]) - (keys[a[0]] < keys[b[0]])

    perm.append_many(left, right)
    perm.group(compare, budget=budget)
    pairs = zip(left.tolist(), right.tolist(), strict=True)
    assert list(perm.iterate()) == sorted(pairs, key=lambda pair: (pair[1], keys[pair[0]]))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [TINY, 2000, 1 << 24])
def test_sort_is_stable_within_any_memory(budget, perm: Perm):
    left, right = shuffled(800, 10)
    pairs = list(zip(left.tolist(), right.tolist(), strict=True))
    perm.append_many(left, right)
    perm.sort(lambda a, b: b[1] - a[1], budget=budget)
    assert list(perm.iterate()) == sorted(pairs, key=lambda pair: -pair[1])


@settings(max_examples=examples(80), deadline=None)
@given(
    runs=st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=7),
    count=st.integers(1, 6),
    by_right=st.booleans(),
)
def test_merge_keeps_the_order_of_runs_where_pairs_are_equal(runs, count, by_right):
    storage = MemoryStorage()
    written, at, serial = [], 0, 0
    everything = []
    for values in runs:
        pairs = [(serial + i, right) for i, right in enumerate(sorted(values))]
        serial += len(pairs)
        everything += pairs
        array = np.array(pairs, np.int64).reshape(-1, 2)
        written.append(extsort.write_run([array], storage, at))
        at = written[-1].stop
    order = ByRight() if by_right else ByKey(lambda pair: pair[1])
    merged = [tuple(row) for block in order.merge(written, count) for row in block.tolist()]
    assert merged == sorted(everything, key=lambda pair: pair[1])


def test_memory_of_a_sort_stays_within_the_budget(tmp_path):
    """No block in hand is larger than the budget allows; a merge holds one for each run."""
    left, right = shuffled(20_000, 1 << 40)
    with Perm.create(FileStorage(tmp_path / "p", "x")) as perm:
        perm.append_many(left, right)
        perm.sync()
        with disk_calls() as calls:
            perm.group(budget=4000 * ByRight.cost)
    reads = [call for call in calls if call.verb == "read"]
    runs = [call.length for call in reads if call.path == str(tmp_path / "p")]
    merged = [call.length for call in reads if call.path.endswith("(scratch file)")]
    assert runs.count(4000 * PAIR.size) == 5
    assert 0 < 5 * max(merged) <= 4000 * PAIR.size == max(runs)


def test_comparison_that_raises_leaves_the_perm_as_it_was(tmp_path):
    path = tmp_path / "p"
    perm = Perm.create(FileStorage(path, "x"))
    perm.append_many(*shuffled(1000, 10))
    perm.sync()
    for reorder in (perm.sort, perm.group):
        with unchanged(tmp_path), pytest.raises(ZeroDivisionError):
            reorder(lambda a, b: 1 // 0, budget=10_000)
    assert perm.append(1, 2) == 1000
    perm.close()


def test_sort_that_fails_to_take_the_name_leaves_the_perm(tmp_path):
    path = tmp_path / "p"
    perm = Perm.create(FileStorage(path, "x"))
    perm.append_many([3, 2, 1], [3, 2, 1])
    perm.sync()
    with (
        unchanged(tmp_path),
        disk_calls(refusing("rename")),
        pytest.raises(OSError, match="Input/output"),
    ):
        perm.group()
    assert perm.get(0) == (3, 3)
    perm.close()


@pytest.mark.parametrize("htsize", [0, 1009])
@pytest.mark.parametrize("htalgo", [1, 2, 3])
def test_right_integers_are_the_slots_of_the_documents(htalgo, htsize):
    perm = Perm.create(MemoryStorage(), htalgo=htalgo, htsize=htsize)
    keys = [b"name %d" % i for i in range(50)]
    expected = [oracle_format.hash_key("test", htalgo, key)[0] for key in keys]
    assert perm.hash_keys(keys).tolist() == [h % htsize if htsize else h for h in expected]
    if not htsize:
        del perm.superblock["HTSIZE"]
        assert perm.hash_keys(keys).tolist() == expected


def test_pairs_are_laid_out_as_documented(storage: MemoryStorage):
    with Perm.create(storage, htalgo=3, htsize=9, purpose="WORDS", sbsize=512) as perm:
        perm.append(-1, 2)
        perm.append_many([3], [1 << 62])
    data = bytes(storage.data)
    assert data[512:] == bytes.fromhex(
        "ffffffffffffffff 0000000000000002 0000000000000003 4000000000000000"
    )
    block = oracle_format.read_superblock("test", data, 0x30, "WORDS")
    assert [block.need(name) for name in ("PERMSIZE", "HTALGO", "HTSIZE")] == [2, 3, 9]


def test_appended_pairs_count_only_after_sync(storage: MemoryStorage, perm: Perm):
    perm.append(1, 2)
    assert perm.get(0) == (1, 2)
    assert len(Perm.open(storage)) == 0
    perm.sync()
    assert list(Perm.open(storage).iterate()) == [(1, 2)]


def test_many_single_appends_cross_the_buffer(storage: MemoryStorage):
    with Perm.create(storage) as perm:
        for i in range(70_000):
            perm.append(i, -i)
        perm.group()
    assert on_disk(bytes(storage.data)) == [(i, -i) for i in range(69_999, -1, -1)]


@pytest.mark.parametrize("index", [-1, 2, 1 << 62])
def test_index_outside_the_perm_is_a_wrong_call(index, perm: Perm):
    perm.append_many([1, 2], [3, 4])
    all_raise(
        ValueError, (lambda: perm.get(index), lambda: perm.get_many([0, index])), "there are 2"
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([1, 2], [1]), ([1.5], [1]), (["a"], [1]), ([1 << 63], [0]), ([[1]], [[1]]),
        ([1 << 64], [0]), ([-1 - (1 << 63)], [0]),
    ],
)  # fmt: skip
def test_append_refuses_what_is_no_int64(left, right, perm: Perm):
    with pytest.raises(ValueError):
        perm.append_many(left, right)
    if len(left) == len(right) and isinstance(left[0], int):
        with pytest.raises(ValueError):
            perm.append(left[0], right[0])
    assert len(perm) == 0


def test_sort_needs_exactly_one_order(perm: Perm):
    all_raise(ValueError, (perm.sort, lambda: perm.sort(by_left, key=lambda pair: pair)), "either")


# --- damage ---
