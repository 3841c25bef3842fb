"""Each verb that changes something, stopped before and after every call to the disk, and run again.

Stopped is: the files are as they are at that moment, which is what a kill leaves. Of such an image
nothing wrong is read; and when the verb was run again, it holds what an undisturbed run leaves.

    python tests/simulated/test_stopped_verbs.py 0 50         # all stops of all verbs, 50 seeds
    python tests/simulated/test_stopped_verbs.py 7 8 repair
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple

sys.path += [str(Path(__file__).parents[1])]

import data_sets
import pytest
import xxhash
from folders import MEMORY
from seam import CHANGES, disk_calls

import winkfs
import winkfs.stores.messagestore.store
from winkformats.errors import CorruptError, FormatError
from winkformats.messagestore.rdq import record as rdq_record
from winkfs.archive.backup import backup
from winkfs.archive.pack import pack
from winkfs.container.compact import compact
from winkfs.container.repair import repair, rollback
from winkfs.container.salvage import salvage
from winkfs.dataset import compaction, maintain
from winkfs.dataset.manifest import create as create_dataset
from winkfs.errors import FileExists, NoSuchFile
from winkfs.registry import verify
from winkfs.stores.ledgerq import Queue
from winkfs.stores.ledgerq.queue import create as create_queue
from winkfs.stores.ledgerq.tail import Rotation
from winkfs.stores.logstore.store import LogStore
from winkfs.stores.messagestore.records import migrate
from winkfs.stores.messagestore.store import MessageStore
from winkfs.stores.ringpage.ring import Ring
from winkfs.stores.ringpage.ring import create as create_ring

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_memory,
    pytest.mark.filterwarnings("ignore::winkfs.DamageWarning"),
]
VERIFIED = 4  # of a long run one image in so many is verified when the verb was run again
State = dict[Any, Any]


class Counts(NamedTuple):
    """Images before each change, and how many of them differ from all others of their verb."""

    images: int
    distinct: int


class Verb(NamedTuple):
    """A verb.

    make    makes what it is run on, in a folder, from a seed
    run     runs it there, also again
    state   what is there, for who reads it. Raises where that cannot be read
    paths   what is verified then, below the folder
    during  whether an image may have a state that is neither that before nor that after
    """

    make: Callable[[Path, random.Random], object]
    run: Callable[[Path], object]
    state: Callable[[Path], State]
    paths: tuple[str, ...] = ("c",)
    during: Callable[[State, State, State], bool] | None = None


def same_or_absent(image: State, before: State, after: State) -> bool:
    """Each file is right, or reported as damaged: of what is being repaired."""
    return all(value in (before.get(name), after.get(name), None) for name, value in image.items())


def or_nothing(
    state: Callable[..., State], *errors: type[Exception], **options: str
) -> Callable[[Path], State]:
    """The same; nothing where that cannot be read."""

    def found(folder: Path) -> State:
        try:
            return state(folder, **options)
        except errors:
            return {}

    return found


# --- containers -----------------------------------------------------------------------------------


def files(dice: random.Random, count: int = 12) -> dict[str, bytes]:
    sizes = (0, 3, 100, 600, 3000)
    return {f"d/f{i:02}": dice.randbytes(dice.choice(sizes)) for i in range(count)}


def make_container(folder: Path, dice: random.Random, **options: Any) -> None:
    with winkfs.create(folder / "c", columns={"n": "int64", "text": "string"}, **options) as c:
        rows = [(n, d, i, {"n": i}) for i, (n, d) in enumerate(files(dice).items())]
        c.put_many(rows)
        c.sync()
        c.put("d/f01", b"replaced" * 30, mtime=100)
        c.delete("d/f02")
        c.rename("d/f03", "renamed")
        c.append("d/f04", b"more" * 40)
        c.setxattrs("d/f05", {b"user.x": b"some value"})
        c.put("last", dice.randbytes(500), mtime=200)
    if dice.random() < 0.5:
        winkfs.reindex(folder / "c")


def container_state(folder: Path, name: str = "c") -> State:
    """Each name -> content, mtime, columns; None: it is reported as damaged."""
    found: State = {}
    with winkfs.open(folder / name) as c:
        for file in c.names():
            try:
                found[file] = c.read(file), c.stat(file).mtime_ns, c.getcolumns(file)
            except CorruptError:
                found[file] = None
            except NoSuchFile:  # in no index, for its inode is damaged, which is reported
                assert c.problems
                found[file] = None
    return found


def make_damaged(folder: Path, dice: random.Random) -> None:
    """One content, one inode, the attributes of a file, and perhaps superblocks."""
    make_container(folder, dice)
    data = bytearray((folder / "c.data").read_bytes())
    for part in (b"more" * 8, b"renamed/I0", b"some value"):
        data[data.rindex(part) + dice.randrange(len(part))] ^= 1 << dice.randrange(8)
    kind = dice.choice(["one", "both", "none"])
    for at in {"one": (100,), "both": (70, 4096 + 70), "none": ()}[kind]:
        data[at] ^= 4
    if dice.random() < 0.3:
        (folder / "c.cat").unlink(missing_ok=True)
    (folder / "c.data").write_bytes(data)


def make_unsynced(folder: Path, dice: random.Random) -> None:
    make_container(folder, dice)
    with winkfs.open(folder / "c", "a") as c:
        c.put("last", b"not synced", mtime=300)
        c.put_many((f"new{i}", b"not synced", 300) for i in range(5))
        c.store.kv.flush()
        images = {path: path.read_bytes() for path in folder.iterdir()}
    for path, data in images.items():  # as a kill leaves it
        path.write_bytes(data)


def make_earlier(folder: Path, dice: random.Random) -> None:
    """The second superblock is one of the sync before: as if the last was killed at its end."""
    make_container(folder, dice)
    half = (folder / "c.data").read_bytes()[4096:8192]
    with winkfs.open(folder / "c", "a") as c:
        c.put("last", b"to go", mtime=300)
    with (folder / "c.data").open("r+b") as file:
        file.seek(4096)
        file.write(half)


def run_salvage(folder: Path) -> None:
    for suffix in (".data", ".idx", ".cat", ".lock"):
        (folder / f"out{suffix}").unlink(missing_ok=True)
    salvage(folder / "c", folder / "out")


def salvaged_state(folder: Path) -> State:
    found = container_state(folder)
    if (folder / "out.data").exists():
        found |= {("out", name): value for name, value in container_state(folder, "out").items()}
    return found


def make_tree(folder: Path, dice: random.Random) -> None:
    (folder / "tree/d").mkdir(parents=True)
    for name, content in files(dice).items():
        (folder / "tree" / name).write_bytes(content)
        os.utime(folder / "tree" / name, (10**9, 10**9))
    pack(folder / "tree", folder / "c")
    for name in ("d/f01", "d/new"):
        (folder / "tree" / name).write_bytes(b"changed")
        os.utime(folder / "tree" / name, (2 * 10**9, 2 * 10**9))
    (folder / "tree/d/f02").unlink()


def packed_state(folder: Path) -> State:
    with winkfs.open(folder / "c") as c:
        return {e.name: (e.read(), e.ftype) for e in c.scan() if e.ftype != winkfs.FileType.DIR}


def add_columns(folder: Path) -> None:
    with winkfs.open(folder / "c", "a") as c:
        if "more" not in c.columns:
            c.add_columns({"more": "float64"})


def drop_columns(folder: Path) -> None:
    with winkfs.open(folder / "c", "a") as c:
        if "text" in c.columns:
            c.drop_columns(["text"])


# --- data sets ------------------------------------------------------------------------------------


def make_dataset(folder: Path, dice: random.Random) -> None:
    root = create_dataset(folder / "ds").root
    for number in range(4):
        some = files(dice, 6)
        data_sets.add(root, {f"{number % 3}/{name}": data for name, data in some.items()})
    data_sets.delete(root, "0/d/f01", "1/d/f02")
    if dice.random() < 0.5:
        winkfs.reindex(root)


def dataset_state(folder: Path, name: str = "ds") -> State:
    with winkfs.open(folder / name) as d:
        return {entry.name: entry.read() for entry in d.scan()}


def make_rewritten(folder: Path, dice: random.Random) -> None:
    make_dataset(folder, dice)
    compaction.compact(folder / "ds", everything=True)


def run_vacuum(folder: Path) -> None:
    maintain.vacuum(folder / "ds", keep=1, older_than=0)


def run_commit(folder: Path) -> None:
    with winkfs.dataset.create(folder / "ds") as d:
        d.put("new", b"new" * 100)
        d.put("1/d/f01", b"replaced")
        if "0/d/f03" in d:
            d.delete("0/d/f03")


def run_repair_dataset(folder: Path) -> None:
    maintain.repair(folder / "ds", apply=True)


def make_damaged_dataset(folder: Path, dice: random.Random) -> None:
    make_dataset(folder, dice)
    manifests = sorted((folder / "ds/_winkfs").glob("*.json"))
    for path in [dice.choice(manifests), *dice.sample(manifests, 1)]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)


def make_loose(folder: Path, dice: random.Random) -> None:
    """A data set, and two containers that are none of its shards."""
    make_dataset(folder, dice)
    for name in ("one", "two"):
        with winkfs.create(folder / name) as c:
            c.put_many((f"{name}/{n}", data) for n, data in files(dice, 6).items())
            c.put("1/d/f01", name.encode())


def run_adopt(folder: Path) -> None:
    with contextlib.suppress(FileExists):  # they are shards: it is done
        maintain.adopt(folder / "ds", [folder / "one", folder / "two"])


def make_underived(folder: Path, dice: random.Random) -> None:
    """A data set of which some shards have lost derived files, and the marks of what is hidden."""
    make_dataset(folder, dice)
    for path in sorted((folder / "ds").rglob("*")):
        if path.suffix in (".idx", ".cat", ".hidden") and dice.random() < 0.5:
            path.unlink()


# --- backups --------------------------------------------------------------------------------------


def make_source(folder: Path, dice: random.Random) -> None:
    """A container; mostly with a backup of before its last changes."""
    with winkfs.create(folder / "c") as c:
        c.put_many(files(dice).items())
    if dice.random() < 0.7:
        backup(folder / "c", folder / "b", keep=dice.randrange(2))
    with winkfs.open(folder / "c", "a") as c:
        c.put("d/f01", b"replaced" * 30)
        c.delete("d/f02")
        c.rename("d/f03", "renamed")
        c.append("d/f04", b"more" * 40)
        c.put("last", dice.randbytes(500))
    if dice.random() < 0.3:
        compact(folder / "c")


def make_dataset_source(folder: Path, dice: random.Random) -> None:
    make_dataset(folder, dice)
    if dice.random() < 0.7:
        backup(folder / "ds", folder / "b", keep=dice.randrange(2))
    data_sets.add(folder / "ds", {"0/d/f03": b"replaced", "new": dice.randbytes(400)})
    if dice.random() < 0.3:
        compaction.compact(folder / "ds", everything=True)


# --- stores ---------------------------------------------------------------------------------------


def make_queue(folder: Path, dice: random.Random) -> None:
    create_queue(folder / "q")
    with Queue(folder / "q", "a", rotation=Rotation(4096)) as queue:
        for i in range(60):
            queue.push(b"%d " % i + dice.randbytes(300))
        for _ in range(40):
            queue.pop()


def queue_state(folder: Path) -> State:
    found: State = {}
    for name in ("q", "q.dlq"):
        if (folder / name).exists():
            with Queue(folder / name) as queue:
                found |= {message.payload: None for message in queue.messages()}
    return found


def compact_queue(folder: Path, *, shared: bool = False) -> None:
    with Queue(folder / "q", "a", shared=shared) as queue:
        queue.compact()


def make_letters(folder: Path, dice: random.Random) -> None:
    for name in ("q", "q.dlq"):
        create_queue(folder / name)
    with Queue(folder / "q", "a", retries=0, dead_letters=folder / "q.dlq") as queue:
        queue.push_many([b"%d " % i + dice.randbytes(300) for i in range(20)])
        for _ in range(8):
            message = queue.pop(visible=100)
            assert message is not None
            queue.nack(message.id)


def requeue(folder: Path, *, shared: bool = False) -> None:
    with Queue(folder / "q", "a", shared=shared, dead_letters=folder / "q.dlq") as queue:
        queue.requeue()


def run_create(folder: Path) -> None:
    try:
        c = winkfs.create(folder / "c", ao=True)
    except FileExists:
        c = winkfs.open(folder / "c", "a")
    with c:
        if "a" not in c:
            c.put("a", b"1", mtime=1)


def run_ring(folder: Path) -> None:
    create_ring(folder / "ring", pages=8, exist_ok=True)


def ring_state(folder: Path) -> State:
    with Ring(folder / "ring") as ring:
        return {"pages": ring.settings.page_count, "records": len(list(ring.records()))}


def make_log(folder: Path, dice: random.Random) -> None:
    with LogStore.create(os.fspath(folder / "log"), file_size=1 << 17) as log:
        ids = log.put_many([b"%d " % i + dice.randbytes(6000) for i in range(60)])
        log.commit()
        for recid in ids[:40]:
            log.delete(recid)
        log.commit()


def log_state(folder: Path) -> State:
    with LogStore(os.fspath(folder / "log")) as log:
        return {recid: log.get(recid) for recid in log}


def compact_log(folder: Path) -> None:
    with LogStore(os.fspath(folder / "log"), "a") as log:
        log.compact()


def message_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def make_messages(folder: Path, dice: random.Random) -> None:
    path = os.fspath(folder / "m")
    winkfs.stores.messagestore.store.create(path)
    with MessageStore(path, "a") as store:
        store.write_many((message_id(i), dice.randbytes(400)) for i in range(60))
        store.remove_many(map(message_id, range(0, 60, 2)))


def make_old_messages(folder: Path, dice: random.Random) -> None:
    (folder / "m").mkdir()
    for number in range(3):
        some = [rdq_record(message_id(number * 9 + i), dice.randbytes(300)) for i in range(9)]
        (folder / f"m/{number}.rdq").write_bytes(b"".join(some))


def message_state(folder: Path) -> State:
    with MessageStore(os.fspath(folder / "m")) as store:
        ids = [message_id(i) for i in range(60)]
        return {id: store.read(id) for id in ids if id in store}


def compact_messages(folder: Path) -> None:
    with MessageStore(os.fspath(folder / "m"), "a") as store:
        store.compact()


VERBS: dict[str, Verb] = {
    "create": Verb(lambda *_: None, run_create, or_nothing(container_state, NoSuchFile)),
    "repair": Verb(
        make_damaged,
        lambda folder: repair(folder / "c", apply=True),
        or_nothing(container_state, FormatError),  # as far as there is a superblock
        during=same_or_absent,
    ),
    "compact": Verb(make_container, lambda folder: compact(folder / "c"), container_state),
    "compact --order name": Verb(
        make_container, lambda folder: compact(folder / "c", order="name"), container_state
    ),
    "compact --compress zstd": Verb(
        make_container, lambda folder: compact(folder / "c", compress="zstd"), container_state
    ),
    "rollback": Verb(make_unsynced, lambda folder: rollback(folder / "c"), container_state),
    "rollback --previous": Verb(
        make_earlier, lambda folder: roll_back(folder), container_state, during=same_or_absent
    ),
    "salvage": Verb(make_container, run_salvage, salvaged_state, ("c", "out"), lambda *_: True),
    "reindex": Verb(make_container, lambda folder: winkfs.reindex(folder / "c"), container_state),
    "pack --update": Verb(
        make_tree,
        lambda folder: pack(folder / "tree", folder / "c", update=True),
        packed_state,
        during=same_or_absent,
    ),
    "columns add": Verb(make_container, add_columns, container_state, during=lambda *_: True),
    "columns drop": Verb(make_container, drop_columns, container_state, during=lambda *_: True),
    "dataset commit": Verb(make_dataset, run_commit, dataset_state, ("ds",)),
    "dataset compact": Verb(
        make_dataset,
        lambda folder: compaction.compact(folder / "ds", everything=True),
        dataset_state,
        ("ds",),
    ),
    "dataset repair": Verb(make_damaged_dataset, run_repair_dataset, dataset_state, ("ds",)),
    "dataset adopt": Verb(make_loose, run_adopt, dataset_state, ("ds", "one", "two")),
    "dataset reindex": Verb(
        make_underived, lambda folder: winkfs.reindex(folder / "ds"), dataset_state, ("ds",)
    ),
    "backup": Verb(
        make_source,
        lambda folder: backup(folder / "c", folder / "b"),
        or_nothing(container_state, NoSuchFile, name="b"),
        ("c", "b"),
    ),
    "backup of a data set": Verb(
        make_dataset_source,
        lambda folder: backup(folder / "ds", folder / "b"),
        or_nothing(dataset_state, NoSuchFile, name="b"),
        ("ds", "b"),
    ),
    "vacuum": Verb(make_rewritten, run_vacuum, dataset_state, ("ds",)),
    "queue compact": Verb(make_queue, compact_queue, queue_state, ("q",)),
    "queue dlq --requeue": Verb(make_letters, requeue, queue_state, ("q", "q.dlq")),
    "queue compact, shared": Verb(
        make_queue, lambda folder: compact_queue(folder, shared=True), queue_state, ("q",)
    ),
    "queue dlq --requeue, shared": Verb(
        make_letters, lambda folder: requeue(folder, shared=True), queue_state, ("q", "q.dlq")
    ),
    "ring create": Verb(
        lambda *_: None, run_ring, or_nothing(ring_state, NoSuchFile, FormatError), ("ring",)
    ),
    "store compact, log": Verb(make_log, compact_log, log_state, ("log",)),
    "store compact, messages": Verb(make_messages, compact_messages, message_state, ("m",)),
    "store migrate": Verb(
        make_old_messages,
        lambda folder: migrate(os.fspath(folder / "m"), force=True),
        message_state,
        ("m",),
    ),
}


def roll_back(folder: Path) -> None:
    with contextlib.suppress(winkfs.Refusal):  # nothing is known of an earlier sync: it is done
        rollback(folder / "c", previous=True)


# --- stops ----------------------------------------------------------------------------------------


def sound(folder: Path, paths: tuple[str, ...]) -> list[str]:
    return [line for path in paths for line in verify(folder / path).problems]


def images_of(verb: Verb, folder: Path, images: Path, which: slice) -> Counts:
    """Run a verb; what is there before each of its changes of the disk, and behind the last one, is
    copied to a folder of `images`, but for those that are as one before, as before a sync."""
    taken, seen = itertools.count(), set[bytes]()
    chosen: set[int] = set(range(10_000)[which])

    def take() -> None:
        number = next(taken)
        if number in chosen and (answer := digest(folder)) not in seen:
            seen.add(answer)
            shutil.copytree(folder, images / f"{number:04}")

    with disk_calls(lambda call: call.verb in CHANGES and take(), reads=False, alone=True):
        verb.run(folder)
    take()
    return Counts(len(range(next(taken))[which]), len(seen))


def digest(folder: Path) -> bytes:
    """Of all files below a folder: their names and bytes."""
    found = xxhash.xxh3_128()
    for place, folders, names in os.walk(folder):
        folders.sort()
        found.update(f"{place}\0{folders}\0{sorted(names)}".encode())
        for name in sorted(names):
            found.update(Path(place, name).read_bytes())
    return found.digest()


def check_stops(name: str, seed: int, folder: Path, which: slice, verified: int = 1) -> Counts:
    """Run a verb again from each of its images, and verify what one in so many has become."""
    verb, whole = VERBS[name], folder / "whole"
    whole.mkdir()
    (folder / "images").mkdir()
    verb.make(whole, random.Random(seed))
    before = or_nothing(verb.state, FormatError)(whole)
    counts = images_of(verb, whole, folder / "images", which)
    after = verb.state(whole)
    assert sound(whole, verb.paths) == []
    for number, image in enumerate(sorted((folder / "images").iterdir())):
        check_image(name, verb, image, before, after, verified=(number + seed) % verified == 0)
        shutil.rmtree(image)
    return counts


def check_image(
    name: str, verb: Verb, image: Path, before: State, after: State, *, verified: bool = True
) -> None:
    where = f"{name}, stopped at change {image.name}"
    found = verb.state(image)
    allowed = verb.during or (lambda image, *both: image in both)
    assert allowed(found, before, after), where
    verb.run(image)
    found = verb.state(image)
    assert found == after, where
    assert not verified or sound(image, verb.paths) == [], where


@pytest.mark.few(5)
@pytest.mark.soak
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_that_was_stopped_is_run_again(
    name: str, tmp_path: Path, every: Callable[[str], slice], seed: int
) -> None:
    assert check_stops(name, seed, tmp_path, every("stops")).images > 0


FOLDERS = (Path(__file__).parent, Path(__file__).parents[1])
SYSTEM_CALLS = (
    "pwrite64,pwritev,pwritev2,fdatasync,fsync,rename,renameat2,unlink,unlinkat,ftruncate,link"
)
ALONE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_stopped_verbs import VERBS
VERBS[sys.argv[1]].run(Path(sys.argv[2]))
"""


