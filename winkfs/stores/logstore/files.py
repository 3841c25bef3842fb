"""Files of a LogStore by their numbers: data files, blob files, and markers of generations.

logstore            the settings
index               the saved index table
datafiles           list of the data files that must exist
store.lock          lock of the one writer
data/N              16 hexadecimal digits: a data file
blob/N              16 hexadecimal digits: a large body
generations/G       4 hexadecimal digits, empty: this generation is in use
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import zlib
from collections.abc import Iterable
from typing import Final

from winkformats.disk.paths import directory_of, make_directory, open_folder
from winkformats.disk.storage import Directory, FileType, SharedStorage, Storage, replacing
from winkformats.logstore import datafiles, entry
from winkformats.logstore.layout import SETTINGS, Layout
from winkfs.errors import CorruptError, FileExists, NoSuchFile, Refusal
from winkfs.stores.kinds import refuse_other

FOLDERS: Final = ("data", "blob", "generations")
NUMBER: Final = re.compile(r"[0-9a-f]{16}")
GENERATION: Final = re.compile(r"[0-9a-f]{4}")
OPEN_FILES: Final = 128  # data files that are kept open to read
COPY_BYTES: Final = 1 << 20  # bytes that are copied at a time


class Files:
    """The directories of a store. All methods raise OSError."""

    def __init__(self, path: str) -> None:
        """Open the directories. Raises NoSuchFile; Refusal; CorruptError for damaged settings."""
        self.path = path
        self._handles: dict[int, SharedStorage] = {}
        self._folders: list[Directory] = []
        self._listing = threading.Lock()  # a row is written at the end that was read
        try:
            self.root = self._opened(open_folder(path))
            with self.root.open(SETTINGS, follow=False) as storage:
                data = storage.read(0, 1 << 10)
            self.layout = Layout.decode(data, file=os.path.join(path, SETTINGS))
            self.data, self.blob, self.generations = map(self._folder, FOLDERS)
        except (FileNotFoundError, NotADirectoryError) as error:
            self.close()
            raise NoSuchFile("no LogStore is there", path) from error
        except BaseException:
            self.close()
            raise

    def _opened(self, folder: Directory) -> Directory:
        self._folders.append(folder)
        return folder

    def _folder(self, name: str) -> Directory:
        """Open a folder. Raises Refusal if it is missing, or is a link."""
        found = self.root.info(name)
        if found is None or found.kind is not FileType.DIRECTORY:
            what = "is not there" if found is None else f"is a {found.kind.value}"
            raise Refusal(f"{name} {what}: a LogStore has a folder there", self.path)
        return self._opened(self.root.subdirectory(name))

    # --- the list of data files ---

    def listed(self) -> tuple[set[int], int] | None:
        """Return the listed data files, and bytes of the list; None: no list, or a damaged one."""
        try:
            with self.root.open(datafiles.NAME, follow=False) as storage:
                return datafiles.decode(storage.read(0, storage.size()), self.layout.store)
        except FileNotFoundError:
            return None

    def missing(self) -> list[int]:
        """Return the data files that are gone without having been removed; a writer may be active.

        cost  a read of the list, and a system call for each of its files
        """
        found = self.listed()
        listed = sorted(found[0]) if found else []
        gone = [number for number in listed if not self.data.exists(f"{number:016x}")]
        if gone:  # a file is listed as removed before it is
            found = self.listed()
            gone = [number for number in gone if found and number in found[0]]
        return gone

    def write_list(self, numbers: Iterable[int]) -> None:
        """Make these the listed data files, durable, unless they are already."""
        wanted = list(numbers)
        found = self.listed()
        if found is None or found[0] != set(wanted):
            with replacing(self.root, datafiles.NAME) as storage:
                storage.write(0, [datafiles.encode(self.layout.store, wanted)])

    def list_as(self, kind: int, number: int) -> None:
        """Add a row to the list, durable."""
        with self._listing:
            found = self.listed()
            if found is None:
                return
            with self.root.open(datafiles.NAME, "w", follow=False) as storage:
                row = datafiles.row(self.layout.store, kind, number)
                room = (
                    -(found[1] + len(row)) % datafiles.ROOM
                    if found[1] + len(row) > storage.size()
                    else 0
                )
                storage.write(found[1], [row, bytes(room)])
                storage.sync()

    # --- numbers ---

    def is_being_removed(self, number: int) -> bool:
        handle = self.handle(number)
        return handle.storage.read(entry.START, 1) == bytes([entry.REMOVED])

    def is_unfinished(self, number: int) -> bool:
        """Return whether a data file has at most an incomplete header."""
        handle = self.handle(number)
        data = handle.storage.read(0, entry.START + 1)
        return len(data) <= entry.START and data != entry.header(number)

    def name(self, number: int) -> str:
        """Return the path of a data file relative to the store."""
        return f"data/{number:016x}"

    # --- data files ---

    def handle(self, number: int) -> SharedStorage:
        """Return a data file, open to read."""
        handle = self._handles.get(number)
        if handle is None:
            handle = SharedStorage(self.data.open(f"{number:016x}", follow=False))
            handles = self._handles
            while len(handles) >= OPEN_FILES:
                with contextlib.suppress(KeyError, StopIteration, RuntimeError):
                    del handles[next(iter(handles))]
            handles[number] = handle
        return handle

    def size(self, number: int) -> int:
        """Return the bytes of a data file."""
        handle = self.handle(number)
        return handle.storage.size()

    def forget(self, number: int | None = None) -> None:
        """Close a data file, or all, as soon as no read uses them."""
        if number is None:
            self._handles = {}
        else:
            self._handles.pop(number, None)

    def rewrite(self, number: int, end: int) -> Storage:
        """Replace a data file by a durable copy of its first `end` bytes; return it, open to write.

        Bytes that an earlier writer could not sync may be in the page cache but not on the disk.
        """
        self.forget(number)
        name = f"{number:016x}"
        with (
            self.data.open(name, follow=False) as old,
            replacing(self.data, name, like=old, keep=True) as new,
        ):
            for at in range(0, end, COPY_BYTES):
                new.write(at, [old.read(at, min(COPY_BYTES, end - at))])
        return new

    def remove(self, number: int) -> None:
        """Remove a data file for good.

        It is marked as removed first, since a power cut may bring its name back.
        """
        name = f"{number:016x}"
        self.list_as(datafiles.REMOVED, number)
        with self.data.open(name, "w", follow=False) as storage:
            storage.write(entry.START, [bytes([entry.REMOVED])])
            storage.sync()
        self.forget(number)
        self.data.unlink(name)
        self.data.sync()

    # --- blobs ---

    def write_blob(self, number: int, body: bytes) -> entry.Blob:
        """Write a body to a blob file. The file is synced, its name is not."""
        name = f"{number:016x}"
        with self.blob.create_new(name) as storage:
            try:
                storage.write(0, [body])
                storage.sync()
            except BaseException:
                self.blob.unlink(name)
                raise
        return entry.Blob(number, len(body), zlib.crc32(body))

    def read_blob(self, blob: entry.Blob) -> bytes:
        """Return the body of a blob. Raises CorruptError; FileNotFoundError."""
        with self.blob.open(f"{blob.number:016x}", follow=False) as storage:
            body = storage.read(0, blob.size) if storage.size() == blob.size else b""
            if len(body) != blob.size or zlib.crc32(body) != blob.checksum:
                raise CorruptError("body of a blob", file=storage.name, offset=0)
        return body

    # --- generations ---

    def use_generation(self, generation: int) -> None:
        """Mark a generation as in use, durable; a mark that exists is written again, since its name
        may not be durable."""
        with replacing(self.generations, f"{generation:04x}"):
            pass

    def free_generation(self, generation: int) -> None:
        self.generations.unlink(f"{generation:04x}")
        self.generations.sync()

    def sync_names(self) -> None:
        for directory in (self.blob, self.data, self.generations, self.root):
            directory.sync()

    def close(self) -> None:
        self.forget()
        for directory in self._folders:
            directory.close()


def numbers_in(directory: Directory, form: re.Pattern[str] = NUMBER) -> list[int]:
    """Return the numbers that the names of a directory are, by their form."""
    return [int(name, 16) for name in directory.list() if form.fullmatch(name)]


def is_store(path: str) -> bool:
    """Return whether a LogStore is there."""
    directory = directory_of(path)
    return directory.info(SETTINGS) is not None and directory.info("generations") is not None


def create(path: str, layout: Layout) -> None:
    """Create an empty store; its settings, by which it is recognised, are written last.

    raises  FileExists if this or another store is there
    """
    refuse_other(path, "log store")
    root = directory_of(path)
    make_directory(path)
    if root.exists(SETTINGS):
        raise FileExists("a LogStore is there already", path)
    for folder in FOLDERS:
        make_directory(os.path.join(path, folder))
    with replacing(root, SETTINGS) as storage:
        storage.write(0, [layout.encode()])
