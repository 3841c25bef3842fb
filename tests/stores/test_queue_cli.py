"""`winkfs queue`: what it prints, who gets what, and what it does not change."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import PROGRAM, Done, Run, listed, one_line, session
from folders import untouched

from winkfs.cli.queue import queue
from winkfs.stores.ledgerq import Queue, create

pytestmark = pytest.mark.slow

run = commands.run  # a fixture
GOLDEN = Path(__file__).parents[1] / "golden" / "ledgerq"
MANIFEST: dict[str, list[dict[str, Any]]] = json.loads((GOLDEN / "manifest.json").read_text())
EMPTY = "winkfs: q: is empty: there is no message\n"
KEYS = [
    "id", "offset", "segment", "timestamp_ns", "priority", "expires_ns", "headers", "size",
    "sha256",
]  # fmt: skip


def objects(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def ids(done: Done) -> list[int]:
    return [row["id"] for row in objects(done)]


def lines(*numbers: int) -> bytes:
    return b"".join(b"line %d\n" % n for n in range(*numbers))


@pytest.fixture
def q(run: Run) -> None:
    """A queue in the folder of the commands."""
    assert run("queue", "create", "q") == (0, b"q: read by arrival\n", "")


@pytest.mark.parametrize(
    ("kind", "first", "record"), [("queue", 1, "message"), ("ring", 0, "record")]
)
def test_what_is_pushed_is_popped(run: Run, kind: str, first: int, record: str) -> None:
    def push(*args: str, stdin: bytes = b"") -> list[int]:
        numbers = listed(run(kind, "push", "q", *args, stdin=stdin))
        return [int(number) - first for number in numbers]

    assert run(kind, "create", "q").status == 0
    for number, body in enumerate((b"one", b"", b"\x00\xff")):
        Path(f"body{number}").write_bytes(body)
    assert push("body0", "body1", "body2") == [0, 1, 2]
    assert push("--lines", stdin=b"four\n\nsix") == [3, 4, 5]
    assert run(kind, "pop", "q") == (0, b"one", "")
    assert run(kind, "peek", "q", "-n", 2, "--lines").out == b"\n\x00\xff\n"
    assert run(kind, "pop", "q", "-n", 3).out == b"\x00\xfffour"
    assert run(kind, "pop", "q", "--all", "--lines") == (0, b"\nsix\n", "")
    for command in ("pop", "peek"):
        assert one_line(run(kind, command, "q")) == f"winkfs: q: is empty: there is no {record}\n"
        assert run(kind, command, "q", "--all") == (0, b"", "")
    assert push(stdin=b"seven") == [6]
    Path("folder/below").mkdir(parents=True)
    Path("folder/below/b").write_bytes(b"B")
    Path("folder/a").write_bytes(b"A")
    assert push("folder") == [7, 8]
    assert run(kind, "pop", "q", "-n", 9).out == b"sevenAB"


# --- what there is, and nothing changes ---


@pytest.mark.parametrize("case", MANIFEST["cases"], ids=lambda case: case["name"])
def test_a_queue_of_the_reference_is_listed_as_it_was_enqueued(
    run: Run, case: dict[str, Any]
) -> None:
    shutil.copytree(GOLDEN / case["dir"], "q")
    os.chmod("q", 0o555)
    with untouched(Path("q")):
        rows = objects(run("queue", "ls", "q", "--json"))
        assert [row["id"] for row in rows] == case["ledgerq_on_reopen"]["ids"]
        every = {row["id"]: row for row in objects(run("queue", "ls", "q", "--json", "--all"))}
        assert list(every) == [row["id"] for row in case["enqueued"]]
        assert all(every[row["id"]] == row for row in rows)
        for wanted in case["enqueued"]:
            row, body = every[wanted["id"]], base64.b64decode(wanted["payload_b64"])
            assert list(row) == KEYS
            assert (row["offset"], row["headers"]) == (wanted["offset"], wanted["headers"] or {})
            assert (row["size"], row["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
            name = ("low", "medium", "high")[wanted["priority"]]
            assert row["priority"] == (name if case["name"] == "priorities" else None)
            ttl = wanted["ttl_ns"]
            assert row["expires_ns"] == (row["timestamp_ns"] + ttl if ttl else None)
            data = Path("q", row["segment"]).read_bytes()[row["offset"] :]
            assert int.from_bytes(data[6:14], "little") == row["id"]
        head, *shown = listed(run("queue", "ls", "q"))
        assert head.split() == ["ID", "SIZE", "PRIORITY", "PUSHED", "OFFSET", "FILE"]
        assert [int(line.split()[0]) for line in shown] == [row["id"] for row in rows]
        assert ids(run("queue", "peek", "q", "-n", 3, "--json")) == [row["id"] for row in rows][:3]
        facts = json.loads(run("queue", "stats", "q", "--json").out)
        assert (facts["kind"], facts["next_id"]) == ("queue", case["next_message_id"])
        assert facts["pending"] == case["expect"]["stats"]["pending"]
        verified = run("queue", "verify", "q", "--json")
        assert verified.status == 0
        assert json.loads(verified.out) == {"problems": [], "messages": len(case["enqueued"])}
        run("queue", "compact", "q", "--dry-run")
        run("queue", "dlq", "q")
    os.chmod("q", 0o755)
    popped = objects(run("queue", "pop", "q", "--all", "--json"))
    assert [{key: row[key] for key in KEYS} for row in popped] == rows
    bodies = {row["id"]: row["payload_b64"] for row in case["enqueued"]}
    assert all(row["payload_b64"] == bodies[row["id"]] for row in popped)
    assert run("queue", "ls", "q", "--json").out == b""


@pytest.mark.parametrize("case", MANIFEST["damaged"], ids=lambda case: case["name"])
def test_damage_is_reported_and_the_rest_is_written(run: Run, case: dict[str, Any]) -> None:
    shutil.copytree(GOLDEN / case["dir"], "q")
    with untouched(Path("q")):
        every = run("queue", "ls", "q", "--all", "--json")
        assert (every.status, ids(every)) == (1, case["readable_ids"])
        assert every.err.startswith("winkfs: q/0") and "are no messages\n" in every.err
        for command in ("ls", "peek", "stats"):
            done = run("queue", command, "q")
            assert (done.status, done.err) == (1, every.err) and done.out
        verified = json.loads(run("queue", "verify", "q", "--json").out)
        assert verified["problems"] and verified["messages"] == len(case["readable_ids"])
        verify = run("queue", "verify", "q")
        assert verify.status == 1 and verify.out.endswith((b" problems\n", b": 1 problem\n"))
    shutil.copytree("q", "mended")
    steps = listed(run("queue", "repair", "q"))
    assert "are kept in 00000000000000000001.log.cut" in steps[-1]
    assert run("queue", "verify", "q").out.endswith(b": sound\n")
    assert listed(run("queue", "repair", "q")) == ["q: nothing to repair"]
    assert set(ids(run("queue", "ls", "q", "--all", "--json"))) >= set(case["readable_ids"])
    popped = run("queue", "pop", "mended", "--all", "--json")
    assert popped.status == 1 and "are no messages\n" in popped.err
    assert ids(popped) == [id for id in case["readable_ids"] if id > 5]
    assert one_line(run("queue", "pop", "mended")) == EMPTY.replace("q:", "mended:")


# --- options ---


def test_priorities_are_those_of_create(run: Run) -> None:
    assert run("queue", "create", "q", "--by-priority").out == b"q: read by priority\n"
    for number, priority in enumerate(("low", "high", "medium", "high")):
        run("queue", "push", "q", "--priority", priority, stdin=b"%d" % number)
    run("queue", "push", "q", stdin=b"4")
    rows = objects(run("queue", "ls", "q", "--json"))
    assert [row["priority"] for row in rows] == ["high", "high", "medium", "low", "low"]
    assert run("queue", "pop", "q", "-a").out == b"13204"
    session(
        run,
        """
        $ queue create fifo
        fifo: read by arrival
        $ queue push fifo --priority high
        winkfs: fifo: is read by arrival: see winkfs queue create --by-priority
        $ queue push fifo --priority low
        1
        """,
    )


@pytest.mark.usefixtures("q")
def test_options_of_push(run: Run) -> None:
    run("queue", "push", "q", "--ttl", "1h", "--header", "a=b=c", "--header", "ü=", stdin=b"x")
    (row,) = objects(run("queue", "ls", "q", "--json"))
    assert row["headers"] == {"a": "b=c", "ü": ""}
    assert row["expires_ns"] == row["timestamp_ns"] + 3600 * 10**9
    before = Path("q", row["segment"]).stat().st_size
    run("queue", "push", "q", "--compress", 9, stdin=b"long " * 10_000)
    assert Path("q", row["segment"]).stat().st_size < before + 1000
    assert objects(run("queue", "ls", "q", "--json"))[1]["size"] == 50_000
    assert listed(run("queue", "push", "q", "--key", "once", stdin=b"first")) == ["3"]
    again = run("queue", "push", "q", "--key", "once", stdin=b"second")
    assert again == (0, b"3\n", "winkfs: q: nothing is pushed: once is the key of message 3\n")
    run("queue", "push", "q", "--segment-messages", 2, "--lines", stdin=lines(9))
    facts = json.loads(run("queue", "stats", "q", "--json").out)
    assert (facts["segments"], facts["keys"], facts["messages"]) == (6, 1, 12)


@pytest.mark.usefixtures("q")
def test_a_message_that_has_expired_is_not_popped(run: Run) -> None:
    run("queue", "push", "q", "--ttl", "1s", stdin=b"short")
    run("queue", "push", "q", stdin=b"long")
    time.sleep(1.1)
    assert ids(run("queue", "ls", "q", "--json")) == [2]
    assert ids(run("queue", "ls", "q", "--json", "--all")) == [1, 2]
    assert run("queue", "pop", "q", "-a").out == b"long"


def test_consumers_and_seek(run: Run) -> None:
    run("queue", "create", "q", "--consumer", "a")
    run("queue", "push", "q", "--lines", stdin=lines(9))
    time.sleep(0.01)
    then = time.time()
    run("queue", "push", "q", stdin=b"later")
    assert run("queue", "pop", "q", "--consumer", "a").out == b"line 0\n"[:-1]
    assert run("queue", "pop", "q", "-n", 2).out == b"line 0line 1"
    assert ids(run("queue", "ls", "q", "--json", "--consumer", "a"))[0] == 2
    assert run("queue", "seek", "q", 7).out == b"q: message 7 is next\n"
    assert ids(run("queue", "ls", "q", "--json")) == [7, 8, 9, 10]
    session(
        run,
        f"""
        $ queue seek q --time {then}
        q: message 10 is next
        $ queue seek q --last
        q: message 11 is next
        $ queue pop q
        {EMPTY.strip()}
        $ queue seek q --first
        q: message 1 is next
        $ queue seek q --first --consumer b
        q: message 1 is next
        """,
    )
    facts = json.loads(run("queue", "stats", "q", "--json").out)
    assert {name: one["read_id"] for name, one in facts["consumers"].items()} == {"a": 2, "b": 1}
    assert run("queue", "seek", "q", "--remove", "--consumer", "b") == (0, b"", "")
    for command in ("pop", "peek", "ls"):
        refused = one_line(run("queue", command, "q", "--json", "--consumer", "b"))
        assert refused == "winkfs: q: no consumer 'b': add it first\n"


@pytest.mark.usefixtures("q")
def test_compact_removes_what_is_read(run: Run) -> None:
    run("queue", "push", "q", "--segment-messages", 10, "--lines", stdin=lines(100))
    assert json.loads(run("queue", "compact", "q", "--json").out) == {
        "base": "q", "dry_run": False, "segments": 0, "bytes": 0, "unread": 0,
    }  # fmt: skip
    run("queue", "pop", "q", "-n", 55)
    session(run, "$ queue compact q -n\nq: 5 segments of ... bytes would be removed\n")
    assert len(list(Path("q").glob("*.log"))) == 10
    session(
        run,
        """
        $ queue compact q --max-segments 8
        q: 2 segments...
        $ queue compact q --max-age 1h
        q: 0 segments...
        $ queue compact q --keep 7
        q: 1 segment of...
        $ queue compact q
        q: 2 segments...
        """,
    )
    assert len(ids(run("queue", "ls", "q", "--json"))) == 45
    lost = json.loads(run("queue", "compact", "q", "--unread", "--json").out)
    assert (lost["segments"], lost["unread"]) == (4, 35)
    assert ids(run("queue", "ls", "q", "--json")) == list(range(91, 101))
    assert run("queue", "verify", "q").status == 0


@pytest.mark.parametrize("place", ["q.dlq", "q/dlq", "elsewhere"])
def test_dead_letters_are_listed_and_pushed_again(run: Run, place: str) -> None:
    create("q")
    with Queue("q", "a", dead_letters=place, retries=1) as found:
        found.push_many([b"bad", b"worse", b"good"])
        for message in found.pop_many(2, visible=60):
            assert found.nack(message.id, "no\nluck")
    named = ("--dead-letters", place) if place == "elsewhere" else ()
    for arguments in (("q", *named), (place,)):
        with untouched(Path(place)):
            head, *rows = listed(run("queue", "dlq", *arguments))
            first, _ = objects(run("queue", "dlq", *arguments, "--json"))
        assert head.split() == ["ID", "SIZE", "WAS", "FAILED", "TIMES", "WHY"]
        assert [row.split()[:3] for row in rows] == [["1", "3", "1"], ["2", "5", "2"]]
        assert rows[0].endswith("1  no luck")
        assert list(first) == KEYS and first["headers"]["dlq.failure_reason"] == "no luck"
    once = run("queue", "dlq", "q", *named, "--requeue", "-n", 1)
    assert once.out == b"q: 1 message pushed again\n"
    assert ids(run("queue", "dlq", "q", *named, "--json")) == [2]
    again = run("queue", "dlq", "q", *named, "--requeue", "--json")
    assert json.loads(again.out) == {"base": "q", "requeued": 1}
    assert run("queue", "dlq", "q", *named, "--json").out == b""
    assert [(row["id"], row["headers"]) for row in objects(run("queue", "ls", "q", "--json"))] == [
        (3, {}), (4, {}), (5, {}),
    ]  # fmt: skip
    assert run("queue", "pop", "q", "-a").out == b"goodbadworse"


@pytest.mark.usefixtures("q")
def test_a_queue_without_dead_letters(run: Run) -> None:
    run("queue", "push", "q", stdin=b"x")
    session(
        run,
        """
        $ queue dlq q --json
        $ queue dlq q --requeue
        winkfs: ...--dead-letters...
        $ queue dlq q --requeue --dead-letters ./q
        winkfs: ...in another queue...
        """,
    )


# --- several at a time, and what ends in the middle ---


def program(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*PROGRAM, "queue", *map(str, arguments)], **options)


@pytest.mark.parametrize("options", [(), ("--json",), ("--lines", "-n", "40")])
@pytest.mark.usefixtures("q")
def test_what_cannot_be_written_is_not_popped(run: Run, options: tuple[str, ...]) -> None:
    run("queue", "push", "q", "--lines", stdin=lines(60))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*PROGRAM, "queue", "pop", "q", *(options or ["--all"])], stdout=full,
            stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(b"winkfs: ") and done.stderr.count(b"\n") == 1
    assert run("queue", "pop", "q", "-a", "--lines") == (0, lines(60), "")


@pytest.mark.usefixtures("q")
def test_a_pipe_that_closes_keeps_what_it_has_not_taken(run: Run) -> None:
    sent = [b"%06d" % n * 4000 for n in range(100)]
    run("queue", "push", "q", "--lines", stdin=b"\n".join(sent))
    popping = program("pop", "q", "--all", "--lines", stdout=subprocess.PIPE)
    assert popping.stdout is not None
    got = [popping.stdout.readline().removesuffix(b"\n") for _ in range(20)]
    popping.stdout.close()
    assert popping.wait() == 128 + signal.SIGPIPE
    left = run("queue", "pop", "q", "-a", "--lines").out.splitlines()
    assert got == sent[:20] and left == sent[-len(left) :] and 80 <= len(left) < 100


@pytest.mark.usefixtures("q")
def test_what_a_killed_pop_had_comes_again(run: Run) -> None:
    run("queue", "push", "q", "--lines", stdin=b"\n".join([b"x" * 100_000] * 40))
    popping = program("pop", "q", "--all", "--visible", "1s", stdout=subprocess.PIPE)
    assert popping.stdout is not None
    popping.stdout.read(1)
    popping.kill()
    popping.communicate()
    facts = json.loads(run("queue", "stats", "q", "--json").out)
    assert (facts["pending"], facts["in_flight"]) == (40, 16)
    assert len(ids(run("queue", "ls", "q", "--json"))) in (24, 40)
    time.sleep(1)
    assert sorted(ids(run("queue", "pop", "q", "--all", "--json"))) == list(range(1, 41))


@pytest.mark.usefixtures("q")
def test_a_waiting_pop_prints_at_once_and_keeps_unwritten_lines(run: Run) -> None:
    popping = program(
        "pop", "q", "-a", "--wait", "--lines", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pushing = program(
        "push", "q", "--lines", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert pushing.stdin is not None and popping.stdout is not None
    for n in range(3):
        pushing.stdin.write(b"line %d\nha" % n if n == 2 else b"line %d\n" % n)
        pushing.stdin.flush()
        assert popping.stdout.readline() == b"line %d\n" % n
    pushing.send_signal(signal.SIGINT)
    out, _ = pushing.communicate()
    assert (pushing.returncode, out) == (130, b"1\n2\n3\n")
    popping.send_signal(signal.SIGINT)
    _, err = popping.communicate()
    assert (popping.returncode, err) == (130, b"winkfs: interrupted\n")
    assert one_line(run("queue", "pop", "q")) == EMPTY
    started = time.monotonic()
    assert one_line(run("queue", "pop", "q", "--timeout", "1s")) == EMPTY
    assert 1 <= time.monotonic() - started < 10


@pytest.mark.long
@pytest.mark.usefixtures("q")
def test_several_push_and_pop_at_a_time(run: Run) -> None:
    pushing = []
    for n in range(3):
        Path(f"lines{n}").write_bytes(lines(n * 5000, n * 5000 + 5000))
        pushing.append(program("push", "q", "--lines", f"lines{n}", stdout=subprocess.PIPE))
    popping = [
        program("pop", "q", "-a", "--lines", "--timeout", "3s", stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    printed = [int(id) for process in pushing for id in process.communicate()[0].split()]
    got = [line for process in popping for line in process.communicate()[0].splitlines()]
    assert sorted(printed) == list(range(1, 15_001))
    assert Counter(got) == Counter(lines(15_000).splitlines())
    assert all(process.returncode == 0 for process in pushing + popping)


@pytest.mark.usefixtures("q")
def test_a_killed_push_has_stored_what_it_printed(run: Run) -> None:
    pushing = program("push", "q", "--lines", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert pushing.stdin is not None and pushing.stdout is not None
    pushing.stdin.write(lines(9000))
    pushing.stdin.flush()
    first = pushing.stdout.readline()
    pushing.kill()
    rest, _ = pushing.communicate()
    printed = (first + rest).split()
    found = run("queue", "pop", "q", "-a", "--lines")
    assert 4096 <= len(printed) <= found.out.count(b"\n")
    assert found.out == lines(found.out.count(b"\n"))


@pytest.mark.usefixtures("q")
def test_what_was_pushed_before_a_failure_is_printed(run: Run) -> None:
    Path("body").write_bytes(b"x")
    done = run("queue", "push", "q", "body", "missing")
    assert (done.status, done.out) == (1, b"1\n") and "missing" in done.err
    assert ids(run("queue", "ls", "q", "--json")) == [1]


@pytest.mark.usefixtures("q")
def test_a_queue_that_another_process_holds(run: Run) -> None:
    with Queue("q", "a") as found:
        found.push(b"x")
        for command in (("push",), ("pop",), ("seek", "--first"), ("compact",)):
            held = one_line(run("queue", command[0], "q", *command[1:]))
            assert held == "winkfs: q: another process has the queue open for itself: stop it\n"
        assert "another writer has it open" in one_line(run("queue", "repair", "q"))
        assert run("queue", "ls", "q").status == 0


# --- what is refused ---


@pytest.mark.parametrize(
    "arguments",
    [("ls", "missing"), ("ls", "folder"), ("ls", "text"), ("ls", "fifo"), ("peek", "folder"),
     ("stats", "text"), ("verify", "missing"), ("verify", "folder"), ("push", "missing", "text"),
     ("push", "folder", "text"), ("push", "text", "text"), ("pop", "folder"), ("pop", "missing"),
     ("seek", "folder", "1"), ("compact", "folder"), ("compact", "missing", "-n"),
     ("repair", "folder"), ("repair", "missing"), ("dlq", "folder"), ("dlq", "missing"),
     ("dlq", "mit Ümläuten", "--dead-letters", "folder"), ("create", "mit Ümläuten"),
     ("create", "filled"), ("create", "text"), ("push", "mit Ümläuten", "missing"),
     ("push", "mit Ümläuten", "--ttl", "0", "text"), ("seek", "mit Ümläuten", "9" * 20),
     ("push", "mit Ümläuten", "--key", "k", "--window", "0", "text"),
     ("seek", "mit Ümläuten", "--first", "--consumer", "x" * 40),
     ("seek", "mit Ümläuten", "--remove", "--consumer", "x")],
)  # fmt: skip
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    Path("folder").mkdir()
    Path("filled").mkdir()
    Path("filled/text").touch()
    Path("text").write_text("hello\n")
    os.mkfifo("fifo")
    assert run("queue", "create", "mit Ümläuten").status == 0
    assert "fault in winkfs" not in one_line(run("queue", *arguments))
    assert not list(Path("folder").iterdir())


@pytest.mark.parametrize(
    "arguments",
    [("pop", "-n", "0"), ("pop", "-n", "-1"), ("seek",), ("seek", "0"), ("seek", "x"),
     ("seek", "1", "--first"), ("seek", "--remove"), ("seek", "--time", "soon"),
     ("push", "--priority", "urgent"), ("push", "--header", "x"), ("push", "--ttl", "-1"),
     ("push", "--compress", "10"), ("push", "--key", "k", "--lines"), ("compact", "--keep", "0"),
     ("push", "--key", "k", "a", "b"), ("pop", "--timeout", "long")],
)  # fmt: skip
@pytest.mark.usefixtures("q")
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    done = run("queue", arguments[0], "q", *arguments[1:])
    assert "winkfs queue" in one_line(done, status=2)


def test_the_commands_of_the_page(run: Run) -> None:
    """As they stand, one behind the other, and the options that the page names."""
    page = (Path(__file__).parents[2] / "docs/ledgerq.md").read_text()
    block = page.partition("## Commands")[2].split("```sh\n")[1].split("```")[0]
    Path("FILE").write_bytes(b"x")
    Path("log").write_bytes(b"line\n")
    named = set()
    for line in block.splitlines():
        command = line.split("#")[0].split("|")[-1].replace("FILE...", "FILE")
        arguments = command.split()[1:]
        named.add(arguments[1])
        done = run(*arguments, stdin=b"line\n")
        assert (done.status, done.err) == (0, ""), command
        known = run("queue", arguments[1], "--help").out.decode()
        assert all(word in known for word in re.findall(r"--[a-z-]+", line)), line
    assert named == set(queue.commands)
