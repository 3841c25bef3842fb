"""What the container tests share: ways to change one, what it must hold, child processes."""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from constants import shrink
from folders import MEMORY
from oracle_read import Tree, check

import winkfs
from winkformats.disk.posix import FileStorage
from winkformats.kv.superblock import Superblock, read_superblock
from winkfs import Container, Row

ROOT = Path(__file__).parents[1]
VARIANTS: dict[str, dict[str, bool | int]] = {
    "plain": {},
    "classic": {"classic": True},
    "ao": {"ao": True},
    "classic ao": {"ao": True, "classic": True},
    "plain md5": {"htalgo": 1},
    "plain murmur3": {"htalgo": 3},
    "classic xxh3": {"classic": True, "htalgo": 2},
}


def append(c: Container, name: Any, data: Any) -> None:
    if name not in c:
        c.put(name, b"")
    c.append(name, data)


# The container, a name and its content; for some of them also what `put` has besides.
PUTS: dict[str, Callable[..., object]] = {
    "put": lambda c, name, data, **more: c.put(name, data, **more),
    "put_many": lambda c, name, data: c.put_many([(name, data)]),
    "put_rows": lambda c, name, data, **more: c.put_rows([Row(name, data, **more)]),
    "put_file": lambda c, name, data, **more: c.put_file(name, io.BytesIO(data), **more),
    "append": append,
}

VERBS: dict[str, Callable[[Container], object]] = {
    "put": lambda c: c.put("a", b"new"),
    "put_many": lambda c: c.put_many([("a", b"new")]),
    "put_rows": lambda c: c.put_rows([Row("a", b"new")]),
    "put_file": lambda c: c.put_file("a", io.BytesIO(b"new")),
    "append": lambda c: c.append("a", b"new"),
    "write": lambda c: c.write("a", 0, b"new"),
    "truncate": lambda c: c.truncate("a", 1),
    "mkdir": lambda c: c.mkdir("d"),
    "symlink": lambda c: c.symlink("a", "s"),
    "utime": lambda c: c.utime("a", 1),
    "chmod": lambda c: c.chmod("a", 0o600),
    "chown": lambda c: c.chown("a", 1, 1),
    "setxattrs": lambda c: c.setxattrs("a", {b"x": b"y"}),
    "delete": lambda c: c.delete("a"),
    "rename": lambda c: c.rename("a", "b"),
}


