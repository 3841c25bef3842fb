"""The message store over a directory, beside dicts; on this machine's disk."""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drawn import examples
from flips import flip, flipping
from message_lives import Life
from refusals import all_raise, each_raises, refuses
from seam import Call, Watch, disk_calls, once, refusing

import winkfs
from winkformats.errors import CorruptError
from winkformats.messagestore import rdq, sqs
from winkformats.messagestore.index import Place
from winkfs.errors import Closed, Locked, NoSuchFile, ReadOnly, Refusal
from winkfs.registry import kind_of
from winkfs.stores.messagestore.records import salvage, verify
from winkfs.stores.messagestore.store import MessageStore, create

pytestmark = pytest.mark.in_memory


@functools.cache  # a seed costs more than the message that is looked up
def id_of(number: int) -> bytes:
    return random.Random(number).randbytes(16)


def body_of(number: int) -> bytes:
    return b"%d " % number * (number % 300)


@pytest.fixture
def path(tmp_path: Path) -> str:
    create(str(tmp_path / "s"))
    return str(tmp_path / "s")


@pytest.fixture
def version_1(path: str) -> str:
    """20 segments of version 1, with 15 messages each."""
    shutil.rmtree(path)
    os.mkdir(path)
    for number in range(20):
        write_rdq(path, number, range(number * 15, number * 15 + 15))
    return path


def write_rdq(path: str, number: int, messages: range, gap: bytes = b"") -> None:
    rows = [rdq.record(id_of(i), body_of(i)) for i in messages]
    Path(path, f"{number}.rdq").write_bytes(gap.join(rows))


@pytest.fixture
def filled(path: str, request: pytest.FixtureRequest) -> str:
    """300 messages in segments of a version."""
    if request.param == 1:
        request.getfixturevalue("version_1")
    else:
        fill(path, range(300))
    return path


@pytest.fixture
def segments(monkeypatch: pytest.MonkeyPatch) -> None:
    Life.small(monkeypatch)


def fill(path: str, numbers: Iterator[int] | range, **options: object) -> None:
    with MessageStore(path, "a", **options) as store:  # type: ignore[arg-type]
        store.write_many((id_of(i), body_of(i)) for i in numbers)


def place_of(store: MessageStore, msg_id: bytes) -> Place:
    place = store.place(msg_id)
    assert place is not None
    return place


def content(store: MessageStore, most: int = 1000) -> set[int]:
    """The numbers whose messages are there; their bodies are right."""
    there = [i for i in range(most) if id_of(i) in store]
    assert store.read_many([id_of(i) for i in there]) == [body_of(i) for i in there]
    assert len(store) == len(there)
    return set(there)


def shows(path: str, numbers: set[int], mode: str = "r") -> None:
    """Fail unless a new handle finds these messages, and no damage."""
    with MessageStore(path, mode) as store:
        assert content(store) == numbers
        assert store.problems == []


def segment_files(path: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.endswith((".sqs", ".rdq")))


# --- what one caller sees ---


def test_references_are_counted_and_the_first_body_stays(path: str) -> None:
    with MessageStore(path, "a") as store:
        store.write(b"a" * 16, b"body")
        store.write(b"a" * 16, b"another")
        store.write_many([(b"a" * 16, b"")] * 3)
        assert store.read(b"a" * 16) == b"body"
        assert place_of(store, b"a" * 16).refs == 5
        store.remove_many([b"a" * 16] * 4)
        assert b"a" * 16 in store
    with MessageStore(path, "a") as store:
        assert store.read(b"a" * 16) == b"body"
        store.remove(b"a" * 16)
        assert b"a" * 16 not in store and len(store) == 0
        all_raise(
            NoSuchFile,
            (lambda: store.read(b"a" * 16), lambda: store.remove(b"a" * 16)),
            (b"a" * 16).hex(),
        )
        store.write(b"a" * 16, b"new")
        assert store.read(b"a" * 16) == b"new"
    with MessageStore(path) as store:
        assert store.read(b"a" * 16) == b"new"


