"""Random changes through fsspec, beside a dict: contents, listings and directories agree."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import winkfs
import winkfs.dataset

pytest.importorskip("fsspec")
pytestmark = pytest.mark.in_memory
PARTS = ("a", "b", "c d", "@@", ".x", "é")
CALLS = (*["pipe"] * 4, "mkdir", "rm", "rmdir", "mv")
MAKE: dict[str, Callable[[Path], Any]] = {
    "container": winkfs.create,
    "data set": winkfs.dataset.create,
}


class Model:
    """Files by path, and directories that were made."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.made: set[str] = set()

    def copy(self) -> Model:
        found = Model()
        found.files, found.made = dict(self.files), set(self.made)
        return found

    def directories(self) -> set[str]:
        found = set(self.made)
        for path in [*self.files, *self.made]:
            while "/" in path:
                path = path.rpartition("/")[0]
                found.add(path)
        return found

    def below(self, path: str) -> list[str]:
        return [each for each in [*self.files, *self.made] if each.startswith(f"{path}/")]

    def blocked(self, path: str) -> bool:
        """Return whether a part above a path is a file, or the path a directory."""
        parts = path.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts))]
        return any(each in self.files for each in above) or path in self.directories()

    def pipe(self, path: str, value: bytes) -> None:
        if self.blocked(path):
            raise OSError
        self.files[path] = value

    def mkdir(self, path: str) -> None:
        if self.blocked(path) or path in self.files:
            raise OSError
        above = path.rpartition("/")[0]
        if above and above not in self.directories():
            self.mkdir(above)
        self.made.add(path)

    def rm(self, path: str) -> None:
        if path not in self.files and path not in self.directories():
            raise OSError
        for each in [path, *self.below(path)]:
            self.files.pop(each, None)
            self.made.discard(each)

    def rmdir(self, path: str) -> None:
        if path not in self.made or self.below(path):
            raise OSError
        self.made.discard(path)

    def mv(self, source: str, target: str) -> None:
        directory = source in self.directories()
        if not directory and source not in self.files:
            raise OSError
        if target in self.directories():
            target = f"{target}/{source.rpartition('/')[2]}"
        if source == target:
            return
        if target.startswith(f"{source}/"):
            raise OSError
        if not directory:
            moved = self.files[source]
            self.pipe(target, moved)
            del self.files[source]
            return
        if target in self.files or (self.blocked(target) and target not in self.directories()):
            raise OSError
        old = self.copy()
        files = {path: self.files[path] for path in self.below(source) if path in self.files}
        inner = [path for path in self.directories() if path.startswith(f"{source}/")]
        try:
            if target not in self.directories():
                self.mkdir(target)
            for path in sorted(inner):
                new = target + path[len(source) :]
                if new not in self.directories():
                    self.mkdir(new)
            for path in sorted(files):
                self.pipe(target + path[len(source) :], files[path])
        except OSError:
            self.files, self.made = old.files, old.made
            raise
        for path in [source, *self.below(source)]:
            if not path.startswith(f"{target}/"):
                self.files.pop(path, None)
                self.made.discard(path)


def check(fs: Any, model: Model) -> None:
    assert {path: fs.cat_file(path) for path in fs.find("")} == model.files
    both = set(model.files) | model.directories()
    assert set(fs.find("", withdirs=True)) == both
    for path in both:
        assert fs.isdir(path) == (path in model.directories())
        assert fs.info(path)["name"] == path
    assert set(fs.ls("", detail=False)) == {path for path in both if "/" not in path}
    assert fs.glob("*/*") == sorted(path for path in both if path.count("/") == 1)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("start", range(3))
def test_random_changes_are_those_of_a_dict(tmp_path: Path, kind: str, start: int) -> None:
    draw = random.Random(start)
    MAKE[kind](tmp_path / "store").close()
    model = Model()

    def path() -> str:
        return "/".join(draw.choices(PARTS, k=draw.randint(1, 3)))

    with contextlib.ExitStack() as stack:
        fs = stack.enter_context(winkfs.fs(tmp_path / "store", "a"))
        for _ in range(6):
            kept, keep = model.copy(), draw.random() < 0.7
            with contextlib.suppress(ZeroDivisionError), fs.transaction:
                for number in range(12):
                    call, one, two = draw.choice(CALLS), path(), path()
                    more = {"pipe": [b"%d" % number], "mv": [two]}.get(call, [])
                    options = {"recursive": True} if call in ("rm", "mv") else {}
                    before, expected = model.copy(), contextlib.nullcontext()
                    try:
                        getattr(model, call)(one, *more)
                    except OSError:
                        model, expected = before, pytest.raises(OSError)
                        if call == "mv":  # a part of a directory may have been moved
                            continue
                    with expected:
                        getattr(fs, call)(one, *more, **options)
                check(fs, model)
                if not keep:
                    model = kept
                    1 / 0  # noqa: B018
            check(fs, model)
    with winkfs.fs(tmp_path / "store") as fs:
        check(fs, model)