@pytest.fixture(params=["plain", "classic", "ao"])
def variant(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options of a new container."""
    return dict(VARIANTS[request.param])


@pytest.fixture(params=["by reads", "mapped"])
def short_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read by one way all the time."""
    shrink(monkeypatch, "looks", read=1 if request.param == "by reads" else 1 << 40)


@pytest.fixture
def base() -> Iterator[Path]:
    """Where no disk is needed, only its files."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "c"


@pytest.fixture
def c(base: Path) -> Iterator[Container]:
    with winkfs.create(base) as container:
        yield container


def raw(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def path_of(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)


def patch(path: Path, at: int, data: bytes) -> None:
    """Write over some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def drop(base: Path, *suffixes: str) -> None:
    """Remove derived files, as far as they are there: without suffixes, all of them."""
    for suffix in suffixes or (".idx", ".cat", ".time"):
        path_of(base, suffix).unlink(missing_ok=True)


def superblock_of(path: Path | str) -> Superblock:
    with FileStorage(path) as storage:
        return read_superblock(storage)


def copy_files(folder: Path, to: Path) -> None:
    """The files of the container "c" in one folder, into another."""
    for path in folder.glob("c.*"):
        shutil.copy(path, to)


def opening(base: Path, mode: str = "r") -> Container:
    """A handle of what is known to be a container."""
    handle = winkfs.open(base, mode)
    assert isinstance(handle, Container)
    return handle


def files_of(base: Path | str, mode: str = "r") -> dict[str, bytes]:
    """The content of each file, for a new handle."""
    with winkfs.open(base, mode) as c:
        return {name: c.read(name) for name in c.names()}


def image_of(base: Path) -> Path:
    """Copy the files of a container as they are now, as a kill leaves them -> the copy."""
    image = base.with_name("image")
    image.mkdir()
    copy_files(base.parent, image)
    return image / "c"


def put(base: Path | str, *arguments: Any, **options: Any) -> None:
    """Put a file with a new writer."""
    with winkfs.open(base, "a") as container:
        container.put(*arguments, **options)


def put_many(base: Path | str, files: Iterable[Any]) -> None:
    """Put files with a new writer."""
    with winkfs.open(base, "a") as container:
        container.put_many(files)


def delete(base: Path | str, name: str | bytes) -> None:
    """Delete a file with a new writer."""
    with winkfs.open(base, "a") as container:
        container.delete(name)


def names_of(base: Path | str, mode: str = "r") -> list[str]:
    """Return the names of all files to a new handle, in its order."""
    with winkfs.open(base, mode) as container:
        return list(container.names())


def change_superblock(base: Path, change: Callable[[Superblock], object]) -> None:
    """Change both superblocks of BASE.data, whose checksums are right then."""
    path = path_of(base, ".data")
    data = path.read_bytes()
    block = Superblock.decode(data[:8192], file="c")
    change(block)
    path.write_bytes(b"".join(block.images()) + data[8192:])


def contents(container: Container) -> dict[bytes, bytes]:
    """All files, asked for in every way there is; the ways must agree."""
    names = list(container.names())
    listed = {entry.name: entry.read() for entry in container.scan()}
    assert sorted(listed) == sorted(names)
    assert len(container) == len(names) == len(set(names))
    assert dict(zip(names, container.get_many(names), strict=True)) == listed
    for name in names:
        assert container.read(name) == listed[name], name
        assert container.stat(name).size == len(listed[name]), name
        assert name in container
    return {raw(name): data for name, data in listed.items()}


def contents_of(base: Path | str, mode: str = "r") -> dict[bytes, bytes]:
    """Return `contents` of a new handle."""
    with winkfs.open(base, mode) as container:
        return contents(container)


def assert_sound(base: Path, model: Mapping[bytes, bytes], missing_ok: bool = False) -> Tree:
    """A closed container holds exactly these files, for us, for `verify` and for the oracle."""
    tree = check(base, missing_ok=missing_ok)
    assert {name: file.content for name, file in tree.files.items()} == dict(model)
    report = winkfs.verify(base)
    assert report.problems == []
    assert report.files == len(model)
    assert report.bytes == sum(map(len, model.values()))
    with winkfs.open(base) as container:
        assert container.notes == []
        assert contents(container) == dict(model)
    return tree


def one_line(error: BaseException, *parts: str) -> None:
    """The message is one line and has these parts."""
    text = str(error)
    assert text and "\n" not in text, text
    for part in parts:
        assert part in text, text


@contextmanager
def refused(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    *parts: str,
    code: int | None = None,
    match: str | None = None,
) -> Iterator[None]:
    """Fail unless the block raises such an error, with this errno and a message of one line.

    parts   texts that the line has
    """
    with pytest.raises(kind, match=match) as caught:
        yield
    one_line(caught.value, *parts)
    assert code is None or getattr(caught.value, "errno", None) == code


def environment() -> dict[str, str]:
    """Return the environment of a program that imports winkfs and what tests share."""
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "formats", "mount", "tests"))
    return os.environ | {"PYTHONPATH": paths}


def child(code: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    """A Python process with winkfs, its stdin and stdout piped."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )


def run(code: str, *arguments: str | Path) -> str:
    """What a child prints; it must end well."""
    process = child(code, *arguments)
    output = process.communicate(timeout=100)[0]
    assert process.returncode == 0
    return output.decode()
