"""`winkfs fct` and the magic file: what a person types, and what comes back."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import oracle_format
import pytest
from click.testing import Result
from commands import invoke
from folders import unchanged

from winkformats.disk.posix import FileStorage
from winkformats.hindex.hindex import HIndex
from winkformats.kv.sequence import KVSeq
from winkformats.kv.superblock import Superblock
from winkformats.perm import Perm
from winkfs.container.ondisk.lock import WriterLock

pytestmark = pytest.mark.slow
MAGIC = Path(__file__).parents[2] / "winkfs" / "magic"
FORMATS = {"kvseq": 0x10, "hindex": 0x20, "perm": 0x30}


def run(*args: object, stdin: bytes | None = None, code: int = 0) -> Result:
    result = invoke("fct", *args, stdin=stdin)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if code == 1:
        assert result.stderr.count("\n") == 1  # one line, no traceback
    return result


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in run("list", "--json", file).stdout.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "f"


def variables(file: Path) -> dict:
    return json.loads(run("superblock", file, "--json").stdout)


# --- create ---


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_a_created_file_has_the_documented_layout(form, classic, file: Path):
    run("create", "--format", form, file, "--purpose", "TEST", *(["--classic"] * classic))
    block = oracle_format.read_superblock("f", file.read_bytes(), FORMATS[form], "TEST")
    extensions = {"SBCKSUM", "KVCKSUM", "CONTID", "INCOMPAT"} & block.variables.keys()
    assert bool(extensions) != classic
    assert rows(file) == []


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("kvseq", {"keyrepr": 0, "valrepr": 264, "kvdelfl": 0, "align": 64, "kvcksum": 0}),
        ("kvseq", {"keyrepr": 459, "valrepr": 3, "contid": 99, "htalgo": 3, "sbsize": 1024}),
        ("hindex", {"htsize": 7, "htalgo": 3, "cellsz": 5, "htfree": -1, "htdel": -2}),
        ("perm", {"htsize": 11, "htalgo": 1, "sbsize": 512}),
    ],
)
def test_every_variable_that_shapes_the_layout_can_be_given(form, options, file: Path):
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    run("create", "--format", form, file, *given, "--var", "MYVAR", "-0x10", "--var", "T", "abc")
    got = variables(file)
    for name, value in options.items():
        assert got.get(name.upper(), 0) == value
    assert got["MYVAR"] == -16
    assert got["T"].to_bytes(8, "big") == b"abc\0\0\0\0\0"


def test_create_leaves_an_existing_file_alone(file: Path):
    file.write_bytes(b"precious")
    with unchanged(file):
        assert "File exists" in run("create", "--format", "perm", file, code=1).stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--format", "hindex", "--htsize", "0"],
        ["--format", "hindex", "--htfree", "1"],
        ["--format", "kvseq", "--keyrepr", "999"],
        ["--format", "perm", "--htalgo", "9"],
        ["--format", "perm", "--purpose", "LONGER THAN 8"],
        ["--format", "perm", "--sbsize", "64"],
    ],
)
def test_create_that_fails_leaves_no_file(tmp_path, args):
    run("create", *args, tmp_path / "f", code=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["create", "--format", "perm", "--cellsz", "2"],
        ["create", "--format", "kvseq", "--htsize", "2"],
        ["create", "--format", "other"],
        ["create", "--format", "hindex", "--htsize", "many"],
        ["create", "--format", "perm", "--var", "TOOLONGNAME", "1"],
        ["create", "--format", "perm", "--var", "A", "neither number nor short"],
        ["create", "--format", "perm", "--var", "A", str(1 << 63)],
        ["create"],
        ["add", "onlykey"],
        ["superblock", "--set", "SBSIZE", "512"],
        ["superblock", "--set", "FORMAT", "16"],
    ],
)
def test_wrong_usage_exits_2_and_makes_nothing(tmp_path, args):
    run(*args, tmp_path / "f", code=2)
    assert list(tmp_path.iterdir()) == []


# --- superblock ---


def test_superblock_prints_every_variable_and_decodes_text(file: Path):
    run("create", "--format", "kvseq", file, "--purpose", "WORDS", "--var", "LANG", "de")
    text = run("superblock", file).stdout
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    got = variables(file)
    assert list(lines) == list(got)
    assert lines["FORMAT"] == ["16", "kvseq"]
    assert lines["PURPOSE"][1] == '"WORDS"'
    assert lines["LANG"][1] == '"de"'
    assert lines["INCOMPAT"] == ["1", "KVCKSUM"]
    assert got["PURPOSE"] == "WORDS"
    assert got["FORMAT"] == 16


def test_set_keeps_the_checksum_right_and_the_rest_as_it_was(file: Path):
    run("create", "--format", "hindex", file, "--htsize", 10, "--var", "OLD", 5)
    before = file.read_bytes()
    run("superblock", file, "--set", "PURPOSE", "NEW", "--set", "X", "-3", "--set", "OLD", "0x6")
    after = file.read_bytes()
    assert after[4096:] == before[4096:]
    block = oracle_format.read_superblock("f", after, 0x20, "NEW")  # checks SBCKSUM
    old = Superblock.decode(before, file="f")
    changed = {name for name in block.variables if block.variables[name] != old.get(name)}
    assert changed == {"PURPOSE", "X", "OLD", "SBCKSUM"}
    assert (block.need("X"), block.need("OLD")) == (-3, 6)


def test_set_that_does_not_fit_changes_nothing(file: Path):
    run("create", "--format", "perm", file, "--sbsize", 192)
    changes = [part for i in range(5) for part in ("--set", f"V{i}", i)]
    with unchanged(file):
        assert "do not fit" in run("superblock", file, *changes, code=1).stderr


# --- entries ---


def test_kvseq_add_list_get(file: Path):
    blob = bytes(range(256)) * 300
    run("create", "--format", "kvseq", file)
    positions = [
        int(run("add", file, "key", "one").stdout),
        int(run("add", file, "binary", "-", stdin=blob).stdout),
        int(run("add", file, "key", "-2").stdout),
        int(run("add", file, os.fsdecode(b"\xff\n\x1b"), "").stdout),
    ]
    listed = rows(file)
    assert [row["pos"] for row in listed] == positions
    assert [row["key"] for row in listed] == ["key", "binary", "key", "\udcff\n\x1b"]
    assert listed[1]["value"].encode("utf-8", "surrogateescape") == blob
    assert run("get", file, "key").stdout_bytes == b"-2"
    assert run("get", file, "binary").stdout_bytes == blob
    assert run("get", file, "--at", positions[0]).stdout_bytes == b"one"
    text = run("list", file).stdout
    assert text.count("\n") == 4
    assert r"\xff\n\x1b" in text  # a terminal must not obey a key
    with KVSeq.open(FileStorage(file)) as kv:
        assert kv.superblock["ENTRIES"] == 4


def test_get_passes_over_deleted_entries(file: Path):
    with KVSeq.create(FileStorage(file, "x")) as kvseq:
        kvseq.append(b"a", b"old")
        kvseq.delete(kvseq.append(b"a", b"new"))
        kvseq.delete(kvseq.append(b"b", b"gone"))
        kvseq.sync()
    assert run("get", file, "a").stdout == "old"
    assert [row["deleted"] for row in rows(file)] == [False, True, True]
    assert [line.split()[2] for line in run("list", file).stdout.splitlines()] == ["-", "D", "D"]
    assert "no key b" in run("get", file, "b", code=1).stderr


def test_list_of_a_truncated_file_reports_it(file: Path):
    with KVSeq.create(FileStorage(file, "x")) as kvseq:
        kvseq.append(b"a", b"1")
        end = kvseq.append(b"b", b"2")
    os.truncate(file, end)
    result = run("list", "--json", file)
    assert [json.loads(line)["key"] for line in result.stdout.splitlines()] == ["a"]
    assert "truncated" in result.stderr
    run("add", file, "c", "3", code=1)


@pytest.mark.few
@pytest.mark.parametrize("cellsz", [1, 2, 4])
@pytest.mark.parametrize("htalgo", [1, 2, 3])
def test_hindex_beside_its_kvseq(tmp_path, htalgo, cellsz):
    data, index = tmp_path / "d", tmp_path / "i"
    run("create", "--format", "kvseq", data)
    run(
        "create", "--format", "hindex", index, "--htsize", 3, "--htalgo", htalgo, "--cellsz", cellsz
    )
    words = ["--word", "-7"] if cellsz == 4 else []
    pointers = {}
    for i in range(8):  # grows on the way
        pointers[f"k{i}"] = int(run("add", data, f"k{i}", "v").stdout)
        run("add", index, f"k{i}", pointers[f"k{i}"], "--data", data, *words)
    assert {row["pointer"] for row in rows(index)} == set(pointers.values())
    for key, pointer in pointers.items():
        slot, found, *more = run("get", index, key, "--data", data).stdout.split()
        assert int(found) == pointer
        assert more[1:] == (["-7", "0"] if cellsz == 4 else [])
        assert run("get", index, "--at", slot).stdout.split()[1] == found
    assert "no key nix" in run("get", index, "nix", "--data", data, code=1).stderr
    with HIndex.open(FileStorage(index)) as table:
        assert len(table) == 8


def test_hindex_without_its_kvseq_uses_the_stored_hash(tmp_path):
    with_hash, without = tmp_path / "a", tmp_path / "b"
    for file, cellsz in ((with_hash, 2), (without, 1)):
        run("create", "--format", "hindex", file, "--htsize", 5, "--cellsz", cellsz)
        run("add", file, "key", 5000)
    run("add", with_hash, "key", 6000)  # pointed anew
    assert run("get", with_hash, "key").stdout.split()[1] == "6000"
    assert [row["pointer"] for row in rows(with_hash)] == [6000]
    assert "--data" in run("get", without, "key", code=1).stderr


def test_perm_add_list_group_get(file: Path):
    run("create", "--format", "perm", file)
    for i, pair in enumerate([(10, 5), (11, -4), (12, 5)]):
        assert run("add", file, *pair).stdout == f"{i}\n"
    run("group", file)
    assert [(row["pointer"], row["hash"]) for row in rows(file)] == [(11, -4), (10, 5), (12, 5)]
    assert run("get", file, 2).stdout.split() == ["2", "12", "5"]
    assert "there are 3" in run("get", file, 3, code=1).stderr
    assert run("list", file).stdout.split("\n")[0].split() == ["0", "11", "-4"]


def test_group_with_the_kvseq_orders_equal_hashes_by_key(tmp_path):
    data, perm = tmp_path / "d", tmp_path / "p"
    with KVSeq.create(FileStorage(data, "x")) as kvseq:
        pointers = [kvseq.append(key, b"") for key in (b"c", b"a", b"b", b"z")]
    with Perm.create(FileStorage(perm, "x")) as container:
        container.append_many(pointers, [9, 9, 9, 1])
    run("group", perm, "--data", data)
    assert [row["pointer"] for row in rows(perm)] == list(np.array(pointers)[[3, 1, 2, 0]])


def test_group_of_another_format_is_refused(file: Path):
    run("create", "--format", "kvseq", file)
    assert "only a perm" in run("group", file, code=1).stderr
    run("add", file, "k", "v", "--word", "1", code=2)


@pytest.mark.parametrize(
    "args",
    [["superblock"], ["list"], ["get", "k"], ["add", "k", "5000"], ["group"]],
)
@pytest.mark.parametrize("content", [None, b"", b"#!WINKME", b"text" * 2000, b"foreign"])
def test_file_that_is_none_of_ours_is_one_line_and_exit_1(args, content, file: Path):
    if content == b"foreign":
        content = Superblock.new(0x99, "", {}).encode()
        if args == ["superblock"]:
            return  # a superblock is a superblock
    if content is not None:
        file.write_bytes(content)
    assert str(file) in run(args[0], file, *args[1:], code=1).stderr


def test_container_file_is_changed_only_under_the_lock(tmp_path):
    file = tmp_path / "c.data"
    run("create", "--format", "kvseq", file, "--purpose", "FSYSDATA")
    lock = WriterLock(str(tmp_path / "c"))
    with unchanged(file):
        for args in (["superblock", file, "--set", "X", "1"], ["add", file, "k", "v"]):
            assert str(os.getpid()) in run(*args, code=1).stderr
        run("list", file)
    lock.release()
    run("add", file, "k", "v")
    run("superblock", file, "--set", "X", "1")
    assert [row["key"] for row in rows(file)] == ["k"]


def test_other_files_of_that_suffix_need_no_lock(tmp_path):
    file = tmp_path / "words.data"
    run("create", "--format", "perm", file)
    run("add", file, 1, 2)
    assert list(tmp_path.iterdir()) == [file]


def test_reader_that_stops_early_is_no_traceback(file: Path):
    with Perm.create(FileStorage(file, "x")) as perm:
        perm.append_many(np.arange(50_000), np.arange(50_000))
    program = "from winkfs.cli.fct import fct; fct()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "list", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


# --- magic ---


@pytest.mark.skipif(shutil.which("file") is None, reason="needs file(1)")
@pytest.mark.parametrize("purpose", ["", "TEST", "EIGHTBYT"])
@pytest.mark.parametrize(
    ("form", "expected"),
    [("kvseq", "kvseq format, "), ("hindex", "hindex format "), ("perm", "perm format ")],
)
def test_file_names_format_and_purpose(tmp_path, form, expected, purpose, file: Path):
    run("create", "--format", form, file, "--purpose", purpose)
    text = f"{expected}{purpose}" if purpose else f"{form} format"
    assert ask_file(MAGIC, file) == f"Wink peoplesearcher file, {text}"
    system = Path("/usr/share/misc/magic.mgc")
    if system.exists():  # its rule for "#!" must not win
        assert ask_file(f"{MAGIC}:{system}", file) == f"Wink peoplesearcher file, {text}"
    other = tmp_path / "other"
    other.write_bytes(b"#!/bin/sh\n")
    assert "Wink" not in ask_file(MAGIC, other)


def ask_file(magic: object, file: Path) -> str:
    result = subprocess.run(
        ["file", "-b", "-m", str(magic), str(file)], capture_output=True, text=True, check=True
    )
    assert result.stderr == ""
    return result.stdout.strip()
