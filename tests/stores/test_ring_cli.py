"""`winkfs ring`, and what else works on such a buffer: ls, cat, info, verify, mounts, Spark."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from pathlib import Path

import commands
import pytest
from commands import PROGRAM, Run, listed, one_line, session
from flips import flip
from mounting import mounted
from sparking import SparkSession, load

import winkfs
from winkfs.stores.ringpage import Ring, create

pytestmark = pytest.mark.slow

run = commands.run  # a fixture


def pushed(run: Run, *bodies: bytes, name: str = "r", **options: int) -> list[str]:
    """-> the numbers."""
    if not Path(name).exists():
        create(name, **options)  # type: ignore[arg-type]
    for number, body in enumerate(bodies):
        Path(f"body{number}").write_bytes(body)
    return listed(run("ring", "push", name, *(f"body{n}" for n in range(len(bodies)))))


def test_listings_for_programs(run: Run) -> None:
    bodies = [b"%d" % n * 700 for n in range(9)]
    pushed(run, *bodies)
    before = Path("r").read_bytes()
    rows = [json.loads(line) for line in listed(run("ring", "ls", "r", "--json"))]
    for number, (row, body) in enumerate(zip(rows, bodies, strict=True)):
        assert list(row) == ["id", "offset", "page", "size", "sha256"]
        assert (row["id"], row["size"]) == (number, 700)
        assert row["sha256"] == hashlib.sha256(body).hexdigest()
        assert before[row["offset"] :][:2] == (700).to_bytes(2, "little")
        assert row["page"] == (row["offset"] - 4096) // 4096
    assert {row["page"] for row in rows} == {0, 1}
    head, *lines = listed(run("ring", "ls", "r"))
    assert head.split() == ["ID", "SIZE", "PAGE", "OFFSET", "SHA-256"]
    assert [line.split()[0] for line in lines] == [str(n) for n in range(9)]
    facts = json.loads(run("ring", "stats", "r", "--json").out)
    assert (facts["records"], facts["bytes"], facts["looped"]) == (9, 6300, False)
    assert facts["kind"] == json.loads(run("info", "r", "--json").out)["kind"] == "ring buffer"
    assert b"write_amplification: " in run("ring", "stats", "r").out
    found = [json.loads(line) for line in listed(run("ring", "peek", "r", "-a", "--json"))]
    assert Path("r").read_bytes() == before
    (first,) = (json.loads(line) for line in listed(run("ring", "pop", "r", "--json")))
    assert first == found[0] and list(first) == ["id", "offset", "page", "size", "payload_b64"]
    assert [base64.b64decode(row["payload_b64"]) for row in found] == bodies
    assert json.loads(listed(run("ring", "ls", "r", "--json"))[0])["id"] == 1


def test_options_of_create(run: Run) -> None:
    session(
        run,
        """
        $ ring create d
        d: 1024 pages of 4096 bytes, records of up to 4062 bytes, when full: overwrite
        $ ring create r --pages 3 --page-size 8K --record-size 100 --full refuse
        r: 3 pages of 8192 bytes, records of up to 100 bytes, when full: refuse
        """,
    )
    assert "a record of 101 bytes: the buffer takes 100" in one_line(
        run("ring", "push", "r", stdin=b"x" * 101)
    )
    done = run("ring", "push", "r", "--lines", stdin=b"x" * 99 + b"\n" + b"y\n" * 9000)
    assert done.status == 1 and "the buffer is full: pop some records" in done.err
    assert 5000 < len(done.out.split()) == run("ring", "pop", "r", "-a").out.count(b"y") + 1


@pytest.mark.parametrize(
    "arguments",
    [("create", "r", "--page-size", "5000"), ("create", "r", "--record-size", "5000"),
     ("create", "r", "--pages", "70000"), ("create", "c.data"), ("create", "no/such/folder"),
     ("create", "folder"), ("create", "text"), ("ls", "missing"), ("ls", "folder"), ("ls", "text"),
     ("pop", "text"), ("push", "/dev/null"), ("stats", "/dev/null"), ("peek", "fifo"),
     ("verify", "missing"), ("ls", "short"), ("verify", "both")],
)  # fmt: skip
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    Path("folder").mkdir()
    Path("text").write_text("hello\n")
    Path("short").write_bytes(b"WINKRING" + bytes(20))
    create("both")
    flip("both", 20)
    flip("both", 2048 + 20)
    os.mkfifo("fifo")
    done = run("ring", *arguments)
    assert done.status == 1 and len((done.err + done.out.decode()).splitlines()) <= 2, done
    assert "fault in winkfs" not in done.err
    if arguments != ("verify", "both"):
        one_line(done)


@pytest.mark.parametrize(
    "arguments",
    [("pop", "r", "-n", 0), ("create", "r", "--full", "maybe"), ("create", "r", "--pages", 1)],
)
def test_wrong_usage(run: Run, arguments: tuple[object, ...]) -> None:
    assert run("ring", *arguments).status == 2


def test_damage_is_reported_and_the_rest_is_written(run: Run) -> None:
    bodies = [b"%03d" % n * 300 for n in range(30)]
    pushed(run, *bodies)
    with Ring("r") as ring:
        spans = {record.body: record.page for record in ring.records()}
    flip("r", 4096 * 3 + 1000, bits=4)
    answer = "winkfs: r: page 2 is damaged at byte 12288\n"
    kept = [body for body in bodies if spans[body] not in (1, 2)]
    peeked = run("ring", "peek", "r", "--all")
    assert (peeked.status, peeked.err) == (1, answer)
    assert all(body in peeked.out for body in kept)
    for command in (("ring", "ls"), ("ls",), ("store", "ls")):
        done = run(*command, "r")
        assert (done.status, done.err) == (1, answer), command
    verify = run("ring", "verify", "r")
    assert verify.status == 1 and b"page 2 is damaged at byte 12288" in verify.out
    assert b"1 problem" in verify.out and run("verify", "r").status == 1
    popped = run("ring", "pop", "r", "--all")
    assert (popped.status, popped.out) == (1, peeked.out)


def test_a_torn_page_that_was_being_written_is_no_damage(run: Run) -> None:
    create("r", pages=4)
    with Ring("r", "a") as ring:
        ring.push_many([b"%03d" % n * 300 for n in range(30)])
    with Ring("r") as ring:
        following = ring.settings.offset(ring.pages.next)
    data = bytearray(Path("r").read_bytes())
    data[following + 600 : following + 4000] = bytes(3400)
    Path("r").write_bytes(data)
    done = run("ring", "verify", "r")
    assert done.status == 0 and b": sound\n" in done.out
    assert "which is written next, is torn or damaged" in done.err
    assert run("ring", "ls", "r").status == 0


def test_what_cannot_be_written_is_not_popped(run: Run, tmp_path: Path) -> None:
    pushed(run, *[b"x" * 4000] * 60)
    reader = subprocess.Popen(["head", "-c", "9"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    done = subprocess.run(
        [*PROGRAM, "ring", "pop", "r", "--all"], stdout=reader.stdin, stderr=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    assert reader.stdin is not None
    reader.stdin.close()
    reader.wait()
    assert done.returncode != 0
    assert len(listed(run("ring", "ls", "r", "--json"))) == 60


def test_a_killed_push_leaves_whole_records(run: Run) -> None:
    create("r", pages=1000)
    process = subprocess.Popen(
        [*PROGRAM, "ring", "push", "r", "--lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(b"".join(b"line %d\n" % n for n in range(100_000)))
    process.stdin.flush()
    process.kill()
    process.communicate()
    lines = run("ring", "pop", "r", "-a", "--lines").out.splitlines()
    assert lines == [b"line %d" % n for n in range(len(lines))]


def test_the_commands_for_any_store(run: Run) -> None:
    bodies = [b"%d" % n * 900 for n in range(9)]
    pushed(run, *bodies)
    run("ring", "pop", "r", "-n", 2)
    assert listed(run("ls", "r")) == [str(n) for n in range(2, 9)]
    assert run("cat", "r", "5").out == bodies[5]
    assert run("store", "cat", "r", "7", "2").out == bodies[7] + bodies[2]
    for missing in ("1", "9", "99999999999999999999", "x", "02"):
        assert run("store", "get", "r", missing).status == 1
    assert run("verify", "r").out == b"r: 7 files, 2 entries: sound\n"
    for command in ("put", "rm", "compact"):
        assert "can only be read" in one_line(
            run("store", command, "r", *["2"] * (command == "rm"))
        )
    assert "is for stores" not in run("store", "stats", "r").err
    with winkfs.open("r") as store:
        assert len(store) == 7 and store["3"] == bodies[3] and "1" not in store


@pytest.mark.mount
def test_a_mount_shows_the_records(run: Run, tmp_path: Path) -> None:
    bodies = [b"%d" % n * 900 for n in range(9)]
    pushed(run, *bodies)
    with mounted(tmp_path / "r", "--ro") as there:
        assert sorted(os.listdir(there)) == [str(n) for n in range(9)]
        assert [(there / str(n)).read_bytes() for n in range(9)] == bodies
        assert int(os.getxattr(there / "4", "user.winkfs.offset")) > 4096
        assert not (there / "9").exists() and not (there / "04").exists()


@pytest.mark.spark
def test_records_are_rows_and_are_ingested(run: Run, tmp_path: Path, spark: SparkSession) -> None:
    from winkfs.spark.jobs import ingest

    bodies = [b"%d" % n * 900 for n in range(50)]
    pushed(run, *bodies)
    rows = load(spark, tmp_path / "r", splitBytes="64k").collect()
    found = sorted((row.id, row.size, bytes(row.content)) for row in rows)
    assert found == [(n, len(body), body) for n, body in enumerate(bodies)]
    ingest.run(spark, [str(tmp_path / "r")], str(tmp_path / "set"))
    with winkfs.open(tmp_path / "set") as made:
        assert {name: made[name] for name in made.names()} == {
            str(n): body for n, body in enumerate(bodies)
        }
