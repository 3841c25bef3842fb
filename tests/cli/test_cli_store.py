"""`winkfs store`, on every kind of store of records; and what else is done with such a folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import shelf
from commands import PROGRAM, Run, listed, one_line, session
from folders import unchanged
from shelf import COUNTING, KINDS, REAL

import winkfs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("installed")]

installed, shelves = shelf.installed, shelf.shelves  # fixtures
MISSING = {kind: "0" * 31 + "1" if kind in COUNTING else "4711" for kind in KINDS}


NO_RECORDS = "winkfs store is for stores of records, and this is a container"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(run: Run, kind: str) -> str:
    """A store with nothing in it."""
    assert run("store", "create", "s", "--kind", kind) == (0, b"", "")
    return "s"


def put(run: Run, store: str, *bodies: bytes) -> list[str]:
    """-> the ids."""
    found = []
    for body in bodies:
        found += listed(run("store", "put", store, stdin=body))
    return found


# --- records ---


def test_what_is_put_is_read(run: Run, made: str) -> None:
    Path("file").write_bytes(b"of a file\n")
    (first,) = put(run, made, b"\x00body\xff\n")
    second, third = listed(run("store", "put", made, "file", "-", stdin=b""))
    assert run("store", "get", made, first) == (0, b"\x00body\xff\n", "")
    assert run("store", "get", made, second, "-o", "out") == (0, b"", "")
    assert Path("out").read_bytes() == b"of a file\n"
    assert run("store", "cat", made, second, first, third).out == b"of a file\n\x00body\xff\n"
    verify = run("store", "verify", made)
    assert verify.status == 0 and re.fullmatch(rb"s: 3 records, [0-9]+ bytes: sound\n", verify.out)


def test_lines_and_folders_become_records(run: Run, made: str) -> None:
    ids = listed(run("store", "put", made, "--lines", stdin=b"one\n\ntwo"))
    assert len(ids) == 3 and run("store", "cat", made, *ids).out == b"onetwo"
    Path("d/e").mkdir(parents=True)
    for name in ("d/b", "d/a", "d/e/c"):
        Path(name).write_text(name)
    Path("d/link").symlink_to("a")
    ids = listed(run("store", "put", made, "d"))
    assert run("store", "cat", made, *ids).out == b"d/ad/bd/e/c"


def test_puts_before_an_error_are_reported(run: Run, made: str) -> None:
    Path("a").write_text("a")
    done = run("store", "put", made, "a", "missing")
    assert (done.status, done.err) == (1, "winkfs: missing: No such file or directory\n")
    assert run("store", "cat", made, *done.out.decode().split()).out == b"a"
    assert len(listed(run("store", "ls", made, "--json"))) == 1


def test_ls_prints_the_place_of_each_record(run: Run, made: str, kind: str) -> None:
    ids = put(run, made, b"a", b"longer")
    if kind in COUNTING:
        assert listed(run("store", "put", made, "--id", ids[0], stdin=b"a")) == ids[:1]
    rows = [json.loads(line) for line in listed(run("store", "ls", made, "--json"))]
    assert [str(row["id"]) for row in rows] == ids
    assert [row["size"] for row in rows] == [1, 6]
    keys = ["id", "size", "refs", "file", "offset"]
    if kind in COUNTING:
        assert [row["refs"] for row in rows] == [2, 1] and isinstance(rows[0]["id"], str)
    else:
        keys.remove("refs")
        assert isinstance(rows[0]["id"], int)
    for row in rows:
        assert list(row) == keys
        assert 0 <= row["offset"] < (Path(made) / row["file"]).stat().st_size
    head, *lines = listed(run("store", "ls", made))
    assert head.split() == [key.upper() for key in ("id", "size", *keys[2:-2], "offset", "file")]
    assert [line.split()[:2] for line in lines] == [[ids[0], "1"], [ids[1], "6"]]


def test_rm_removes_a_record_or_a_reference(run: Run, made: str, kind: str) -> None:
    ids = put(run, made, b"a", b"b")
    put_again = run("store", "put", made, "--id", ids[0], stdin=b"a")
    assert put_again.status == 0
    assert run("store", "rm", made, ids[0]) == (0, b"", "")
    if kind in COUNTING:
        assert run("store", "get", made, ids[0]).out == b"a"
        assert run("store", "rm", made, ids[0]).status == 0
    assert ids[0] in one_line(run("store", "get", made, ids[0]))
    assert run("store", "get", made, ids[1]).out == b"b"


def test_a_numbered_record_is_replaced(run: Run, made: str, kind: str) -> None:
    if kind in COUNTING:
        pytest.skip("its records are references")
    (id,) = put(run, made, b"old")
    assert listed(run("store", "put", made, "--id", id, stdin=b"new")) == [id]
    assert run("store", "get", made, id).out == b"new"


def test_the_others_go_on_after_one_that_is_missing(run: Run, made: str, kind: str) -> None:
    ids = put(run, made, b"a", b"b")
    for command, out in (("cat", b"ab"), ("rm", b"")):
        done = run("store", command, made, ids[0], MISSING[kind], "no id", ids[1])
        assert (done.status, done.out) == (1, out)
        missing, wrong = done.err.splitlines()
        assert MISSING[kind] in missing and ": no " in missing
        assert wrong.startswith("winkfs: s: no id: ")
    assert listed(run("store", "ls", made, "--json")) == []


# --- the whole ---


@pytest.mark.parametrize("command", [["store", "stats"], ["info"]])
def test_stats_and_info_count_records(run: Run, made: str, kind: str, command: list[str]) -> None:
    put(run, made, b"a", b"longer")
    facts = json.loads(run(*command, made, "--json").out)
    assert facts["records"] == 2 and facts["bytes"] >= 7
    assert facts["kind"].removesuffix(" store") == kind
    assert "records:" in run(*command, made).out.decode()


def test_compact_keeps_the_records(run: Run, made: str) -> None:
    ids = put(run, made, b"a", b"b", b"c")
    run("store", "rm", made, ids[0])
    with unchanged(Path(made)):
        planned = run("store", "compact", made, "--dry-run", "--json")
    assert planned.status == 0 and json.loads(planned.out)
    for command in ("compact", "verify"):
        assert run("store", command, made).status == 0
        assert run("store", "cat", made, *ids[1:]).out == b"bc"


def test_salvage_prints_what_was_lost(run: Run) -> None:
    run("store", "create", "s", "--kind", "shelf")
    good, bad = put(run, "s", b"good", b"DAMAGED")
    done = run("store", "salvage", "s", "t", "--json")
    assert (done.status, json.loads(done.out)) == (1, {"bytes": 4, "lost_bytes": 7})
    assert run("store", "get", "t", good).out == b"good"
    assert bad in one_line(run("store", "get", "t", bad))
    verify = run("store", "verify", "s")
    assert verify.status == 1
    first, last = verify.out.decode().splitlines()
    assert bad in first and last == "s: 2 records, 4 bytes: 1 problem"
    assert run("verify", "s").status == 1
    session(
        run,
        f"""
        $ store rm s {bad}
        $ store salvage s u
        ...
        $ store migrate s
        base:  s
        files: 1
        """,
    )


# --- what else shows them ---


def test_other_commands_show_records_as_files(run: Run, made: str) -> None:
    ids = put(run, made, b"a", b"longer")
    assert sorted(listed(run("ls", made))) == sorted(ids)
    sizes = {row["name"]: row["size"] for row in map(json.loads, listed(run("ls", "--json", made)))}
    assert sizes == {ids[0]: 1, ids[1]: 6}
    assert run("cat", made, ids[1], ids[0]).out == b"longera"
    assert "no such file in the" in one_line(run("cat", made, "nope"))
    assert run("verify", made).status == 0
    with winkfs.open(made) as found:
        assert found[ids[0]] == b"a" and ids[1] in found and "nope" not in found
        assert found.read(ids[1], 2, 3) == b"nge"


@pytest.mark.parametrize(
    "command",
    ["put s x f", "append s x f", "rm s x", "mv s x y", "compact s", "repair s", "pack . s",
     "columns s add a=b"],
)  # fmt: skip
def test_commands_of_containers_refuse_it(run: Run, command: str) -> None:
    run("store", "create", "s", "--kind", "shelf")
    Path("f").touch()
    assert "shelf" in one_line(run(*command.split()))


# --- refusals: one line each ---


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("ls nothing", "winkfs: nothing: no such store\n"),
        ("ls folder", "winkfs: folder: a folder, but no store: see winkfs store create --help\n"),
        ("ls c", f"winkfs: c: {NO_RECORDS}\n"),
        ("put c file", f"winkfs: c: {NO_RECORDS}\n"),
        ("get dangling 1", "winkfs: dangling: no such store\n"),
        ("salvage l t", "winkfs: l: salvage is not for a ledger\n"),
        ("migrate l", "winkfs: l: migrate is not for a ledger\n"),
        ("get l x", "winkfs: l: x: not a number\n"),
        ("get l 99999999999999999999", "winkfs: l: 99999999999999999999: not a number\n"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line(run: Run, command: str, line: str) -> None:
    Path("folder").mkdir()
    Path("file").touch()
    Path("dangling").symlink_to("gone")
    winkfs.create("c").close()
    run("store", "create", "l", "--kind", "ledger")
    assert one_line(run("store", *command.split())) == line


def test_wrong_usage_is_one_line(run: Run) -> None:
    for command, words in {
        "create s --kind book": "there are",
        "create s --kind ledger -o rol=1": "no option 'rol': there are roll, color",
        "create s --kind ledger -o roll=red": "roll is a number",
        "create s --kind ledger -o roll": "no NAME=VALUE",
        "put s a b --id 1": "--id goes with one FILE",
        "put s --lines --id 1": "--id goes with one FILE",
    }.items():
        assert words in one_line(run("store", *command.split()), 2)
    assert not Path("s").exists()


def test_options_have_the_types_of_the_kind(run: Run) -> None:
    assert (
        run("store", "create", "s", "--kind", "ledger", "-o", "roll=1M", "-o", "color=7").status
        == 0
    )
    assert Path("s/.ledger").read_text() == "1048576 7"


def test_a_store_is_not_made_twice(run: Run, made: str, kind: str) -> None:
    (id,) = put(run, made, b"a")
    one_line(run("store", "create", made, "--kind", kind))
    assert run("store", "get", made, id).out == b"a"


def test_a_link_to_a_store_is_that_store(run: Run, made: str) -> None:
    Path("link").symlink_to(made)
    (id,) = put(run, "link", b"a")
    assert run("store", "get", made, id).out == b"a"


def test_a_second_writer_is_refused_and_readers_go_on(run: Run, made: str) -> None:
    (id,) = put(run, made, b"a")
    with winkfs.open(made, "a"):
        for command in (["put", made], ["rm", made, id], ["compact", made]):
            assert made in one_line(run("store", *command))
        assert run("store", "get", made, id).out == b"a"
        assert run("store", "verify", made).status == 0
    assert put(run, made, b"b")


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", REAL)
def test_an_interrupted_put_keeps_what_it_has_printed(made: str) -> None:
    writer = subprocess.Popen(
        [*PROGRAM, "store", "put", made, "--lines"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert writer.stdin is not None and writer.stdout is not None
    writer.stdin.write(b"line\n" * 5000)
    writer.stdin.flush()
    first = writer.stdout.readline().decode().strip()
    writer.send_signal(signal.SIGINT)
    _, answer = writer.communicate()
    assert (writer.returncode, answer) == (130, b"winkfs: interrupted\n")
    with winkfs.open(made) as found:
        assert found[first] == b"line"


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", REAL)
def test_a_broken_pipe_is_quiet(run: Run, made: str) -> None:
    run("store", "put", made, "--lines", stdin=b"line\n" * 9000)
    with subprocess.Popen(
        [*PROGRAM, "store", "ls", made], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as lister:  # fmt: skip
        assert lister.stdout is not None and lister.stderr is not None
        assert lister.stdout.readline().startswith(b"ID ")
        lister.stdout.close()
        assert lister.stderr.read() == b""
    assert lister.returncode == 141


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may say what the next user can")
def test_a_folder_that_cannot_be_written_is_one_line(run: Run, made: str, tmp_path: Path) -> None:
    (id,) = put(run, made, b"a")
    tmp_path.chmod(0o755)
    for path in (Path(made), *Path(made).rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    os.seteuid(65534)
    try:
        for command in (["put", made], ["rm", made, id], ["create", "t", "--kind", "ledger"]):
            assert "ermission denied" in one_line(run("store", *command))
        assert run("store", "get", made, id).out == b"a"
    finally:
        os.seteuid(0)


def test_help_names_the_commands(run: Run) -> None:
    text = run("store", "--help").out.decode()
    for command in ("create", "put", "get", "rm", "ls", "cat", "verify", "salvage", "compact",
                    "migrate", "stats"):  # fmt: skip
        assert f"  {command} " in text
        assert run("store", command, "--help").status == 0


def test_the_shell_completes_kinds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_WINKFS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "winkfs store create s --kind sh")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert run("store").out == b"plain,shelf\n"
