"""A disk that fails: each write, sync and rename in turn; and the order in which they are done."""

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import container_checks
import pytest
from container_checks import assert_sound, contents, path_of
from oracle_read import check
from oracle_recipes import RECIPES
from seam import Call, disk_calls

import winkfs
from winkfs import Container

pytestmark = pytest.mark.slow

base = container_checks.base  # fixture

Model = dict[bytes, bytes]
CALLS = ("write", "patch", "sync")
FAULTS = (*CALLS, "truncate", "directory sync", "rename", "link")
VARIANTS: dict[str, dict[str, bool]] = {
    "plain": {},
    "classic": {"classic": True},
    "ao": {"ao": True},
}


class Faults:
    """Calls to the disk, counted; the one numbered `at` fails with EIO, or all from it on."""

    def __init__(self) -> None:
        self.arm(0)

    def __call__(self, call: Call) -> None:
        if call.verb not in FAULTS:
            return
        self.count += 1
        if self.at and (self.count == self.at or (self.for_good and self.count > self.at)):
            self.failed = self.failed or call.verb
            raise OSError(errno.EIO, "the disk failed")

    def arm(self, at: int, for_good: bool = False) -> None:
        self.at, self.count, self.for_good, self.failed = at, 0, for_good, ""


@pytest.fixture
def faults() -> Iterator[Faults]:
    found = Faults()
    with disk_calls(found, reads=False):
        yield found


class Life:
    """A fixed life of a container, one step at a time; `model` is what it must show."""

    def __init__(self, base: Path, variant: dict[str, bool]) -> None:
        self.base, self.ao = base, variant.get("ao", False)
        self.model: Model = {b"old%d" % i: b"%d" % i * 50 for i in range(6)}
        self.container = winkfs.create(base, **variant)
        self.container.put_many(self.model.items())
        self.container.sync()
        self.synced = dict(self.model)

    def steps(self) -> Iterator[tuple[Callable[[], object], Model]]:
        """(what to do, what the container then holds)."""
        c, model = self.container, dict(self.model)

        def after(**changes: bytes | None) -> Model:
            for name, data in changes.items():
                if data is None:
                    del model[name.encode()]
                else:
                    model[name.encode()] = data
            return dict(model)

        many = {f"many{i}": b"%d" % (i + 10) * 15_000 for i in range(15)}
        large = b"large" * 500_000
        yield lambda: c.put("new", b"1"), after(new=b"1")
        yield lambda: c.put_many(many.items()), after(**many)
        yield lambda: c.put("large", large), after(large=large)
        yield c.sync, dict(model)
        yield (
            lambda: c.put_many([("old1", b"again"), ("many5", b"a")]),
            after(old1=b"again", many5=b"a"),
        )
        yield lambda: c.delete("old2"), after(old2=None)
        if not self.ao:
            yield (
                lambda: c.append("old3", b"+" * 2_000_000),
                after(old3=model[b"old3"] + b"+" * 2_000_000),
            )
            yield lambda: c.rename("old4", "old5"), after(old5=model[b"old4"], old4=None)
            yield lambda: c.write("large", 9, b"X"), after(large=large[:9] + b"X" + large[10:])
        yield c.sync, dict(model)
        yield c.close, dict(model)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
def test_each_call_to_the_disk_fails_in_turn(
    for_good: bool, variant: str, base: Path, faults: Faults, every: Callable[[str], slice]
) -> None:
    """One OSError; what was synced is there; with a sound disk the handle goes on, or a new one."""
    chosen = every("failing calls")
    for at in itertools.count(1 + chosen.start, chosen.step):
        faults.arm(0)
        for path in base.parent.iterdir():
            path.unlink()
        life = Life(base, VARIANTS[variant])
        container, reached, synced = life.container, life.model, life.model
        faults.arm(at, for_good)
        failed_at, wanted = "", life.model
        for number, (step, wanted) in enumerate(life.steps()):
            try:
                step()
            except OSError as error:
                assert error.errno == errno.EIO, error
                failed_at = f"call {at}, {faults.failed} in step {number}"
                break
            reached = wanted
            if step in (container.sync, container.close):
                synced = wanted
        if not failed_at and not faults.failed:
            break
        if not failed_at:  # a derived file, or the second superblock, which the next writer makes
            faults.arm(0)
            with winkfs.open(base, "a") as again:
                again.put("old0", wanted[b"old0"])
            assert_sound(base, wanted)
            continue
        assert_goes_on(container, faults, reached, wanted, synced, failed_at)
    assert at > 10


def assert_goes_on(
    container: Container,
    faults: Faults,
    reached: Model,
    wanted: Model,
    synced: Model,
    failed_at: str,
) -> None:
    """reached: before the failing step, wanted: after it; synced: what had been promised."""
    base = Path(container.base)
    faults.arm(0)
    with winkfs.open(base) as reader:
        seen = contents(reader)
    for name in synced.keys() & reached.keys() & wanted.keys():
        if synced[name] == reached[name] == wanted[name]:
            assert seen[name] == synced[name], failed_at
    try:
        container.put("after", b"1")
        container.sync()
        found = contents(container)
        container.close()
    except (OSError, ValueError):  # the handle gave up: a new one goes on
        with suppress(OSError, ValueError):
            container.close()
        with winkfs.open(base, "a") as again:
            again.put("after", b"1")
            found = contents(again)
    assert found.pop(b"after") == b"1"
    for name in synced.keys() & reached.keys() & wanted.keys():
        if synced[name] == reached[name] == wanted[name]:
            assert found[name] == synced[name], failed_at
    for name, data in found.items():
        assert data in (synced.get(name), reached.get(name), wanted.get(name)), (failed_at, name)
    try:
        assert_sound(base, found | {b"after": b"1"})
    except Exception as error:
        raise AssertionError(failed_at) from error


