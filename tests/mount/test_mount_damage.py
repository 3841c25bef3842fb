"""Mounts over files that are damaged, or cut short below them: what is whole is served."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import data_sets
import pytest
from catalog_checks import store_of
from container_checks import path_of
from flips import flip
from mounting import mounted, not_by_libfuse, refused, server_of, sync
from stored import make

import winkfs

FILES = 400
pytestmark = [pytest.mark.mount, pytest.mark.in_memory]


def content(i: int) -> bytes:
    return b"%d " % i * 300


def fill(base: Path, files: int = FILES) -> None:
    """Files in ten directories, and BASE.cat."""
    make(base, ((f"d{i % 10}/f{i:03}", content(i), 1000 + i) for i in range(files)))
    winkfs.reindex(base)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def corpus(base: Path) -> Path:
    """A container with all the files."""
    fill(base)
    return base


def position(base: Path, name: str) -> int:
    """Return the offset of the inode of a file."""
    with store_of(base) as store:
        return store.index.lookup(name.encode() + b"/I0")


def names_in(directory: Path) -> list[str]:
    return sorted(f"{path.parent.name}/{path.name}" for path in directory.glob("d*/*"))


def all_names(files: int = FILES) -> list[str]:
    return sorted(f"d{i % 10}/f{i:03}" for i in range(files))


def readable(directory: Path, files: int = FILES) -> int:
    """How many files are read, and right; the others must be EIO."""
    count = 0
    for i in range(files):
        try:
            found = (directory / f"d{i % 10}/f{i:03}").read_bytes()
        except OSError as error:
            assert error.errno == errno.EIO, error
        else:
            assert found == content(i)
            count += 1
    return count


def mapped_files(directory: Path) -> list[str]:
    """Files that the server of a mount has mapped, without libraries, and without the one page,
    never touched, that keeps a lock."""
    found = []
    for line in Path(f"/proc/{server_of(directory)}/maps").read_text().splitlines():
        range_, *_, path = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in range_.split("-"))
        if "corpus" in path and end - start > mmap.PAGESIZE:
            found.append(path)
    return found


# --- nothing is mapped, so nothing kills the server ---


@pytest.mark.parametrize("options", [(), ("--ro",), ("--ro", "--follow"), ("--cache", "none")])
def test_a_mount_maps_no_file_of_its_container(corpus: Path, options: tuple[str, ...]) -> None:
    with mounted(corpus, *options) as there:
        assert names_in(there) == all_names()
        assert readable(there) == FILES
        if "--ro" not in options:
            (there / "d1/new").write_bytes(bytes(3 << 20))
            (there / "d1").rename(there / "e1")
            sync(there)
            assert (there / "e1/new").read_bytes() == bytes(3 << 20)
        assert mapped_files(there) == []


def test_a_mount_of_an_append_only_container_maps_no_file(base: Path) -> None:
    make(base, ((f"d{i % 10}/f{i:03}", content(i), 1000 + i) for i in range(FILES)), ao=True)
    with mounted(base, "-o", "timedir") as there:
        assert names_in(there) == all_names()
        assert readable(there) == FILES
        (there / "more").write_bytes(b"more")
        assert sum(len(files) for _, _, files in os.walk(there / ".time")) == FILES + 1
        assert mapped_files(there) == []


@pytest.mark.few
@pytest.mark.parametrize("options", [(), ("--ro",)])
@pytest.mark.parametrize("suffix", [".data", ".idx", ".cat"])
def test_a_file_cut_short_under_a_mount_ends_what_is_gone_alone(
    corpus: Path, suffix: str, options: tuple[str, ...]
) -> None:
    size = path_of(corpus, suffix).stat().st_size
    with mounted(corpus, *options) as there:
        assert (there / "d3/f003").read_bytes() == content(3)
        os.truncate(path_of(corpus, suffix), size // 2)
        count = readable(there)
        if suffix == ".data":
            assert FILES // 4 < count < FILES
        else:  # made again from the data file
            assert count == FILES
            assert not (there / "d3/missing").exists()
            assert names_in(there) == all_names()


def test_an_index_replaced_in_place_by_a_shorter_one_is_no_end(corpus: Path) -> None:
    other = corpus.with_name("small")
    fill(other, 3)
    with mounted(corpus) as there:
        path_of(corpus, ".idx").write_bytes(path_of(other, ".idx").read_bytes())
        assert readable(there) == FILES
        (there / "d1/new").write_bytes(b"new")
        assert (there / "d1/new").read_bytes() == b"new"
    with winkfs.open(corpus) as container:
        assert container.read("d1/new") == b"new"
        assert len(container) == FILES + 1


def test_a_cut_index_loses_no_file_when_a_mount_writes_it_anew(corpus: Path) -> None:
    with mounted(corpus) as there:
        os.truncate(path_of(corpus, ".idx"), 5000)
        (there / "new").write_bytes(b"new")
    with winkfs.open(corpus) as container:
        assert len(container) == FILES + 1
        assert all(container.read(f"d{i % 10}/f{i:03}") == content(i) for i in range(FILES))


# --- a damaged inode ---


@not_by_libfuse("knows no listing with attributes")
@pytest.mark.parametrize("options", [(), ("--ro",)])
@pytest.mark.parametrize("files", [20, FILES])
def test_a_damaged_inode_is_listed_and_costs_no_other_file(
    base: Path, files: int, options: tuple[str, ...]
) -> None:
    fill(base, files)
    flip(path_of(base, ".data"), position(base, "d3/f013") + 60, bits=4)
    with mounted(base, *options) as there:
        assert names_in(there) == all_names(files)
        assert readable(there, files) == files - 1
        assert (there / "d3/f013").stat().st_size == len(content(13))  # as the catalog has it
        with refused(errno.EIO):
            (there / "d3/f013").read_bytes()


@pytest.mark.few
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("options", [(), ("--ro",)])
@pytest.mark.parametrize("at", [1, 2, 3, 6, 10, 11])
def test_a_damaged_name_costs_no_other_and_is_in_the_catalog(
    corpus: Path, at: int, options: tuple[str, ...], again: bool
) -> None:
    """`again`: the catalog is made after the damage."""
    flip(path_of(corpus, ".data"), position(corpus, "d3/f013") + at, bits=4)
    if again:
        path_of(corpus, ".cat").unlink()
    with mounted(corpus, *options) as there:
        with refused(errno.EIO):
            (there / "d3/f013").stat()
        others = [name for name in all_names() if name != "d3/f013"]
        assert names_in(there) == (others if again else all_names())
        assert readable(there) == FILES - 1
        (there / "d3/nothing").exists()


def test_a_damaged_directory_entry_hides_nothing_below_it(base: Path) -> None:
    with winkfs.create(base) as container:
        container.put("d", b"", ftype=winkfs.FileType.DIR)
        for i in range(5):
            container.put(f"d/{i}", content(i))
    flip(path_of(base, ".data"), position(base, "d") + 40, bits=4)
    with mounted(base) as there:
        assert os.listdir(there) == ["d"]
        assert sorted(os.listdir(there / "d")) == list("01234")
        assert (there / "d/3").read_bytes() == content(3)


def test_the_search_is_not_led_astray_by_a_damaged_name(base: Path) -> None:
    """One flipped bit in each name in turn: all others are found, and listed where they belong."""
    fill(base, 30)
    for i in range(0, 30, 7):
        data = path_of(base, ".data").read_bytes()
        flip(path_of(base, ".data"), position(base, f"d{i % 10}/f{i:03}") + 3, bits=4)
        with mounted(base, "--ro") as there:
            assert names_in(there) == all_names(30)
            assert readable(there, 30) == 29
        path_of(base, ".data").write_bytes(data)


# --- data sets ---


def dataset(root: Path) -> list[Path]:
    """The same files in three shards -> the paths of the shards, without suffix."""
    files = {f"d{i % 10}/f{i:03}": content(i) for i in range(FILES)}
    names = list(files)
    data_sets.add(root, *({name: files[name] for name in names[k::3]} for k in range(3)))
    return sorted(path.with_suffix("") for path in root.rglob("*.data"))


@pytest.mark.few
@pytest.mark.parametrize("catalog", [True, False])
@pytest.mark.parametrize("options", [(), ("--follow",), ("-o", "timedir")])
def test_a_mount_of_a_data_set_maps_no_file(
    tmp_path: Path, options: tuple[str, ...], catalog: bool
) -> None:
    root = tmp_path / "corpus"
    for shard in dataset(root):
        if not catalog:
            shard.with_suffix(".cat").unlink()
    with mounted(root, "--ro", *options) as there:
        assert names_in(there) == all_names()
        assert readable(there) == FILES
        if "timedir" in options:
            assert sum(len(files) for _, _, files in os.walk(there / ".time")) == FILES
        assert mapped_files(there) == []


@pytest.mark.few
@pytest.mark.parametrize("suffix", [".data", ".cat"])
@pytest.mark.parametrize("options", [(), ("--follow",)])
def test_a_shard_cut_short_under_a_mount_ends_what_is_gone_alone(
    tmp_path: Path, suffix: str, options: tuple[str, ...]
) -> None:
    root = tmp_path / "corpus"
    shards = dataset(root)
    with mounted(root, "--ro", *options) as there:
        assert (there / "d3/f003").read_bytes() == content(3)
        cut = shards[0].with_suffix(suffix)
        os.truncate(cut, cut.stat().st_size // 2)
        count = readable(there)
        if suffix == ".data":
            assert 2 * FILES // 3 <= count < FILES
        else:  # the inodes tell the same
            assert count == FILES
            assert names_in(there) == all_names()
