"""WRITER: which version of winkfs wrote a file last."""

import shutil
from pathlib import Path

import pytest
from container_checks import put, put_many, superblock_of
from stored import make, read

import winkfs
from winkformats.kv.superblock import (
    MAX_VARIABLES,
    WRITER,
    text_value,
    value_text,
)
from winkformats.version import VERSION
from winkfs.container.compact import compact
from winkfs.container.repair import repair

GOLDEN = Path(__file__).parents[1] / "golden"


def writer_of(path) -> str | None:
    block = superblock_of(path)
    return value_text(block[WRITER]) if WRITER in block else None


@pytest.fixture
def golden(tmp_path):
    """-> a function: name of a golden container -> BASE of a copy."""

    def copy(name: str) -> Path:
        for file in GOLDEN.glob(f"{name}.*"):
            shutil.copyfile(file, tmp_path / file.name)
        return tmp_path / name

    return copy


@pytest.mark.parametrize(
    "options", [{}, {"ao": True}, {"compress": "zstd"}, {"columns": {"lang": "string"}}]
)
def test_new_files_have_it(tmp_path, options):
    if "compress" in options:
        pytest.importorskip("zstandard")
    make(tmp_path / "c", {"a": b"content"}, **options)
    files = [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert len(files) == (4 if options.get("ao") else 3)
    for path in files:
        assert writer_of(path) == VERSION, path.name


def test_a_classic_container_has_only_specified_variables(tmp_path):
    make(tmp_path / "c", {"a": b"content"}, classic=True)
    assert [writer_of(path) for path in tmp_path.glob("c.*") if path.suffix != ".lock"] == [
        None
    ] * 2


@pytest.mark.parametrize("change", ["put", "compact"])
def test_the_last_writer_counts(golden, monkeypatch, change):
    base = golden("written")
    monkeypatch.setattr("winkformats.kv.superblock.WRITTEN_BY", {WRITER: text_value("9.8.7")})
    if change == "compact":
        compact(base)
    else:
        put_many(base, ((f"new{i}", b"content") for i in range(20)))
    assert writer_of(f"{base}.data") == writer_of(f"{base}.cat") == "9.8.7"


def test_a_container_from_before_gets_it_at_the_next_sync(golden):
    base = golden("sums")
    assert writer_of(f"{base}.data") is None
    assert read(base, "a.txt") == b"replaced"
    assert writer_of(f"{base}.data") is None  # a reader writes nothing
    put(base, "new", b"content")
    assert writer_of(f"{base}.data") == VERSION


def test_it_gives_way_to_what_a_reader_needs(tmp_path):
    base = tmp_path / "c"
    with winkfs.create(base, columns={"lang": "string"}) as c:
        c.put("a", bytes(4096))
        for i in range(200):  # enough extents for a chain
            c.write("a", 8 * i, b"x")
        c.put("lost", b"it will be damaged")
    path = Path(f"{base}.data")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"it will be", b"it was not"))
    repair(base, apply=True)
    put(base, "b", b"content")
    block = superblock_of(f"{base}.data")
    assert {"COLUMNS", "CUTID", "INCHAIN"} <= block.keys()
    assert len(block) <= MAX_VARIABLES
    assert not winkfs.verify(base).problems


def test_it_is_shown_as_text(tmp_path):
    make(tmp_path / "c", {"a": b"content"})
    assert superblock_of(tmp_path / "c.data").record()[WRITER] == VERSION
