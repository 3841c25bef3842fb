"""The commands for whole containers: create, pack, unpack, info, reindex, verify."""

from __future__ import annotations

import json
import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
import stored
from commands import PROGRAM, Run, listed, on_a_terminal, one_line
from folders import write_files

import winkfs

pytestmark = pytest.mark.slow


# --- create, pack, unpack ---


@pytest.mark.parametrize(
    ("options", "variables", "classic"),
    [
        ("--ao --timemp 7 --htalgo 3", {"HAVEAO": 1, "TIMEMP": 7, "HTALGO": 3}, False),
        ("--isz 1024 --havedups", {"ISZ": 1024, "HAVEDUPS": 1}, False),
        ("--classic", {}, True),
    ],
)
def test_create_makes_the_variant(
    run: Run, options: str, variables: dict[str, int], classic: bool
) -> None:
    assert run("create", "t", *options.split()) == (0, b"", "")
    record = json.loads(run("info", "t", "--json").out)
    assert record["classic"] is classic
    assert variables.items() <= record["superblock"].items()
    assert "exists" in one_line(run("create", "t"))


def test_pack_and_unpack(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "t", {"sub/a.txt": b"1", "b.bak": b"2"})
    os.mkfifo(tmp_path / "t/pipe")
    done = run("pack", "t", "c", "--exclude", "*.bak", "--json")
    assert done.status == 0
    assert done.err == "winkfs: pipe: a fifo: left out\n"
    assert json.loads(done.out) == {
        "base": "c", "files": 1, "directories": 1, "links": 0, "bytes": 1,
        "updated": 0, "unchanged": 0,
        "left_out": [{"name": "pipe", "reason": "a fifo: left out"}], "failed": [], "clamped": [],
    }  # fmt: skip
    assert "--update" in one_line(run("pack", "t", "c"))
    assert run("pack", "t", "c", "--update").status == 0
    assert run("unpack", "c", "out").status == 0
    assert sorted(p.name for p in Path("out").rglob("*")) == ["a.txt", "b.bak", "sub"]
    assert run("unpack", "c", "out") == (0, b"", "")
    Path("out/sub/a.txt").write_bytes(b"another")
    assert "sub/a.txt" in one_line(run("unpack", "c", "out"))
    assert run("unpack", "c", "out", "--force") == (0, b"", "")
    assert "none*" in one_line(run("unpack", "c", "out2", "none*"))


def test_unpack_reports_a_common_problem_once(run: Run) -> None:
    with winkfs.create("c") as c:
        for i in range(5):
            c.put(f"{i}", b"1", mode=0o4755)
            c.put(f"l{i}", b"/etc", ftype=winkfs.FileType.LINK)
    done = run("unpack", "c", "out")
    assert (done.status, done.out) == (1, b"")
    assert sorted(line.split(":")[1] for line in done.err.splitlines()) == [
        " 0 and 4 more", " l0 and 4 more",
    ]  # fmt: skip
    assert run("unpack", "c", "all", "-p") == (0, b"", "")
    assert Path("all/0").stat().st_mode & 0o7777 == 0o4755
    assert os.readlink("all/l4") == "/etc"
    for i in range(5):
        Path(f"all/{i}").write_bytes(b"another")
    there = run("unpack", "c", "all", "--same-permissions")
    what = "another file is in its place: --force replaces it"
    assert there == (1, b"", f"winkfs: 0 and 4 more: {what}\n")


def test_update_prints_what_changed(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "t", {"a": b"a", "b": b"b", "c": b"c"})
    run("pack", "t", "c")
    (tmp_path / "t/a").write_bytes(b"new")
    (tmp_path / "t/b").chmod(0o600)
    record = json.loads(run("pack", "t", "c", "--update", "--json").out)
    assert (record["files"], record["updated"], record["unchanged"]) == (1, 1, 1)
    record = json.loads(run("pack", "t", "c", "--update", "--checksum", "--json").out)
    assert (record["files"], record["updated"], record["unchanged"]) == (0, 0, 3)
    assert "--update" in one_line(run("pack", "t", "d", "--checksum"), 2)


def test_unpack_counts_damage_in_json_and_refuses_a_dash(run: Run, base: str) -> None:
    stored.flip_text("c.data", b"run.sh/I0", 40)
    Path("c.idx").unlink()
    done = run("unpack", base, "out", "--json")
    record = json.loads(done.out)
    assert (done.status, record["failed"], len(record["problems"])) == (1, 1, 1)
    assert record["problems"][0]["reason"] in done.err
    assert done.err.count("\n") == 1
    assert "./-" in one_line(run("unpack", base, "-"), 2)
    assert not Path("-").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("quiet", [False, True])
def test_pack_ends_with_a_line_on_a_terminal(tmp_path: Path, quiet: bool) -> None:
    write_files(tmp_path / "t", {"a": bytes(1234)}).joinpath("d").mkdir()
    words = [*PROGRAM, "pack", "t", "c", *(["-q"] if quiet else [])]
    shown = on_a_terminal("stderr", *words, cwd=tmp_path)
    line = rb"winkfs: 1 file, 1 directory: 1.21 KiB in \d+\.\d s\r\n"
    assert (shown == b"") if quiet else re.search(line + rb"\Z", shown)
    subprocess.run([*PROGRAM, "pack", "t", "c2"], cwd=tmp_path, check=True)  # no terminal