def test_a_segment_that_was_cut_gives_no_short_bodies(path: str) -> None:
    fill(path, range(100))
    with MessageStore(path) as store:
        ids = [id_of(i) for i in range(100)]
        assert store.read_many(ids) == [body_of(i) for i in range(100)]
        place = place_of(store, id_of(99))
        os.truncate(f"{path}/{place.file}.sqs", place.offset + place.size - 1)
        assert store.read_many(ids[:99]) == [body_of(i) for i in range(99)]
        all_raise(
            CorruptError,
            (lambda: store.read_many(ids[98:]), lambda: [store.read(one) for one in ids[98:]]),
            "no message",
        )


def test_wrong_arguments_change_nothing(path: str) -> None:
    with MessageStore(path, "a") as store:
        all_raise(
            ValueError,
            (
                lambda: store.write(b"short", b""),
                lambda: store.write_many([(b"x" * 16, b""), (b"y" * 17, b"")]),
                lambda: store.remove(b""),
                lambda: store.read(b"x" * 15),
                lambda: b"x" in store,
            ),
            "16 bytes",
        )
        assert len(store) <= 1
    each_raises(
        (ValueError, "mode", lambda: MessageStore(path, "w")),
        (NoSuchFile, "no message store", lambda: MessageStore(os.path.dirname(path))),
        (Refusal, "not empty", lambda: create(path)),
    )


def test_bodies_that_change_behind_a_write_are_kept_as_they_were(path: str) -> None:
    with MessageStore(path, "a") as store:
        body = bytearray(b"first")
        store.write(b"a" * 16, body)
        store.write_many([(b"b" * 16, body), (b"c" * 16, memoryview(body))])
        body[:] = b"later"
        assert store.read_many([b"a" * 16, b"b" * 16, b"c" * 16]) == [b"first"] * 3


def test_only_one_handle_may_write(path: str) -> None:
    with MessageStore(path, "a") as store, MessageStore(path) as reader:
        with pytest.raises(Locked, match=f"this process, {os.getpid()}"):
            MessageStore(path, "a")
        all_raise(
            ReadOnly, (lambda: reader.write(b"a" * 16, b""), reader.sync, lambda: reader.compact())
        )
    all_raise(Closed, (lambda: store.write(b"a" * 16, b""), lambda: store.read(b"a" * 16)))


@pytest.mark.usefixtures("segments")
def test_segments_roll_large_bodies_are_alone_and_empty_ones_go(path: str) -> None:
    with MessageStore(path, "a") as store:
        store.write_many((id_of(i), body_of(i)) for i in range(300))
        large = b"L" * 16
        store.write(large, bytes(3500))
        place = place_of(store, large)
        assert place.offset == sqs.START
        store.sync()
        sizes = {name: os.path.getsize(f"{path}/{name}") for name in segment_files(path)}
        assert sizes[f"{place.file}.sqs"] == sqs.START + 21 + 3500
        assert 40 > len(sizes) > 10 and max(sizes.values()) < 6000 + 21 + 300 * 4
        before = set(segment_files(path))
        with disk_calls() as calls:
            store.remove(large)
        assert before - set(segment_files(path)) == {f"{place.file}.sqs"}  # at once, unread
        assert not [call for call in calls if call.verb == "read"]
        store.remove_many(id_of(i) for i in range(300))
        assert len(segment_files(path)) <= 1
    shows(path, set())


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("filled", [1, 2], indirect=True)
def test_compaction_reclaims_and_keeps(filled: str) -> None:
    path = filled
    with MessageStore(path, "a", force=True) as store:
        gone = [i for i in range(300) if i % 3]
        store.remove_many(map(id_of, gone))
        planned = store.compact(dry_run=True)
        before = store.stats()["disk_bytes"]
        done = store.compact()
        assert planned == done and done.files > 10 and done.moved > 10 and done.problems == ()
        assert before - store.stats()["disk_bytes"] == done.before - done.after > before // 3
        assert content(store, 300) == set(range(0, 300, 3))
        store.abort()
    for mode in "r", "a", "r":
        shows(path, set(range(0, 300, 3)), mode)
    assert verify(path).problems == []


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize(
    ("filled", "places"), [(1, (1, 10, -1)), (2, (1, 10))], indirect=["filled"]
)
def test_a_segment_with_damaged_messages_is_not_compacted(
    filled: str, places: tuple[int, ...]
) -> None:
    """A message whose head is wrong would lead a scan astray at its new place."""
    path = filled
    with MessageStore(path, "a", force=True) as store:
        where = {i: place_of(store, id_of(i)) for i in range(300)}
        first = next(name for name in segment_files(path) if name.startswith("0."))
        inside = [i for i, place in where.items() if place.file == 0]
        store.remove_many(map(id_of, inside[:-1]))
        store.sync()
        last = where[inside[-1]]
        file, size = Path(path, first), Path(path, first).stat().st_size
        for at in places:
            with flipping(file, last.offset + at % last.size):
                before = file.read_bytes()
                for dry_run in True, False:
                    done = store.compact(dry_run=dry_run)
                    (line,) = done.problems
                    assert f"{first}: 1 messages are none, {id_of(inside[-1]).hex()}" in line
                assert file.read_bytes() == before
        assert store.compact().problems == () and file.stat().st_size < size // 3
        assert store.read(id_of(inside[-1])) == body_of(inside[-1])


