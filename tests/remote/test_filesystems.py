"""Any filesystem of fsspec as a transport."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import stored
from commands import invoke
from simulated.objectstore import ObjectStore

import winkfs
import winkfs.dataset
from winkfs.remote import filesystems, find
from winkfs.remote.find import divided

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

pytestmark = pytest.mark.in_memory
FILES = {f"d{i % 7}/{i:04}": b"%d" % i * (i % 90) for i in range(1500)}


class Odd(MemoryFileSystem):  # type: ignore[misc]
    """A filesystem that counts what is read, and has the faults of others."""

    protocol = "odd"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    etags = ignores_ranges = False
    fails: ClassVar[list[Exception]] = []
    reads: ClassVar[list[str]] = []

    def cat_file(self, path: str, start: Any = None, end: Any = None, **named: Any) -> bytes:
        Odd.reads.append(path)
        for error in Odd.fails:
            raise error
        start, end = (None, None) if Odd.ignores_ranges else (start, end)
        return bytes(super().cat_file(path, start=start, end=end, **named))

    def info(self, path: str, **named: Any) -> dict[str, Any]:
        found = dict(super().info(path, **named))
        return found | ({"ETag": hash(self.store[found["name"]].getvalue())} if Odd.etags else {})


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("odd", Odd, clobber=True)
    for name in ("etags", "ignores_ranges"):
        monkeypatch.setattr(Odd, name, False)
    find.transport_of.cache_clear()
    yield
    Odd.fails.clear()
    Odd.reads.clear()
    for kind in (Odd, MemoryFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return stored.make(tmp_path / "c", FILES)


def put(base: Path, path: str, kind: Any = MemoryFileSystem) -> None:
    for suffix in (".data", ".cat"):
        kind().pipe(path + suffix, base.with_suffix(suffix).read_bytes())


@pytest.mark.parametrize("path", ["bucket/dir/c", "bucket/c", "c"])
def test_a_container_is_read(base: Path, path: str) -> None:
    put(base, f"/{path}")
    with winkfs.open(f"memory://{path}") as there:
        assert dict(there.items()) == FILES and there.read("d1/0001") == b"1"
        assert there.problems == [] and not there.notes  # type: ignore[attr-defined]
        with pickle.loads(pickle.dumps(there)) as copied:
            assert copied.read("d1/0001") == b"1"
    assert winkfs.verify(f"memory://{path}").problems == []
    assert invoke("cat", f"memory://{path}", "d1/0008").stdout_bytes == FILES["d1/0008"]


def test_a_data_set_is_read(tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put_many(FILES.items())
    MemoryFileSystem().put(f"{tmp_path}/set/", "/bucket/set/", recursive=True)
    with winkfs.open("memory://bucket/set") as there:
        assert dict(there.items()) == FILES


def test_a_forked_child_opens_it_anew(tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put_many(FILES.items())
    MemoryFileSystem().put(f"{tmp_path}/set/", "/bucket/set/", recursive=True)

    def child(there: Any) -> None:
        try:
            there.refresh()
        except winkfs.Refusal as error:
            with winkfs.open("memory://bucket/set") as anew:
                os._exit("does not survive fork" not in str(error) or anew.read("d1/0001") != b"1")
        os._exit(2)

    with winkfs.open("memory://bucket/set") as there:
        assert there.read("d1/0001") == b"1"
        forked = multiprocessing.get_context("fork").Process(target=child, args=(there,))
        forked.start()
        forked.join(20)
        assert forked.exitcode == 0 and not there.refresh()


def test_documents_with_an_etag_come_from_the_cache(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "etags", True)
    put(base, "odd://b/c", Odd)
    for _ in range(2):
        Odd.reads.clear()
        with winkfs.open("odd://b/c") as there:
            assert [there.read(name) for name in list(FILES)[700:900:9]] == [
                FILES[name] for name in list(FILES)[700:900:9]
            ]
    assert len(Odd.reads) <= 3


def test_a_replaced_object_is_not_read_on(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(base, "/b/c")
    monkeypatch.setattr(filesystems, "CHECKED", 0.0)
    with winkfs.open("memory://b/c") as there:
        assert there.read("d1/0001") == b"1"
        put(base, "/b/c")
        with pytest.raises(winkfs.StalePlan, match="replaced"):
            list(there.get_many(FILES))


def test_a_shorter_object_is_not_read_on(base: Path) -> None:
    """Whenever it was looked at."""
    put(base, "/b/c")
    with winkfs.open("memory://b/c") as there:
        assert there.read("d1/0001") == b"1"
        MemoryFileSystem().pipe("/b/c.data", base.with_suffix(".data").read_bytes()[:9000])
        with pytest.raises(winkfs.StalePlan, match="replaced"):
            list(there.get_many(FILES))


def test_a_filesystem_that_ignores_ranges_is_refused(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(base, "odd://b/c", Odd)
    monkeypatch.setattr(Odd, "ignores_ranges", True)
    with pytest.raises(OSError, match=r"^odd://b/c.data: the filesystem ignores ranges"):
        winkfs.open("odd://b/c")


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (
            RuntimeError("went\nwrong at https://h/x?sig=secret"),
            OSError,
            "went wrong at https://h/x",
        ),
        (PermissionError(13, "not yours"), winkfs.NotAllowed, "not yours"),
        (KeyError(), OSError, "KeyError"),
        (FileNotFoundError(2, "none"), winkfs.NoSuchFile, "no such container"),
    ],
)
def test_errors_of_its_library_are_one_line(
    base: Path, error: Exception, kind: type[Exception], line: str
) -> None:
    put(base, "odd://b/c", Odd)
    Odd.fails.append(error)
    with pytest.raises(kind) as raised:
        winkfs.open("odd://b/c")
    text = str(raised.value)
    assert text.startswith("odd://b/c") and line in text and "\n" not in text and "sig" not in text


def test_nothing_is_written(base: Path) -> None:
    put(base, "/b/c")
    for act in (
        lambda: winkfs.create("memory://b/new"),
        lambda: winkfs.open("memory://b/c", "a"),
        lambda: winkfs.backup("memory://b/c", "memory://b/copy"),
    ):
        with pytest.raises(OSError, match="can only be read"):
            act()
    assert len(MemoryFileSystem.store) == 2


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(OSError, match="password") as raised:
        winkfs.open("sftp://me:secret@host/c")
    assert "secret" not in str(raised.value)
    assert divided("github://owner:repo@main/dir/c") == ("github://owner:repo@main", "dir/c")
    assert divided("s3a://bucket/c") == ("s3://bucket", "c")


def test_a_library_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: object) -> None:
        raise ImportError("Please install xyz to use it")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(OSError, match=r"^odd://b: Please install xyz"):
        winkfs.open("odd://b/c")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(OSError, match=r"to read sftp://.*fsspec"):
        winkfs.open("sftp://host/c")


def test_other_paths_are_those_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("strange:", "zip:", "Memory:"):
        Path(name).mkdir()
        with winkfs.create(f"{name}//c") as made:
            made.put("a", b"1")
        with winkfs.open(f"{name}//c") as found:
            assert found.read("a") == b"1" and Path(name, "c.data").exists()


def test_fsspec_reads_a_container_in_place(base: Path) -> None:
    with ObjectStore() as store:
        url = store.put_container(base)
        with fsspec.open("wink://d1/0008", fo=url) as file:
            assert file.read() == FILES["d1/0008"]
        file.fs.close()
        put(base, "/b/c")
        with fsspec.open("wink://d1/0008", fo="memory://b/c") as file:
            assert file.read() == FILES["d1/0008"]
            assert file.fs.reader.base == "memory://b/c"
        file.fs.close()