def test_pack_of_standard_input(tmp_path: Path) -> None:
    write_files(tmp_path / "t", {"a": b"1"})
    program = " ".join(f"'{word}'" for word in PROGRAM)
    for options, ao in (("-c", ""), ("-cz", "--ao")):
        subprocess.run(
            ["bash", "-ec", f"tar {options} t | {program} pack - c{options} {ao}"],
            cwd=tmp_path, check=True,
        )  # fmt: skip
        assert stored.files(tmp_path / f"c{options}")["t/a"] == b"1"
    subprocess.run(
        ["bash", "-ec", f"cd t; find -print0 | {program} pack . ../l --files-from -"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert stored.names(tmp_path / "l") == ["a"]


def test_pack_with_a_failure_has_status_1_and_packs_the_rest(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path, {"t/a": b"1", "list": b"a\ngone\n"})
    done = run("pack", "t", "c", "--files-from", "list")
    first, last = done.err.splitlines()
    assert (done.status, first) == (1, "winkfs: gone: vanished before it was read")
    assert last == "winkfs: t: 1 file is not packed, or not as it was: --bad-list FILE lists it"
    assert listed(run("ls", "c")) == ["a"]


# --- info, reindex, verify ---


def test_info_separates_live_from_dead_bytes(run: Run, base: str) -> None:
    before = json.loads(run("info", base, "--json").out)
    assert (before["files"], before["dead_bytes"], before["clean"]) == (7, 0, True)
    assert before["index"]["current"] is True
    assert before["content_bytes"] == 27
    with winkfs.open(base, "a") as c:
        c.put("docs/a.html", bytes(5000))
        c.delete("run.sh")
    after = json.loads(run("info", base, "--json").out)
    used = after["superblock"]["FILESIZE"] - after["superblock"]["SBSIZE"]
    assert after["live_bytes"] + after["dead_bytes"] == used
    assert 300 < after["dead_bytes"] < 1000
    assert after["files"] == 6
    assert f"dead_bytes:       {after['dead_bytes']}".encode() in run("info", base, "--raw").out


def test_info_reports_an_outdated_index(run: Run, base: str) -> None:
    Path("c.idx").unlink()
    record = json.loads(run("info", base, "--json").out)
    assert (record["files"], record["index"]) == (None, {"current": False})
    assert b"files:     unknown" in run("info", base).out
    assert b"to do:     winkfs reindex c (" in run("info", base).out


@pytest.mark.parametrize(
    ("file", "form", "key"),
    [("t.idx", "hindex", "load_factor"), ("t.time", "kvseq", "last_mark")],
)
def test_info_of_a_single_file(run: Run, file: str, form: str, key: str) -> None:
    with winkfs.create("t", ao=True) as c:
        c.put("a", b"1", mtime=100)
    record = json.loads(run("info", file, "--json").out)
    assert record["format"] == form
    assert record[key] is not None
    assert run("info", file).status == 0


def test_info_is_for_people_and_raw_has_all(run: Run) -> None:
    with winkfs.create("c c", columns={"n": "int64"}) as c:
        c.put_many([(f"d/{i}", bytes(10_000)) for i in range(100)])
    lines = dict(line.split(":", 1) for line in listed(run("info", "c c")))
    assert {key: value.strip() for key, value in lines.items() if key != "last sync"} == {
        "container": "c c (plain)", "files": "100", "contents": "977 KiB", "on disk": lines[
            "on disk"].strip(), "dead": "0 B, 0 % of the data", "columns": "n int64",
        "index": "current", "catalog": "current",
    }  # fmt: skip
    with winkfs.open("c c", "a") as c:
        for i in range(50):
            c.delete(f"d/{i}")
    text = run("info", "c c").out.decode()
    assert "dead:      497 KiB, 50 % of the data" in text
    assert "to do:     winkfs compact 'c c' (reclaims 497 KiB)" in text
    assert run("compact", "c c").status == 0
    assert "to do" not in run("info", "c c").out.decode()
    raw = run("info", "c c", "--raw").out.decode()
    assert "superblock:\n" in raw and "dead_bytes:" in raw
    assert "superblock" not in run("info", "c c.data").out.decode()


def test_info_of_a_foreign_file_is_one_line(run: Run) -> None:
    Path("x").write_bytes(b"hello")
    assert "not a wink file" in one_line(run("info", "x"))


def test_reindex_brings_everything_back(run: Run, base: str) -> None:
    before = run("ls", base, "--json").out
    Path("c.idx").write_bytes(b"junk")
    assert run("reindex", base) == (0, b"7 files indexed\n", "")
    assert run("ls", base, "--json").out == before


def test_verify_reports_problems_with_status_1(run: Run, base: str) -> None:
    assert run("verify", base) == (0, b"c: 7 files, 14 entries: sound\n", "")
    stored.flip_text("c.data", b"star")
    done = run("verify", base)
    assert done.status == 1
    assert b"c.data" in done.out.splitlines()[0]
    record = json.loads(run("verify", base, "--json").out)
    assert len(record["problems"]) == len(done.out.splitlines()) - 1
    assert "checksum" in one_line(run("cat", base, "a*b"))


def test_last_sync_is_in_utc(run: Run, base: str) -> None:
    text = json.loads(run("info", base, "--json").out)["last_sync"]
    age = datetime.now(UTC) - datetime.fromisoformat(text)
    assert -2 < age.total_seconds() < 600