@pytest.mark.parametrize("kept", [0, 3])
def test_the_segment_that_grows_is_compacted_too(path: str, kept: int) -> None:
    with MessageStore(path, "a") as store:
        store.write_many((id_of(i), body_of(i)) for i in range(100))
        store.remove_many(id_of(i) for i in range(kept, 100))
        assert store.compact().files == (1 if kept else 0)
        assert store.stats()["dead_bytes"] == 0
        store.write(id_of(200), body_of(200))
        assert content(store) == {*range(kept), 200}
    shows(path, {*range(kept), 200})


@pytest.mark.usefixtures("segments")
def test_migration_leaves_no_segment_of_version_1(path: str) -> None:
    shutil.rmtree(path)
    os.mkdir(path)
    for number in range(5):
        write_rdq(path, number, range(number * 40, number * 40 + 40), b"\0" * 9)
    with MessageStore(path, "a", force=True) as store:
        assert store.core.last_v1_file == 4
        store.write(id_of(0), b"")  # one more reference
        store.write(id_of(500), body_of(500))
        store.remove_many(map(id_of, range(0, 200, 4)))
        reported: list[int] = []
        assert store.migrate(reported.append) == 5 and len(reported) == 5
        assert store.core.last_v1_file is None and place_of(store, id_of(0)).refs == 1
        wanted = {i for i in range(200) if i % 4} | {0, 500}
        assert content(store) == wanted
        store.abort()
    assert all(name.endswith(".sqs") for name in segment_files(path))
    shows(path, wanted, "a")
    assert verify(path).problems == []


@pytest.mark.parametrize("sync", ["none", "interval", "always"])
def test_what_is_durable_is_confirmed_by_name(path: str, sync: str) -> None:
    answer: list[bytes] = []
    with MessageStore(path, "a", sync=sync, interval=0.01, confirm=answer.extend) as store:  # type: ignore[arg-type]
        store.write(id_of(1), b"1")
        store.write_many([(id_of(2), b"2"), (id_of(3), b"3")])
        if sync == "interval":
            deadline = time.monotonic() + 10
            while len(answer) < 3 and time.monotonic() < deadline:
                time.sleep(0.01)
        elif sync == "none":
            assert answer == []
            store.sync()
        assert answer == [id_of(1), id_of(2), id_of(3)]


# --- threads and processes ---


