"""pack: a tar file into a container."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
from pathlib import Path

import pytest
import stored
from stored import stat
from trees import files_beside, snapshot

import winkfs
from winkformats.errors import FormatError
from winkfs.archive.items import STREAM_BYTES, Note
from winkfs.archive.pack import pack
from winkfs.archive.unpack import unpack


def tar_of(tree: Path, path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        tar.add(tree, ".")
    return path


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("ao", [False, True])
def test_tar_file_gives_the_same_tree(
    tree: Path, tmp_path: Path, mode: str, ao: bool, notes: list[Note]
) -> None:
    tar = tar_of(tree, tmp_path / "t.tar", mode)
    report = pack(tar, tmp_path / "c", ao=ao, note=notes.append)
    unpack(tmp_path / "c", tmp_path / "back", note=notes.append)
    exact = snapshot(tree)
    back = snapshot(tmp_path / "back")
    assert {n: v[:2] + v[3:] for n, v in back.items()} == {
        n: v[:2] + v[3:] for n, v in exact.items()
    }
    assert all(abs(back[n][2] - exact[n][2]) < 1000 for n in exact)  # type: ignore[operator]
    assert notes == []
    assert report.files == 8


def test_tar_mtime_is_exact_to_the_nanosecond(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a")
    member.pax_headers = {"mtime": "-1.000000001"}
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.addfile(member)
    pack(tmp_path / "t.tar", tmp_path / "c")
    assert stat(tmp_path / "c", "a").mtime_ns == -1_000_000_001


def write_tar(path: Path, *members: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(data) if member.size else None)
    return path


def member(
    name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "", size: int = 0
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("size", [10, STREAM_BYTES + 1])
def test_tar_hard_links_become_copies(
    tmp_path: Path, ao: bool, size: int, notes: list[Note]
) -> None:
    data = random.Random(2).randbytes(size)
    tar = write_tar(
        tmp_path / "t.tar",
        member("./a", size=size),
        member("b", tarfile.LNKTYPE, link="./a"),
        member("c", tarfile.LNKTYPE, link="gone"),
        data=data,
    )
    pack(tar, tmp_path / "c", ao=ao, note=notes.append)
    assert stored.files(tmp_path / "c") == {"a": data, "b": data}
    assert [(n.name, n.failed) for n in notes] == [(b"c", True)]
    assert winkfs.verify(tmp_path / "c").problems == []


def test_tar_names_are_cleaned_and_those_that_climb_are_refused(
    tmp_path: Path, notes: list[Note]
) -> None:
    tar = write_tar(
        tmp_path / "t.tar",
        *map(member, ["/abs", "./dot", "a//b", "../up", "x/../../up", "n" * 65_001, "m" * 65_000]),
        member("tty", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
        member("./", tarfile.DIRTYPE),
    )
    report = pack(tar, tmp_path / "c", note=notes.append)
    assert stored.names(tmp_path / "c") == ["a/b", "abs", "dot", "m" * 65_000]
    assert [n.name for n in notes if n.failed] == [b"../up", b"x/../../up", b"n" * 65_001]
    assert "65,000" in notes[2].what
    assert (report.left_out, report.failed) == (2, 3)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("ao", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.7])
def test_whole_members_of_a_cut_tar_are_packed(
    tmp_path: Path, mode: str, ao: bool, part: float, notes: list[Note]
) -> None:
    if mode == "w:bz2" and part < 0.5:
        pytest.skip("less than a block of bzip2 is there")
    rng = random.Random(3)
    file, wanted = io.BytesIO(), {}
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
        for i in range(500):
            wanted[f"{i}"] = rng.randbytes(3000)
            tar.addfile(member(f"{i}", size=3000), io.BytesIO(wanted[f"{i}"]))
    whole = file.getvalue()
    (tmp_path / "t.tar").write_bytes(whole[: int(len(whole) * part)])
    report = pack(tmp_path / "t.tar", tmp_path / "c", ao=ao, note=notes.append)
    least = 0.3 if mode == "w:bz2" else 0.98  # it has blocks of 900,000 bytes
    assert least * part * 500 < report.files < 500 * part + 3
    assert stored.files(tmp_path / "c") == dict(list(wanted.items())[: report.files])
    assert [note.failed for note in notes] == [True]
    assert notes[0].name in (b"%d" % report.files, b"byte %d" % (report.files * 3584), b"")
    assert "cut" in notes[0].what or "without its mark of the end" in notes[0].what


@pytest.mark.parametrize("size", [1, 10, 20])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_cut_in_its_first_member_makes_no_container(
    tmp_path: Path, mode: str, size: int
) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        tar.addfile(member("a"))
    (tmp_path / "t.tar").write_bytes(file.getvalue()[:size])
    with pytest.raises(FormatError, match=r"t\.tar: not a (whole )?tar file"):
        pack(tmp_path / "t.tar", tmp_path / "c")
    assert files_beside(tmp_path / "c") == []


@pytest.mark.parametrize(("mode", "tool"), [("gz", "gunzip"), ("bz2", "bunzip2"), ("xz", "unxz")])
def test_compressed_file_that_is_no_tar_file_is_called_so(
    tmp_path: Path, mode: str, tool: str
) -> None:
    opener = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[mode]
    with opener(tmp_path / "t", "wb") as file:
        file.write(b"just some text " * 100)
    with pytest.raises(FormatError, match=f"no tar file: {tool} it first"):
        pack(tmp_path / "t", tmp_path / "c")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_whose_first_name_is_the_magic_of_another_kind(tmp_path: Path, mode: str) -> None:
    with tarfile.open(tmp_path / "t", mode) as tar:  # type: ignore[call-overload]
        tar.addfile(member("WARC/1.0"))
        tar.addfile(member("PK\3\4"))
    pack(tmp_path / "t", tmp_path / "c")
    assert stored.names(tmp_path / "c") == ["PK\3\4", "WARC/1.0"]
