"""kill -9 at any moment, and derived files that are lost, cut, foreign, stale or unreadable.

WINKFS_KILLS is how many processes each test kills. A kill leaves what the kernel has: power cuts
are another matter.
"""

import json
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from container_checks import (
    VARIANTS,
    assert_sound,
    child,
    contents,
    contents_of,
    copy_files,
    path_of,
)
from folders import MEMORY
from oracle_read import check
from seam import disk_calls
from stored import make

import winkfs

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]

KILLS = int(os.environ.get("WINKFS_KILLS", "2"))
Model = dict[bytes, bytes]


# --- kill -9 ------------------------------------------------------------------------------------

PUT_MANY = """
import json, random, sys, winkfs
base, seed = sys.argv[1], int(sys.argv[2])
dice = random.Random(seed)
with winkfs.open(base, "a") as c:
    for batch in range(100_000):
        new = {f"{seed}.{batch}.{i}": f"{batch}.{i}." * (i % 90)
               for i in range(dice.choice([1, 10, 40, 200]))}
        if batch % 5 == 4:
            new |= {f"again.{i}": f"{batch}." * i for i in range(50)}
        c.put_many((n, t.encode()) for n, t in new.items())
        print(json.dumps(new), flush=True)  # what this sync is going to make durable
        c.sync()
        print("synced", flush=True)
"""

MIXED = """
import json, random, sys, winkfs
base, seed = sys.argv[1], int(sys.argv[2])
dice = random.Random(seed)
with winkfs.open(base, "a") as c:
    files = {n: c.read(n).decode() for n in c.names()}
    for turn in range(100_000):
        old = dict(files)
        for _ in range(dice.choice([1, 5, 40])):
            name, text = f"n{dice.randrange(60)}", f"<{turn}>" * dice.choice([0, 1, 60, 9000])
            verb = dice.choice(["put", "append", "delete", "rename", "write", "cut", "many"])
            if verb == "put" or (name not in files and verb != "many"):
                c.put(name, text.encode())
                files[name] = text
            elif verb == "append":
                c.append(name, text.encode())
                files[name] += text
            elif verb == "delete":
                c.delete(name)
                del files[name]
            elif verb == "rename":
                new = f"n{dice.randrange(60)}"
                c.rename(name, new)
                files[new] = files.pop(name)
            elif verb == "write":
                at = len(files[name]) // 2
                c.write(name, at, text.encode())
                files[name] = files[name][:at] + text + files[name][at + len(text):]
            elif verb == "cut":
                files[name] = files[name][: len(files[name]) // 2]
                c.truncate(name, len(files[name]))
            else:
                new = {f"n{dice.randrange(60)}": f"{i}" * dice.randrange(50) for i in range(30)}
                c.put_many((n, t.encode()) for n, t in new.items())
                files.update(new)
        names = [n for n in old | files if old.get(n) != files.get(n)]
        print(json.dumps({n: files.get(n) for n in names}), flush=True)  # null: deleted
        c.sync()
        print("synced", flush=True)
"""


PROGRAMS = {"put_many": PUT_MANY, "changes of all kinds": MIXED}


def killed(code: str, base: Path, seed: int, after: float) -> list[str]:
    """Run, kill -9 -> the lines it had written."""
    with child(code, base, str(seed)) as process:
        assert process.stdout
        first = process.stdout.readline()
        threading.Timer(after, process.kill).start()
        rest = process.stdout.read()
    assert process.returncode == -9
    lines = (first + rest).split(b"\n")
    return [line.decode() for line in lines[:-1]]  # what follows the last newline was cut


def changed(model: Model, line: str) -> Model:
    """The files after the changes that a line has."""
    changes = {name.encode(): text for name, text in json.loads(line).items()}
    kept = {name: data for name, data in model.items() if name not in changes}
    return kept | {name: text.encode() for name, text in changes.items() if text is not None}


def assert_recovers(base: Path) -> Model:
    """Opens at once, sound before and after a writer has been there -> what is in it."""
    began = time.monotonic()
    with winkfs.open(base) as reader:
        found = contents(reader)
        assert reader.notes == []
    assert time.monotonic() - began < 20
    assert winkfs.verify(base).problems == []
    tree = check(base, clean=False)
    assert {name: file.content for name, file in tree.files.items()} == found
    winkfs.open(base, "a").close()
    assert_sound(base, found)
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("program", "variant"),
    [
        ("put_many", "plain"),
        ("put_many", "classic"),
        ("put_many", "ao"),
        ("changes of all kinds", "plain"),
        ("changes of all kinds", "classic"),
    ],
)
def test_a_kill_loses_nothing_synced(program: str, variant: str, base: Path) -> None:
    """Life after life on the same container: each must show the last sync or the one under way."""
    winkfs.create(base, **VARIANTS[variant]).close()
    dice = random.Random()
    before: Model = {}
    for _ in range(KILLS):
        seed = dice.randrange(1 << 30)
        lines = killed(PROGRAMS[program], base, seed, dice.random() * 0.1)
        changes = [line for line in lines if line != "synced"]
        states = list(accumulate(changes, changed, initial=before))
        found = assert_recovers(base)
        synced = len(lines) - len(changes)
        assert found in states[synced : synced + 2], seed
        before = found