@pytest.mark.slow
@pytest.mark.usefixtures("segments")
def test_a_reader_follows_a_writer_of_another_process(path: str) -> None:
    fill(path, range(100))
    code = (
        "import sys, time, pytest; sys.path[:0] = sys.argv[2:]\n"
        "from message_lives import Life\n"
        "from test_message_store import id_of, body_of\n"
        "from winkfs.stores.messagestore.store import MessageStore\n"
        "Life.small(pytest.MonkeyPatch())\n"
        "store = MessageStore(sys.argv[1], 'a', sync='interval', interval=0.002)\n"
        "for i in range(100, 500):\n"
        "    store.write(id_of(i), body_of(i))\n"
        "    if i % 4: store.remove(id_of(i - 100))\n"
        "    if i % 50 == 0: store.compact()\n"
        "    time.sleep(0.001)\n"
        "store.close()\n"
    )
    here = Path(__file__).parent
    places = [str(here), str(here.parent), *sys.path]
    command = [sys.executable, "-c", code, path, *places]
    with subprocess.Popen(command) as writer, MessageStore(path) as reader:
        changes = reads = 0
        while writer.poll() is None:
            changes += reader.refresh()
            numbers = [i for i in range(500) if id_of(i) in reader]
            for i in random.sample(numbers, min(20, len(numbers))):
                try:
                    assert reader.read(id_of(i)) == body_of(i)
                    reads += 1
                except NoSuchFile:
                    pass
            time.sleep(0.005)
        reader.refresh()
        wanted = {i for i in range(500) if not (i < 400 and (i + 100) % 4)}
        assert content(reader) == wanted and reader.problems == []
        assert writer.returncode == 0 and changes > 3 and reads > 100


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_message_that_moves_while_it_is_read_is_read_again(path: str, mode: str) -> None:
    fill(path, range(200))
    with MessageStore(path, "a") as store:
        store.core.roll()  # the other segment is closed
        reader = store if mode == "a" else MessageStore(path)
        last = max(range(200), key=lambda i: place_of(store, id_of(i)).offset)
        store.remove_many(id_of(i) for i in range(150) if i != last)

        def compact() -> None:
            before = store.place(id_of(last))
            assert store.compact().files == 1 and store.place(id_of(last)) != before

        with disk_calls(once("read", "0.sqs", compact)):
            assert reader.read(id_of(last)) == body_of(last)
        with disk_calls(once("read", "0.sqs", lambda: store.remove(id_of(last)))):
            found = reader.read_many([id_of(last), id_of(199)])
        assert found == [body_of(last), body_of(199)]
        reader.close()


# --- damage and faults ---


def test_a_full_disk_loses_nothing_that_was_taken(path: str) -> None:
    taken = []
    with MessageStore(path, "a") as store:
        store.write(id_of(9001), body_of(9001))
        with disk_calls(refusing("write", ".sqs", errno.ENOSPC)):
            for i in range(3000):
                try:
                    store.write(id_of(i), body_of(i))
                    taken.append(i)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            with pytest.raises(OSError, match="space"):
                store.sync()
        assert 0 < len(taken) < 3000
        store.sync()
        assert store.read_many(list(map(id_of, taken))) == list(map(body_of, taken))
    with MessageStore(path) as store:
        assert content(store, 9002) == {*taken, 9001}


@pytest.mark.in_memory
@pytest.mark.slow
def test_flips_of_messages_with_checksums_are_no_wrong_bodies(path: str, soak: bool) -> None:
    fill(path, range(200), checksums=True)
    files = [file for file in Path(path).iterdir() if file.stat().st_size]
    rng, reported = random.Random(7), 0
    for _ in range(20_000 if soak else examples(300)):
        file = rng.choice(files)
        at, mask = rng.randrange(file.stat().st_size), 1 << rng.randrange(8)
        with flipping(file, at, bits=mask), MessageStore(path) as store:
            there = [i for i in range(200) if id_of(i) in store]
            for i in there:
                try:
                    assert store.read(id_of(i)) == body_of(i), (file, i)
                except CorruptError:
                    reported += 1
            reported += len(there) < 200
            assert len(there) == 200 or store.problems, file
    assert reported > examples(60)