@pytest.mark.few(10)
@pytest.mark.soak
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_that_was_killed_is_run_again(
    name: str, tmp_path: Path, soak: bool, seed: int
) -> None:
    """By SIGKILL, within a call to the system."""
    if not soak and name != "repair":
        pytest.skip("with --soak")
    verb, whole, done = VERBS[name], tmp_path / "whole", tmp_path / "done"
    whole.mkdir()
    verb.make(whole, random.Random(seed))
    shutil.copytree(whole, done)
    before = or_nothing(verb.state, FormatError)(done)
    verb.run(done)
    after, dice, killed = verb.state(done), random.Random(seed), 0
    shutil.copytree(whole, tmp_path / "counted")
    traced(name, tmp_path / "counted", "", tmp_path / "calls")
    calls = calls_of((tmp_path / "calls").read_text())
    chosen = sorted(dice.sample(range(len(calls)), min(10 if soak else 2, len(calls))))
    for at in chosen:
        image, (call, number) = tmp_path / f"{at:04}", calls[at]
        shutil.copytree(whole, image)
        killed += traced(name, image, f"inject={call}:signal=KILL:when={number}") == -SIGKILL
        check_image(name, verb, image, before, after)
    print(f"{name}: killed {killed} times, in {len(calls)} calls")
    assert killed >= len(chosen) - 2, "how often it calls the system is not the same each time"


