"""Compressed content through the kernel: documents by any program, also while they change."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from compressed_files import document, documents, frames_of, make
from container_checks import assert_sound, put
from flips import flip
from mounting import mounted, run, soon

import winkfs
from winkfs.container.compact import compact

pytestmark = pytest.mark.mount
FILES = documents()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    make(tmp_path / "c", FILES)
    return tmp_path / "c"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "tree"


def assert_same(tree: Path, there: Path) -> None:
    run("diff", "-r", tree, there)


@pytest.mark.parametrize("options", [("--ro",), ("--ro", "--follow"), ()])
def test_programs_read_documents(options: tuple[str, ...], base: Path, tree: Path) -> None:
    with mounted(base, *options) as there:
        assert_same(tree, there)  # in order: contents are pushed ahead
        assert (there / "large").stat().st_size == len(FILES["large"])
        with (there / "large").open("rb", buffering=0) as file:
            for at in (500_000, 3, 262_140, 699_990, 0):
                file.seek(at)
                assert file.read(1000) == FILES["large"][at : at + 1000]


def test_programs_change_and_write_documents(base: Path, tree: Path) -> None:
    files = dict(FILES)
    with mounted(base) as there:
        with (there / "large").open("ab") as file:
            file.write(b"the end")
        files["large"] += b"the end"
        with (there / "d/030.html").open("r+b") as file:
            file.seek(100)
            file.write(b"XXXX")
        files["d/030.html"] = FILES["d/030.html"][:100] + b"XXXX" + FILES["d/030.html"][104:]
        os.truncate(there / "d/031.html", 50)
        files["d/031.html"] = FILES["d/031.html"][:50]
        os.replace(there / "d/032.html", there / "d/033.html")
        files["d/033.html"] = files.pop("d/032.html")
        (there / "d/034.html").chmod(0o755)
        (there / "d/035.html").unlink()
        del files["d/035.html"]
        shutil.copytree(tree / "d", there / "copy")
        files |= {f"copy/{name[2:]}": data for name, data in FILES.items() if name[:2] == "d/"}
        for i in range(40):
            (there / f"new{i}").write_bytes(document(i, 2000))
            files[f"new{i}"] = document(i, 2000)
        for name, data in files.items():
            assert (there / name).read_bytes() == data, name
    with winkfs.open(base) as c:
        assert {name: c.read(name) for name in files} == files
        assert frames_of(c, "new7") and frames_of(c, "copy/030.html")
        assert c.stat("d/034.html").mode == 0o755
    assert winkfs.verify(base).problems == []


@pytest.mark.parametrize("options", [("--ro",), ("--ro", "--follow")])
def test_a_mount_goes_on_while_contents_are_stored_otherwise(
    options: tuple[str, ...], base: Path, tree: Path
) -> None:
    with mounted(base, *options) as there, (there / "large").open("rb", buffering=0) as file:
        assert file.read(1000) == FILES["large"][:1000]
        for word in ("none", "zstd:3"):
            compact(base, compress=word)
            assert file.read(1000) == FILES["large"][file.tell() - 1000 : file.tell()]
            assert_same(tree, there)
        put(base, "new", document(7))
        (tree / "new").write_bytes(document(7))
        if "--follow" in options:
            soon(lambda: (there / "new").exists())
            assert_same(tree, there)
        file.seek(600_000)
        assert file.read(1000) == FILES["large"][600_000:601_000]


def test_a_damaged_frame_is_an_error_of_one_file(base: Path) -> None:
    with winkfs.open(base) as c:
        (pos,) = frames_of(c, "d/030.html")
    flip(f"{base}.data", pos + 40, bits=4)
    for options in (("--ro",), ()):
        with mounted(base, *options) as there:
            for name, data in FILES.items():
                if name != "d/030.html":
                    assert (there / name).read_bytes() == data
                    continue
                with pytest.raises(OSError, match="Input/output error"):
                    (there / name).read_bytes()


def test_a_mounted_data_set_with_compressed_shards(tmp_path: Path, tree: Path) -> None:
    winkfs.pack(tree, tmp_path / "set", shards=2, compress="zstd")
    with mounted(tmp_path / "set") as there:
        assert_same(tree, there)


def test_what_was_written_is_sound(base: Path) -> None:
    with mounted(base) as there:
        (there / "a").write_bytes(document(3, 400_000))
    assert_sound(base, {n.encode(): d for n, d in FILES.items()} | {b"a": document(3, 400_000)})