@pytest.mark.parametrize("name", ["unclean", "unclean_flags_unset", "unclean_append_only"])
def test_each_call_of_a_recovery_fails_in_turn(name: str, base: Path, faults: Faults) -> None:
    """What a dead writer left is finished in the end, however often the first try fails."""
    for at in itertools.count(1):
        faults.arm(0)
        for path in base.parent.iterdir():
            path.unlink()
        model = {key: file.content for key, file in RECIPES[name](base).items()}
        faults.arm(at)
        with suppress(OSError):
            winkfs.open(base, "a").close()
        failed, _ = faults.failed, faults.arm(0)
        with winkfs.open(base) as reader:
            assert contents(reader) == model
        winkfs.open(base, "a").close()
        try:
            assert_sound(base, model)
        except Exception as error:
            raise AssertionError(f"call {at}, {failed}") from error
        if not failed:
            break
    assert at > 5


# --- the order of sync --------------------------------------------------------------------------


def logged(calls: list[Call]) -> Iterator[tuple[str, str, int, int]]:
    """What reaches the disk, in order: (call, file, offset, length)."""
    for call in calls:
        name = Path(call.path).name
        if call.verb in CALLS:
            yield call.verb, name, call.offset, call.length
        elif call.verb in ("rename", "link"):
            yield "replace", name, 0, 0
        elif call.verb == "directory sync":
            yield "directory", "", 0, 0


def lives(base: Path, variant: dict[str, bool]) -> None:
    life = Life(base, variant)
    for step, _ in life.steps():
        step()
    with winkfs.open(base, "a") as container:
        container.put_many((f"n{i}", b"x") for i in range(2000))
        container.delete("n5")
    winkfs.reindex(base)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_sync(variant: str, base: Path) -> None:
    """Data, sync, superblock, sync, then delflags; nothing below SYNCSIZE changes but those."""
    with disk_calls() as calls:
        lives(base, VARIANTS[variant])
    log = list(logged(calls))
    dirty = dirty_block = False  # entries or the superblock written and not yet synced
    synced = end = 4096 if variant == "classic" else 8192  # the end of what is durably said
    superblocks = flags = 0
    for call, name, offset, length in log:
        if name != "c.data":
            continue
        if call == "write" and offset == 0:
            assert not dirty, "a superblock before its data"
            dirty_block = True
            superblocks += 1
        elif call == "write" and offset < 8192 and variant != "classic":
            assert offset == 4096 and not dirty_block, "both superblocks before a sync"
        elif call == "write":
            assert offset >= synced, "synced entries were written again"
            assert not dirty_block, "data between a superblock and its sync"
            dirty = True
            end = max(end, offset + length)
        elif call == "patch":
            assert length == 1
            assert offset >= synced or not (dirty or dirty_block), "delflags before the sync"
            dirty = dirty or offset >= synced
            flags += 1
        elif call == "sync":
            dirty = False
            if dirty_block:
                synced, dirty_block = end, False
    assert superblocks >= 4
    assert flags > 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_derived_files_are_synced_before_they_have_their_name(variant: str, base: Path) -> None:
    with disk_calls() as calls:
        lives(base, VARIANTS[variant])
    log = list(logged(calls))
    replaced = [i for i, call in enumerate(log) if call[0] == "replace"]
    names = {log[i][1] for i in replaced}
    derived = {"c.idx"} | ({"c.time"} if variant == "ao" else set())
    derived |= set() if variant == "classic" else {"c.cat"}
    assert names == {"c.data"} | derived
    for i in replaced:
        name = log[i][1]
        before = [call for call in log[:i] if call[1] == name + ".tmp"]
        assert before[-1][0] == "sync", name
        assert ("directory", "", 0, 0) in log[i : i + 2], name
    for i, (call, name, *_) in enumerate(log):
        if call == "replace" and name in ("c.idx", "c.time"):
            data = [c[0] for c in log[:i] if c[1] == "c.data" and c[0] in CALLS]
            assert data[-1:] in (["sync"], []), "an index that covers what is not durable"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_index_is_never_changed_in_its_place(variant: str, base: Path) -> None:
    with disk_calls() as calls:
        lives(base, VARIANTS[variant])
    log = list(logged(calls))
    written = {name for call, name, *_ in log if call in ("write", "patch")} - {"c.lock"}
    assert written <= {
        "c.data", "c.data.tmp", "c.idx.tmp", "c.time.tmp", "c.cat.tmp", "c.cat",
    }  # fmt: skip
    assert check(base).files
    assert not path_of(base, ".idx.tmp").exists()
