"""A small store of records, to hold the commands, the mount and Spark against.

It comes as any store of another distribution does: with an entry point. `shelf` counts references
of hexadecimal ids, `ledger` has versions of numbered records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import winkfs
from winkfs.registry import kinds_with
from winkfs.stores import kinds
from winkfs.stores.records import Records

CODE = '''
import fcntl, os, uuid
from winkfs.errors import CorruptError, Locked, NoSuchFile, ReadOnly
from winkfs.registry import Kind, register
from winkfs.stores.records import Part, Records, Row

ROLL = 1 << 16

class Shelf(Records):
    counts = True

    def __init__(self, path, mode="r"):
        super().__init__(path)
        self._rows, self._ends, self._lock, self._news = {}, {}, None, False
        if mode == "a":
            self._lock = open(os.path.join(path, self.mark), "rb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.close()
                raise Locked("another process writes to it", path) from None
        self.refresh()

    mark = ".shelf"

    def _files(self):
        names = [name for name in os.listdir(self.base) if name.endswith(".rec")]
        return sorted(names, key=lambda name: int(name[:-4]))

    def refresh(self):
        news, self._news = self._news, False
        return self._follow() or news

    def _follow(self):
        files, changed = self._files(), False
        if self._ends.keys() - set(files):
            self._rows, self._ends, changed = {}, {}, True
        for name in files:
            with open(os.path.join(self.base, name), "rb") as file:
                file.seek(self._ends.get(name, 0))
                while (head := file.readline()).endswith(b"\\n"):
                    id, size = head.split()
                    id, size, at = id.decode(), int(size), file.tell() - len(head)
                    if size < 0:
                        self._forget(id)
                    elif len(file.read(size)) == size:
                        self._remember(Row(id, size, name, at, 1 if self.counts else None))
                    else:
                        break
                    self._ends[name], changed = file.tell(), True
                self._ends.setdefault(name, 0)
        return changed

    def _remember(self, row):
        old = self._rows.get(row.id)
        if old and self.counts:
            self._rows[row.id] = old._replace(refs=old.refs + 1)
        else:
            self._rows.pop(row.id, None)
            self._rows[row.id] = row

    def _forget(self, id):
        row = self._rows.pop(id, None)
        if row and row.refs and row.refs > 1:
            self._rows[id] = row._replace(refs=row.refs - 1)

    def rows(self, *parts):
        files = {part.file for part in parts} or set(self._ends)
        found = [row for row in self._rows.values() if row.file in files]
        yield from sorted(found, key=lambda r: (int(r.file[:-4]), r.offset))

    def data_files(self):
        return [Part(n, os.path.getsize(os.path.join(self.base, n))) for n in self._files()]

    def _check(self, id):
        if len(id) != 32 or id.strip("0123456789abcdefABCDEF"):
            raise ValueError(f"{id}: not 32 hexadecimal digits")
        return id.lower()

    def row(self, id):
        id = self._check(id)
        if id not in self._rows:
            raise NoSuchFile("no such record", id)
        return self._rows[id]

    def bodies(self, rows):
        for row in rows:
            if not os.path.exists(os.path.join(self.base, row.file)):
                self._news = self.refresh()
                row = self.row(row.id)
            try:
                with open(os.path.join(self.base, row.file), "rb") as file:
                    file.seek(row.offset)
                    if file.readline().split()[0].decode() != row.id:
                        raise CorruptError("another id", file=row.file, offset=row.offset)
                    body = file.read(row.size)
            except FileNotFoundError:
                raise NoSuchFile("no such record", row.id) from None
            if body.startswith(b"DAMAGED"):
                raise CorruptError("damaged", file=row.file, offset=row.offset)
            yield body

    def mtime_ns(self, file):
        path = os.path.join(self.base, file)
        return os.stat(path).st_mtime_ns if os.path.exists(path) else 0

    def stats(self):
        return {"bytes": sum(r.size for r in self._rows.values()), "files": len(self._ends)}

    def __len__(self):
        return len(self._rows)

    def _append(self, id, size, body=b""):
        if self._lock is None:
            raise ReadOnly("opened to read", self.base)
        last = (self._files() or ["0.rec"])[-1]
        path = os.path.join(self.base, last)
        if os.path.exists(path) and os.path.getsize(path) > ROLL:
            path = os.path.join(self.base, f"{int(last[:-4]) + 1}.rec")
        with open(path, "ab") as file:
            file.write(f"{id} {size}\\n".encode() + body)
        self.refresh()
        return id

    def put(self, id, body):
        id = self._free() if id is None else self._check(id)
        return self._append(id, len(body), body)

    def _free(self):
        return uuid.uuid4().hex

    def remove(self, id):
        self._append(self.row(id).id, -1)

    def sync(self):
        pass

    def compact(self, progress=None, *, dry_run=False):
        """Removes the first file; numbered records in it move behind all others."""
        sizes = [part.size for part in self.data_files()]
        live = [row for row in self.rows() if row.file == self._files()[0]]
        if not dry_run and not (self.counts and live):
            first = self._files()[0]
            name = os.path.join(self.base, f"{int(self._files()[-1][:-4]) + 1}.rec")
            bodies = list(self.bodies(live))
            with open(name, "wb") as file:
                for row, body in zip(live, bodies):
                    for _ in range(row.refs or 1):
                        file.write(f"{row.id} {row.size}\\n".encode() + body)
            os.unlink(os.path.join(self.base, first))
            if progress:
                progress(sizes[0])
            self.refresh()
        return {"records": len(live), "bytes_before": sum(sizes), "dry_run": dry_run}

    def close(self):
        if self._lock:
            self._lock.close()
            self._lock = None

class Ledger(Shelf):
    counts, numbers, mark = False, True, ".ledger"

    def _check(self, id):
        if not id.isdecimal() or int(id) > 2**63 - 1:
            raise ValueError(f"{id}: not a number")
        return str(int(id))

    def _free(self):
        return str(max(map(int, self._rows), default=0) + 1)

def maker(kind):
    def create(path, *, roll: int = 1 << 16, color="red"):
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, kind.mark), "x") as file:
            file.write(f"{roll} {color}")
        return kind(path, "a")
    return create

def salvage(path, target, progress=None):
    with Shelf(path) as old, maker(Shelf)(target) as new:
        lost = 0
        for row, body in old.contents(old.rows()):
            if isinstance(body, Exception):
                lost += row.size
            else:
                new.put(row.id, body)
        return {"bytes": new.stats()["bytes"], "lost_bytes": lost}

def migrate(path, progress=None):
    progress(7)
    return {"files": 1}

def detect(mark):
    return lambda path: path if os.path.exists(os.path.join(path, mark)) else None

register(Kind("shelf", detect(".shelf"), {
    "open": Shelf, "create": maker(Shelf), "salvage": salvage, "migrate": migrate}, editable=True))
register(Kind("ledger", detect(".ledger"), {
    "open": Ledger, "create": maker(Ledger)}, editable=True))
'''
KINDS = ("shelf", "ledger", "message", "log")
REAL = KINDS[2:]
COUNTING = ("shelf", "message")


def install(site: Path, name: str, module: str) -> None:
    """Make a folder of PYTHONPATH one in which a distribution is installed: the kinds of store that
    this module registers."""
    about = site / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "entry_points.txt").write_text(f"[winkfs.stores]\n{name} = {module}\n")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")


@pytest.fixture(scope="session")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with both kinds in it."""
    site = tmp_path_factory.mktemp("site")
    install(site, "shelves", "shelves.kind")
    (site / "shelves").mkdir()
    (site / "shelves/__init__.py").touch()
    (site / "shelves/kind.py").write_text(CODE)
    return site