@pytest.mark.few(2)
@pytest.mark.in_memory
@pytest.mark.slow
@pytest.mark.parametrize("name", ["index", "refs", "0.sqs", "0.rdq"])
def test_hostile_bytes_are_one_line_or_less(path: str, name: str) -> None:
    """Integers of all sizes anywhere: no crash, no hang, no other error."""
    fill(path, range(40))
    if name == "0.rdq":
        write_rdq(path, 0, range(40))
        for other in ("0.sqs", "index"):
            os.unlink(f"{path}/{other}")
    with MessageStore(path, "a") as store:
        store.remove_many(map(id_of, range(0, 40, 2)))
        store.sync()
        store.abort()
    file = next(Path(path).glob(f"{name}*"))
    raw, rng = file.read_bytes(), random.Random(3)
    started = time.monotonic()
    for _ in range(150):
        changed = bytearray(raw)
        at = rng.randrange(max(len(raw) - 8, 1))
        width, order = rng.choice((1, 2, 4, 8)), rng.choice(("big", "little"))
        value = rng.choice(
            (0, 1, 2, 3, 4, 255, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
        )
        changed[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, order)
        file.write_bytes(changed)
        with MessageStore(path) as store:
            for row in store.core.index.rows():
                assert len(row.file)
            for i in range(40):
                try:
                    store.read(id_of(i))
                except (NoSuchFile, CorruptError):
                    continue
        verify(path)
    file.write_bytes(raw)
    assert time.monotonic() - started < 60


def test_a_torn_end_is_cut_kept_and_reported(path: str) -> None:
    fill(path, range(20))
    for name in ("index", *(n for n in os.listdir(path) if n.startswith("refs."))):
        os.unlink(f"{path}/{name}")
    with Path(path, "0.sqs").open("ab") as file:
        file.write(b"\xffgarbage behind it")
    with MessageStore(path) as store:  # a reader changes nothing
        assert content(store) == set(range(20)) and "unrecognised record type" in store.problems[0]
    with MessageStore(path, "a", force=True) as store:
        assert content(store) == set(range(20)) and any(".cut" in p for p in store.problems)
    assert Path(path, "0.sqs.cut").read_bytes() == b"\xffgarbage behind it"
    shows(path, set(range(20)), "a")


def test_symbolic_links_and_numbers_that_come_twice_are_refused(path: str, tmp_path: Path) -> None:
    fill(path, range(5))
    (tmp_path / "away").write_bytes(b"x")
    os.symlink(tmp_path / "away", f"{path}/7.sqs")
    with pytest.raises(Refusal, match="symbolic link"):
        MessageStore(path, "a")
    os.unlink(f"{path}/7.sqs")
    Path(path, "0.rdq").touch()
    with pytest.raises(Refusal, match="remove one of them"):
        MessageStore(path)


def test_salvage_finds_what_is_whole(path: str, tmp_path: Path) -> None:
    fill(path, range(100), checksums=True)
    with MessageStore(path, "a") as store:
        store.remove(id_of(99))
        damaged = [place_of(store, id_of(i)).offset + 1 for i in (20, 50)]
    for at in damaged:
        flip(f"{path}/0.sqs", at, bits=0x7F)  # its size leads nowhere
    assert len(verify(path).problems) >= 2
    found = salvage(path, str(tmp_path / "new"))
    assert found["messages"] == 97 and found["lost_messages"] == 2 and found["lost_bytes"] > 0
    shows(str(tmp_path / "new"), set(range(99)) - {20, 50})
    with pytest.raises(Refusal, match="not empty"):
        salvage(path, str(tmp_path / "new"))


# --- as any other store ---


def test_it_is_a_store_like_others(path: str) -> None:
    fill(path, range(30))
    assert kind_of(path)[0].name == "message store"
    with winkfs.open(path) as reader:
        found = {entry.name: entry.read() for entry in reader.scan()}
        assert found == {id_of(i).hex(): body_of(i) for i in range(30)}
        assert reader.stat(id_of(7).hex()).size == len(body_of(7))
        assert reader.read(id_of(9).hex(), 2, 3) == body_of(9)[2:5]
        refuses(
            reader.read, ("x", id_of(7).hex()[:-1], "zz" * 16, id_of(70).hex()), FileNotFoundError
        )
    report = winkfs.verify(path)
    assert report.files == 30 and report.problems == []


def killed_behind(verb: str, end: str) -> Watch:
    """Nothing is done any more behind a call."""
    seen: list[Call] = []

    def watch(call: Call) -> None:
        if seen:
            raise KeyboardInterrupt
        if call.verb == verb and call.path.endswith(end):
            seen.append(call)

    return watch


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("when", ["before its end", "when the index is replaced"])
def test_a_reader_goes_on_after_a_writer_that_was_killed(path: str, when: str) -> None:
    """Another writer has a journal of its own: the reader has to hear of that, too."""
    fill(path, range(300))
    first = MessageStore(path, "a")
    first.remove_many(map(id_of, range(0, 300, 7)))
    first.sync()
    with MessageStore(path) as reader:
        before = {i for i in range(300) if id_of(i) in reader}
        if when == "before its end":
            first.abort()
        else:
            with disk_calls(killed_behind("rename", "/index")), pytest.raises(KeyboardInterrupt):
                first.close()
        with MessageStore(path, "a") as second:
            second.remove_many(id_of(i) for i in before if i % 3)
            assert second.compact().moved > 10
            kept = {i for i in before if not i % 3}
            for i in kept:
                assert reader.read(id_of(i)) == body_of(i)
            reader.refresh()
            assert content(reader, 300) == kept and reader.problems == []


@pytest.mark.slow
@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("end", ["closed", "killed", "killed and compacted"])
def test_a_segment_that_is_gone_is_reported(path: str, end: str) -> None:
    """Also one of which only the journal, or the number of a later one, says that it was there."""
    fill(path, range(100))
    store = MessageStore(path, "a")
    store.write_many((id_of(i), body_of(i)) for i in range(100, 200))
    if end == "killed and compacted":
        store.remove_many(id_of(i) for i in range(200) if i % 5)
        assert store.compact().files > 5
    store.sync()
    store.close() if end == "closed" else store.abort()
    with MessageStore(path) as reader:
        assert reader.problems == [] and verify(path).problems == []
    files = segment_files(path)
    last = max(files, key=lambda name: int(name.partition(".")[0]))
    for name in files:
        raw = Path(path, name).read_bytes()
        os.unlink(f"{path}/{name}")
        number = name.partition(".")[0]
        if name != last or end != "killed":
            with MessageStore(path) as reader:
                assert f"segment {number} is missing" in reader.problems[0], name
            assert f"segment {number} is missing" in verify(path).problems[0]
        Path(path, name).write_bytes(raw)


def test_a_lost_index_is_reported_if_its_journal_is_left(path: str) -> None:
    fill(path, range(100))
    with MessageStore(path, "a") as store:
        store.remove(id_of(3))
        store.sync()
        store.abort()
    os.unlink(f"{path}/index")
    for problems in (MessageStore(path).problems, verify(path).problems):
        assert len(problems) == 1 and "index is missing: made again" in problems[0]
    with MessageStore(path, "a") as store:
        assert content(store) == set(range(100)) and store.problems
    assert verify(path).problems == []


def test_a_number_that_a_full_disk_took_is_not_missing(path: str) -> None:
    fill(path, range(10))
    with MessageStore(path, "a") as store:
        with disk_calls(refusing("write", "1.sqs", errno.ENOSPC)), pytest.raises(OSError):
            store.core.roll()
        store.core.roll()
        store.write(id_of(11), body_of(11))
        store.sync()
        store.abort()
    with MessageStore(path) as reader:
        assert id_of(11) in reader and reader.problems == []


@pytest.mark.usefixtures("segments")
@pytest.mark.parametrize("known", [False, True])
def test_a_reader_during_a_compaction_finds_no_dead_message(
    path: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It scans segments that it does not know yet, whose messages are about to move."""
    monkeypatch.setattr("winkfs.stores.messagestore.core.JOURNAL_BYTES", 1 << 20)  # no snapshot
    fill(path, range(3))
    with MessageStore(path, "a") as store, MessageStore(path) as reader:
        for i in range(3, 200):
            store.write(id_of(i), body_of(i))
            if known and i % 20 == 0:
                store.sync()
                reader.refresh()
        store.remove_many(id_of(i) for i in range(200) if i % 4)
        store.core.roll()
        refreshed = 0

        def look(call: Call) -> None:
            nonlocal refreshed
            if call.path.endswith(".sqs") and call.verb in ("write", "truncate"):
                refreshed += reader.refresh()  # not before: what will stay is in the journal

        with disk_calls(look):
            assert store.compact().moved > 10
        reader.refresh()
        assert refreshed > 1 and content(reader, 200) == set(range(0, 200, 4))
        assert reader.problems == []