@pytest.mark.few(1)
@pytest.mark.parametrize("variant", [{}, {"classic": True}, {"ao": True}])
@pytest.mark.parametrize("index", ["of before", "none"])
def test_kill_between_two_delflags(
    index: str, variant: dict[str, bool], base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags of one sync reach the disk one by one; a writer finishes what is left of them."""
    copy = base.with_name("copy")
    make(base, {f"n{i}": b"%d" % i * 9 for i in range(8)}, **variant)
    with winkfs.open(base, "a") as writer:
        writer.put("n1", b"again")  # what it replaces lies below the index
        writer.put("tail", b"first")
        writer.sync()
        writer.put("tail", b"second")  # this inside the tail
        writer.put_many([("n2", b"x"), ("n2", b"y")])
        writer.delete("n3")
        if not variant.get("ao"):
            writer.rename("n4", "n5")
            writer.append("n6", b"+")
        with disk_calls() as calls:
            writer.sync()
        flags = [call.offset for call in calls if call.verb == "patch"]
        model = contents(writer)
        raw = path_of(base, ".data").read_bytes()
        derived = {s: path_of(base, s).read_bytes() for s in suffixes(base)}
    assert len(flags) >= 8
    for done in range(len(flags) + 1):
        lost = bytearray(raw)
        for pos in flags[done:]:
            lost[pos] = 0
        path_of(copy, ".data").write_bytes(lost)
        for suffix, data in derived.items():
            path_of(copy, suffix).write_bytes(data if index == "of before" else b"")
        assert assert_recovers(copy) == model, done


# --- derived files ------------------------------------------------------------------------------

FILES = 40


@pytest.fixture(scope="module", params=["plain", "md5", "classic", "ao", "classic ao"])
def made(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder with a container "c", its earlier state "old", and a stranger "other"."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        make_three(Path(folder), request.param)
        yield Path(folder)


def make_three(folder: Path, variant: str) -> None:
    ao = "ao" in variant
    htalgo = 1 if variant == "md5" else None
    options = {"ao": ao, "classic": "classic" in variant, "timemp": 10, "htalgo": htalgo}
    make(folder / "c", ((f"n{i}", b"old %d" % i, 3 * i) for i in range(FILES)), **options)
    for path in folder.glob("c.*"):
        shutil.copy(path, folder / f"old{path.suffix}")
    with winkfs.open(folder / "c", "a") as c:
        for i in range(0, FILES, 10):
            c.delete(f"n{i}")
        c.put_many((f"n{i}", b"new %d" % i, 120 + i) for i in range(1, FILES, 10))
        if not ao:
            for i in range(2, FILES, 10):
                c.rename(f"n{i}", f"moved{i}")
            for i in range(3, FILES, 10):
                c.append(f"n{i}", b"+")
    with winkfs.create(folder / "other", **options) as c:
        c.put_many((f"n{i}", b"other %d" % i, 3 * i) for i in range(FILES))
        for i in range(30):
            c.delete(f"n{i}")
        c.put_many((f"n{i}", b"other again", 400) for i in range(30))


def model_of(folder: Path) -> Model:
    return {name: file.content for name, file in check(folder / "c").files.items()}


@pytest.fixture
def c(made: Path, base: Path) -> Path:
    """A copy of "c", to be damaged."""
    copy_files(made, base.parent)
    return base


def suffixes(base: Path) -> Iterator[str]:
    for suffix in (".idx", ".time"):
        if path_of(base, suffix).exists():
            yield suffix


def assert_right_answers(base: Path, made: Path) -> None:
    """For a reader, then a writer; and the writer leaves a strictly right container."""
    model = model_of(made)
    with winkfs.open(base) as reader:
        assert contents(reader) == model
        assert "n0" not in reader
        since = [entry.name for entry in reader.scan(since=125)]
        assert since == [entry.name for entry in reader.scan() if entry.mtime >= 125]
        assert since
    with winkfs.open(base, "a") as writer:
        assert contents(writer) == model
        writer.put("n0", b"back")
    model[b"n0"] = b"back"
    assert_sound(base, model)


def damages() -> dict[str, Callable[[Path, Path, str], None]]:
    """(the container, the folder of others, the suffix) -> the damage done."""

    def rewrite(change: Callable[[bytes], bytes]) -> Callable[[Path, Path, str], None]:
        def apply(base: Path, _: Path, suffix: str) -> None:
            path = path_of(base, suffix)
            path.write_bytes(change(path.read_bytes()))

        return apply

    def replaced_by(other: str) -> Callable[[Path, Path, str], None]:
        def apply(base: Path, made: Path, suffix: str) -> None:
            shutil.copy(path_of(made / other, suffix), path_of(base, suffix))

        return apply

    def directory(base: Path, _: Path, suffix: str) -> None:
        path_of(base, suffix).unlink()
        path_of(base, suffix).mkdir()

    def dangling(base: Path, _: Path, suffix: str) -> None:
        path_of(base, suffix).unlink()
        path_of(base, suffix).symlink_to("nowhere")

    def the_other(base: Path, _: Path, suffix: str) -> None:
        swapped = {".idx": ".data", ".time": ".idx"}[suffix]
        shutil.copy(path_of(base, swapped), path_of(base, suffix))

    return {
        "missing": lambda base, _, suffix: path_of(base, suffix).unlink(),
        "empty": rewrite(lambda raw: b""),
        "zeros": rewrite(lambda raw: bytes(len(raw))),
        "ones": rewrite(lambda raw: b"\xff" * len(raw)),
        "text": rewrite(lambda raw: b"not an index\n" * 999),
        "cut in its superblock": rewrite(lambda raw: raw[:511]),
        "cut behind its superblock": rewrite(lambda raw: raw[:4104]),
        "cut by a byte": rewrite(lambda raw: raw[:-1]),
        "longer": rewrite(lambda raw: raw + b"garbage" * 999),
        "of another container": replaced_by("other"),
        "an older copy of itself": replaced_by("old"),
        "another file of the container": the_other,
        "a dangling link": dangling,
        "a directory": directory,
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("damage", damages())
def test_a_derived_file_that_is(damage: str, c: Path, made: Path) -> None:
    for suffix in suffixes(c):
        damages()[damage](c, made, suffix)
        if damage != "a directory":
            assert_right_answers(c, made)
            copy_files(made, c.parent)
            continue
        model = model_of(made)
        with winkfs.open(c) as reader:  # a reader needs no index
            assert contents(reader) == model
        path_of(c, suffix).rmdir()


@pytest.mark.few(1)
def test_both_derived_files_from_other_moments(c: Path, made: Path) -> None:
    for index in ("old", "other", "c"):
        for times in ("old", "other", "c"):
            copy_files(made, c.parent)
            shutil.copy(path_of(made / index, ".idx"), path_of(c, ".idx"))
            if path_of(c, ".time").exists():
                shutil.copy(path_of(made / times, ".time"), path_of(c, ".time"))
            assert_right_answers(c, made)


def test_an_older_data_file_under_a_newer_index(c: Path, made: Path) -> None:
    """The data file decides; what the index has of later days is not believed."""
    shutil.copy(path_of(made / "old", ".data"), path_of(c, ".data"))
    model = {b"n%d" % i: b"old %d" % i for i in range(FILES)}
    assert contents_of(c) == model
    assert contents_of(c, "a") == model
    assert_sound(c, model)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_an_unreadable_index(c: Path, made: Path) -> None:
    path_of(c, ".idx").chmod(0)
    assert_right_answers(c, made)


@pytest.mark.few(3)
def test_a_temporary_file_of_a_dead_writer_is_no_obstacle(c: Path, made: Path) -> None:
    for suffix in (".idx.tmp", ".time.tmp", ".data.tmp"):
        path_of(c, suffix).write_bytes(b"left over " * 99_999)
    assert_right_answers(c, made)
    winkfs.reindex(c)
    assert_sound(c, model_of(made) | {b"n0": b"back"})


@pytest.mark.few(3)
def test_a_writer_removes_an_unfinished_name_order(c: Path, made: Path) -> None:
    path_of(c, ".cat.tmp").write_bytes(b"left over " * 99_999)
    with winkfs.open(c):
        assert path_of(c, ".cat.tmp").exists()  # a reader leaves it: its writer may live
    winkfs.open(c, "a").close()
    assert not path_of(c, ".cat.tmp").exists()
    assert_right_answers(c, made)