def calls_of(trace: str) -> list[tuple[str, int]]:
    """The calls of the thread that makes the most of them: which, and the how manieth of its kind,
    as strace counts. The last tenth, of which there may be fewer the next time, is left out."""
    found: dict[str, list[tuple[str, int]]] = {}
    counts: Counter[tuple[str, str]] = Counter()
    for thread, call in re.findall(r"^(\d+) +(\w+)\(", trace, re.MULTILINE):
        if call not in SYSTEM_CALLS.split(","):  # those that strace does not know
            continue
        counts[thread, call] += 1
        found.setdefault(thread, []).append((call, counts[thread, call]))
    calls = max(found.values(), key=len)
    return calls[: len(calls) * 9 // 10 + 1]


def traced(name: str, image: Path, what: str, output: Path = Path(os.devnull)) -> int:
    """Run a verb alone under strace -> its exit status, -SIGKILL where it was killed."""
    alone = [sys.executable, "-c", ALONE, name, os.fspath(image), *map(str, FOLDERS)]
    command = ["strace", "-f", "-qq", "-o", output, "-e", f"trace={SYSTEM_CALLS}"]
    command += [*(["-e", what] if what else []), *alone]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    images = distinct = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        for verb in sys.argv[3:] or VERBS:
            with tempfile.TemporaryDirectory(dir=MEMORY) as place:
                try:
                    more = check_stops(verb, number, Path(place), slice(None), VERIFIED)
                    images, distinct = images + more.images, distinct + more.distinct
                except Exception as error:
                    print(f"{verb}, seed {number}: {error!r:.500}")
                    traceback.print_exc()
        print(f"{images} images, {distinct} distinct, up to seed {number}", flush=True)
