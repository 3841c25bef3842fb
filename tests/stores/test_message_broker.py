"""A message store in the folder of a broker: what is left alone, and what is reported."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from commands import Run, run
from folders import untouched
from refusals import all_raise

from winkformats.messagestore import rdq
from winkformats.messagestore.index import ids_of
from winkfs.errors import Refusal
from winkfs.stores.messagestore.records import migrate, verify
from winkfs.stores.messagestore.store import MessageStore

pytestmark = pytest.mark.in_memory
__all__ = ["run"]
TERM = b"\x83m\0\0\1\0"
DUMPS = ("clean.dot", "file_summary.ets", "msg_store_index.ets")


def id_of(number: int) -> bytes:
    return number.to_bytes(16)


def record(number: int) -> bytes:
    return rdq.record(id_of(number), TERM + bytes([number]) * 256)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a broker leaves it that was killed."""
    found = tmp_path / "msg_store_persistent"
    found.mkdir()
    for number in range(3):
        rows = [record(i) for i in range(number * 9 + 1, number * 9 + 10)]
        (found / f"{number}.rdq").write_bytes(b"".join(rows))
    return found


@pytest.mark.parametrize("left", [(), *((name,) for name in DUMPS), DUMPS])
def test_a_folder_of_a_broker_is_not_changed_without_force(
    folder: Path, tmp_path: Path, run: Run, left: tuple[str, ...]
) -> None:
    for name in left:
        (folder / name).write_bytes(b"no dump")
    (tmp_path / "keep").write_text(f"{id_of(1).hex()}\n{id_of(20).hex()}\n")
    (tmp_path / "body").write_bytes(b"x")
    with untouched(folder):
        for change in (
            ("store", "rm", folder, id_of(1).hex()),
            ("store", "compact", folder),
            ("store", "migrate", folder),
            ("store", "put", folder, tmp_path / "body"),
            ("fct", "compact", folder / "0.rdq", "--keep", tmp_path / "keep"),
        ):
            done = run(*change)
            assert (done.status, len(done.err.splitlines())) == (1, 1), change
            assert "a folder of RabbitMQ" in done.err and "--force" in done.err
            assert ".sqs" in done.err or change[1] != "migrate"
        all_raise(
            Refusal,
            (lambda: MessageStore(str(folder), "a"), lambda: migrate(str(folder))),
            "force=True",
        )
        for look in ("ls", "stats", "verify"):
            assert run("store", look, folder).status == 0


@pytest.mark.parametrize("change", ["rm", "compact", "migrate", "put", "fct"])
def test_with_force_the_broker_s_index_is_put_aside_first(
    folder: Path, tmp_path: Path, run: Run, change: str
) -> None:
    (folder / "clean.dot").write_bytes(b"{client_refs,[]}.\n")
    (tmp_path / "keep").write_text("".join(f"{id_of(i).hex()}\n" for i in (2, 3, 20)))
    (tmp_path / "body").write_bytes(b"x")
    command = {
        "rm": ("store", "rm", folder, *(id_of(i).hex() for i in range(10, 19))),
        "put": ("store", "put", folder, tmp_path / "body"),
        "fct": ("fct", "compact", folder / "0.rdq", "--keep", tmp_path / "keep"),
    }.get(change, ("store", change, folder))
    done = run(*command, "--force")
    assert done.status == 0, done.err
    assert ("no released version of RabbitMQ reads" in done.err) == (change == "migrate")
    assert not (folder / "clean.dot").exists()
    assert (folder / "clean.dot.old").read_bytes() == b"{client_refs,[]}.\n"
    if change == "rm":
        assert not (folder / "1.rdq").exists()
    if change == "fct":
        assert (folder / "0.rdq").read_bytes() == record(3) + record(2)


def test_force_is_for_the_folders_of_a_broker_alone(tmp_path: Path, run: Run) -> None:
    box, other = str(tmp_path / "box"), str(tmp_path / "log")
    for path, kind in ((box, "message"), (other, "log")):
        assert run("store", "create", path, "--kind", kind).status == 0
    assert run("store", "compact", box).status == 0  # one of ours
    done = run("store", "compact", other, "--force")
    assert (done.status, "not for a log store" in done.err) == (2, True)


def test_a_list_of_a_whole_store_keeps_what_is_in_the_segment(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "keep").write_text("".join(f"{id_of(i).hex()}\n" for i in (2, 9, 20, 77)))
    done = run("fct", "compact", folder / "0.rdq", "--keep", tmp_path / "keep", "--force")
    assert done.status == 0, done.err
    (tmp_path / "keep").write_text(f"{id_of(77).hex()}\n")
    done = run("fct", "compact", folder / "1.rdq", "--keep", tmp_path / "keep", "--force")
    assert done.status == 1 and "none of the messages listed" in done.err
    with MessageStore(str(folder)) as store:
        assert [i for i in range(30) if id_of(i) in store] == [2, 9, *range(10, 28)]