@pytest.fixture
def installed(shelves: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The PYTHONPATH with it, which subprocesses have, too; here they are registered for a test."""
    kinds_with("open")  # all others are there: this looks along the path once in a process
    path = os.pathsep.join([str(shelves), *sys.path])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.syspath_prepend(str(shelves))
    monkeypatch.setattr(kinds, "_kinds", dict(kinds._kinds))
    monkeypatch.delitem(sys.modules, "shelves.kind", raising=False)  # importing registers them
    import shelves.kind  # type: ignore[import-not-found]

    assert shelves.kind
    return path


@contextmanager
def writing(path: Path) -> Iterator[Records]:
    with winkfs.open(path, "a") as store:
        assert isinstance(store, Records)
        yield store


def made(path: Path, kind: str, bodies: list[bytes]) -> list[str]:
    """A store with these -> their ids."""
    (found,) = (one for one in kinds_with("create") if one.name.removesuffix(" store") == kind)
    store = found.function("create", str(path))(str(path))
    if store is not None:
        store.close()
    with writing(path) as store:
        ids = [store.put(None, body) for body in bodies]
        store.sync()
        return ids


# argv: a store, a file of ids of which it may remove some, .., seconds; it writes those it left.
WRITER = """
import sys, time, winkfs
store = winkfs.open(sys.argv[1], "a")
ids = [line.strip() for line in open(sys.argv[2])]
start = time.monotonic()
while time.monotonic() - start < float(sys.argv[-1]):
    for _ in range(100):
        ids.append(store.put(None, b"needle %d\\n" % len(ids) * 20))
    for id in ids[:50]:
        store.remove(id)
    del ids[:50]
    store.sync()
    store.compact()
    time.sleep(0.05)
store.close()
open(sys.argv[2], "w").write("\\n".join(ids))
"""