def test_damage_of_version_1_is_reported_kept_and_costs_itself(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    torn, size = folder / "0.rdq", len(record(1))
    torn.write_bytes(torn.read_bytes()[:-100])
    damaged = bytearray((folder / "1.rdq").read_bytes())
    damaged[0] = 9
    (folder / "1.rdq").write_bytes(damaged)
    done = run("store", "verify", folder)
    assert done.status == 1
    assert f"0.rdq: bytes {8 * size} to {9 * size - 100} are no message" in done.out.decode()
    assert f"1.rdq: bytes 0 to {size} are no message" in done.out.decode()
    done = run("store", "salvage", folder, tmp_path / "saved", "--json")
    assert done.status == 1 and f'"lost_bytes": {2 * size - 100}' in done.out.decode()
    with MessageStore(str(tmp_path / "saved")) as store:
        assert len(store) == 25
    with MessageStore(str(folder), "a", force=True) as store:
        store.remove_many(id_of(i) for i in range(11, 18))
        assert store.compact().problems == () and len(store) == 18
    assert (folder / "1.rdq.cut").read_bytes() == damaged[:size]  # where a message went since
    assert (folder / "0.rdq.cut").read_bytes() == record(9)[:-100]
    done = run("fct", "compact", torn, "--keep", os.devnull, "--force")
    assert done.status == 1 and "nothing was changed" in done.err
    done = run("fct", "scan", torn)
    assert done.status == 0 and len(done.out.splitlines()) == 8
    assert "are no message" in done.err


# --- after a clean shutdown: files that RabbitMQ 3.10.8 wrote ---

CLEAN = Path(__file__).parents[1] / "golden" / "messagestore" / "broker-clean"
WANTED = json.loads((CLEAN / "manifest.json").read_text())["refs"]
ALL = {f"{number:03d}": 1 for number in range(13)}


def held(path: Path) -> tuple[dict[str, int], list[str]]:
    """-> references of the messages by what is in their bodies, and the problems."""
    with MessageStore(str(path)) as store:
        rows = store.rows()
        found = {}
        for msg_id, refs in zip(ids_of(rows), rows.refs.tolist(), strict=True):
            body = store.read(msg_id)
            at = body.index(b"number ") + 7
            found[body[at : at + 3].decode()] = refs
        return found, store.problems


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return shutil.copytree(CLEAN, tmp_path / "clean")


def test_after_a_clean_shutdown_consumed_messages_are_not_back(
    clean: Path, tmp_path: Path, run: Run
) -> None:
    assert held(clean) == (WANTED, [])
    assert run("store", "verify", clean).status == 0
    assert b"broker_index: read" in run("store", "stats", clean).out
    assert run("store", "salvage", clean, tmp_path / "saved").status == 0
    assert held(tmp_path / "saved") == (WANTED, [])
    with MessageStore(str(clean), "a", force=True) as store:
        gone = next(iter(ids_of(store.rows())))
        store.remove(gone)
    left, problems = held(clean)  # by an index of ours
    assert len(left) == len(WANTED) - 1 and left.items() <= WANTED.items() and problems == []
    os.rename(clean / "clean.dot.old", clean / "clean.dot")  # a broker was here since
    assert held(clean) == (WANTED, [])
    with MessageStore(str(clean), "a", force=True) as store:
        assert set(store.rows().refs.tolist()) == {1, 3}
    assert held(clean) == (WANTED, [])


def test_live_ids_and_references_need_no_list(clean: Path, run: Run) -> None:
    """Without a list of them: they are those of the broker."""
    rows = [json.loads(line) for line in run("store", "ls", clean, "--json").out.splitlines()]
    assert sorted(row["refs"] for row in rows) == sorted(WANTED.values())
    facts = json.loads(run("store", "compact", clean, "--force", "--json").out)
    dead = ALL.keys() - WANTED.keys()
    assert facts["bytes_before"] - facts["bytes_after"] == len(dead) * len(rows_of("0.rdq")[0])
    assert held(clean) == (WANTED, [])


def rows_of(name: str) -> list[bytes]:
    """The records of a segment of the broker, which are all of one size."""
    data = (CLEAN / name).read_bytes()
    size = int.from_bytes(data[:8]) + 9
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("name", ["msg_store_index.ets", "file_summary.ets", "clean.dot"])
def test_a_broker_s_index_that_is_gone_is_not_believed(clean: Path, name: str) -> None:
    os.unlink(clean / name)
    assert held(clean) == (ALL, [])
    with MessageStore(str(clean)) as store:
        assert ("is not read" in store.stats().get("broker_index", "")) == (name != "clean.dot")


def test_segments_unlike_those_of_the_broker_are_reported(clean: Path) -> None:
    with (clean / "2.rdq").open("ab") as file:
        file.write(record(200))
    with MessageStore(str(clean)) as store:
        assert "segment 2 is not as the broker left it" in store.stats()["broker_index"]
        assert id_of(200) in store and store.problems == []
    assert "segment 2 is not as" in verify(str(clean)).notes[0]
    os.unlink(clean / "1.rdq")
    with MessageStore(str(clean)) as store:
        assert "segment 1 is missing: 5 messages are lost" in store.problems[0]


@pytest.mark.slow
def test_damage_in_a_broker_s_index_is_one_line_or_less(clean: Path) -> None:
    """No crash; and no message that is held is away without a line."""
    rng = random.Random(5)
    for name in ("msg_store_index.ets", "file_summary.ets"):
        raw = (clean / name).read_bytes()
        for _ in range(150):
            data = bytearray(raw)
            at = rng.randrange(len(data))
            data[at] = rng.choice((0, 1, 3, 97, 98, 104, 127, 255, data[at] ^ 1))
            (clean / name).write_bytes(data[: rng.choice((len(data), len(data), at))])
            with MessageStore(str(clean)) as store:
                assert len(store) >= len(WANTED) or store.problems
                assert len(store) == len(WANTED) or store.stats()["broker_index"] != "read"
        (clean / name).write_bytes(raw)
