"""The folder of the manifests of a data set, on a disk and on object storage.

N.json   a manifest, made by link(2), which is atomic on POSIX and on NFS, or by put-if-absent.
         Empty, on object storage: there was one, and vacuum has taken it
N.copy   on a disk: a copy of its bytes, read if the manifest is damaged or lost; not synced
latest   on object storage: the newest manifest that its writer knew. A hint, it may be old
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

from winkformats.disk.objects import ObjectDirectory
from winkformats.disk.paths import directory_of
from winkformats.disk.schemes import is_far
from winkformats.disk.storage import Directory, Storage
from winkformats.errors import CorruptError, FormatError
from winkfs.dataset.records import Manifest, is_whole, job_of
from winkfs.errors import Refusal

DIGITS: Final = 20
MANIFEST: Final = ".json"
COPY: Final = ".copy"
LATEST: Final = "latest"
NO_LINK: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)
TRIES: Final = 10  # to commit, while answers are lost
PAUSE: Final = 0.05  # seconds before the second try; the pauses grow up to LONGEST
LONGEST: Final = 5.0
WHOLE_BYTES: Final = 256 << 10  # of the first request for a manifest or a part
SINGLE_WRITER: Final = "WINKFS_SINGLE_WRITER"  # set in the environment: no condition is used
_unsure: set[tuple[str, int]] = set()  # visible manifests that may not be on the disk
_checked: set[str] = set()  # data sets whose stores have passed `winkfs remote check`
tried: set[tuple[str, str]] = set()  # folder and job of manifests that this process has put


class Folder:
    """A folder of manifests; `files` is its directory."""

    def __init__(self, path: str, files: Directory | None = None) -> None:
        self.path, self.files = path, files or directory_of(path)

    def name(self, number: int, suffix: str = MANIFEST) -> str:
        return f"{number:0{DIGITS}}{suffix}"

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the manifests, ascending. A copy without a manifest counts only if
        it is intact, because an interrupted commit may have left it."""
        there, copies = self._named(MANIFEST, COPY)
        alone = copies - there
        return sorted(there.union(n for n in alone if any(is_whole(d) for _, d in self.read(n))))

    def named(self, suffix: str) -> set[int]:
        """Return the numbers of the files with this suffix."""
        return self._named(suffix)[0]

    def _named(self, *suffixes: str) -> list[set[int]]:
        """Return for each suffix the numbers of the files with it. Cost: one listing."""
        names = [name for name in self.files.list() if name[:DIGITS].isdecimal()]
        return [{int(name[:DIGITS]) for name in names if name[DIGITS:] == end} for end in suffixes]

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of a manifest, then of its copy, as far as they exist."""
        for suffix in (MANIFEST, COPY):
            name = self.name(number, suffix)
            try:
                with self.files.open(name) as storage:
                    yield f"{self.path}/{name}", storage.read(0, storage.size())
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield f"{self.path}/{name}", b""  # it cannot be read, and counts as damaged

    def newest(self) -> int:
        """Return the number of the newest manifest; -1: there is none."""
        return max(self.numbers(), default=-1)

    def model(self) -> Storage:
        """Open the newest manifest, from which new files take mode and owner. Raises OSError."""
        return self.files.open(self.name(max(self.named(MANIFEST), default=0)))

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """Create a manifest, durably -> False if another writer has created it.

        raises  Refusal if the file system has no link(2); OSError: it may be visible nevertheless,
                and `renew` makes it durable
        """
        self._settle()
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            try:
                self.files.link(file, self.name(number))
            except FileExistsError:
                # Over NFS the reply to a successful link may be lost, and the request repeated.
                info = self.files.info(file)
                if info is None or info.links != 2:
                    return False
            except OSError as error:
                if error.errno in NO_LINK:
                    raise Refusal(
                        "this file system has no hard links, and without them a commit is not "
                        "all or nothing: keep data sets on another one", self.path,
                        number=error.errno,
                    ) from None  # fmt: skip
                raise
            _unsure.add((self.path, number))
            self.files.rename(copy, self.name(number, COPY))
        self._sync(number)
        return True

    def renew(self, number: int, data: bytes) -> None:
        """Write a manifest and its copy again, durably."""
        with self.written(number, data) as file, self.written(number, data, sync=False) as copy:
            self.files.rename(file, self.name(number))
            self.files.rename(copy, self.name(number, COPY))
        self._sync(number)

    def _settle(self) -> None:
        """Write again the manifests whose sync failed, since the next commit depends on them.

        After a failed fsync the kernel may drop a name that is still visible, and the next fsync
        reports no error.
        """
        for path, number in sorted(_unsure):
            if path != self.path:
                continue
            for _, data in self.read(number):
                self.renew(number, data)
                break
            _unsure.discard((path, number))

    def _sync(self, number: int) -> None:
        self.files.sync()
        _unsure.discard((self.path, number))

    @contextlib.contextmanager
    def written(self, number: int, data: bytes, *, sync: bool = True) -> Iterator[str]:
        """Write a temporary file and yield its name; it is removed at the end unless renamed.

        number  generation, from whose manifest, or the one before, mode and owner are taken
        """
        temporary = f".{secrets.token_hex(8)}.tmp"
        try:
            with contextlib.ExitStack() as open_files:
                like = None
                for known in (number, max(number - 1, 0)):
                    with contextlib.suppress(OSError):
                        like = like or open_files.enter_context(self.files.open(self.name(known)))
                file = open_files.enter_context(self.files.create_new(temporary, like=like))
                file.write(0, [data])
                if sync:
                    file.sync()
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                self.files.unlink(temporary)

    def remove(self, number: int) -> None:
        """Remove a manifest and its copy, ignoring missing ones."""
        for suffix in (COPY, MANIFEST):  # in this order a reader never finds the copy alone
            self.files.unlink(self.name(number, suffix))


class FarFolder(Folder):
    """The manifests of a data set on object storage, which has neither rename nor a listing that
    can be trusted. Numbers have no gaps, and one that was used stays used: so N is the newest if
    there is N, and no N + 1.

    unsettled  numbers that were put without an answer, and their jobs
    """

    files: ObjectDirectory

    def __init__(self, path: str) -> None:
        super().__init__(path, far_files(path))
        self.unsettled: set[tuple[int, str]] = set()
        self._known = -1  # a number that is there
        self._counted = True  # False: numbers have gaps, as older versions made them
        self._latest: tuple[int, bytes] = -1, b""

    def numbers(self) -> Sequence[int]:
        """Return the numbers of the manifests, ascending; vacuum may have taken some."""
        newest = self.newest()
        return range(newest + 1) if self._counted else super().numbers()

    def newest(self) -> int:
        """Return the number of the newest manifest, -1: there is none.

        cost  `latest`, and then its number and the next at once; later calls one request
        """
        low = self._known
        if low < 0:
            low = self._hint()
            here, after = self._are_there(low, low + 1)
            if low and not here:  # `latest` is that of another time
                low = 0
                here, after = self._are_there(0, 1)
            self._counted = here
            if not here:
                return max(super().numbers(), default=-1)
        else:
            (after,) = self._are_there(low + 1)
        if after:
            low, step = low + 1, 1
            while self._are_there(low + step)[0]:
                low, step = low + step, 2 * step
            high = low + step
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._are_there(middle)[0] else (low, middle)
        self._known = low
        return low

    def _are_there(self, *numbers: int) -> Sequence[bool]:
        return self.files.there([self.name(number) for number in numbers])

    def _hint(self) -> int:
        """Return the number that `latest` has; 0 without one."""
        (data,) = self.files.read_whole([LATEST])
        if data is not None:
            with contextlib.suppress(FormatError):
                number = Manifest.decode(data, file=f"{self.path}/{LATEST}").generation
                self._latest = number, data
                return number
        return 0

    def take_hint(self) -> tuple[int, bytes]:
        """Return number and bytes of the manifest that `latest` has, -1 without one; from now on
        all manifests are read from their own objects."""
        self.newest()
        found, self._latest = self._latest, (-1, b"")
        return found

    def read(self, number: int) -> Iterator[tuple[str, bytes]]:
        """Yield name and bytes of a manifest; none if vacuum has taken it, or it is not there."""
        data = self._latest[1] if self._latest[0] == number else self.stored(number)
        if data:
            yield f"{self.path}/{self.name(number)}", data
        elif data is None:
            yield from super().read(number)  # a copied folder can have its copy alone

    def stored(self, number: int) -> bytes | None:
        """Return the bytes of a manifest, now; none: vacuum has taken it; None: it is not there."""
        return self.files.read_whole([self.name(number)])[0]

    def settle(self, job: str) -> int | None:
        """Return the number that a job was committed under, of those that were put without an
        answer; None: under none of them. Raises Refusal if vacuum was faster."""
        for number in sorted(n for n, j in self.unsettled if j == job):
            data = self.stored(number)
            if data == b"":
                raise Refusal("whether the job was committed is not known: vacuum was faster",
                              f"{self.path}/{self.name(number)}")  # fmt: skip
            if data is not None and job_of(data) == job:
                return number
        return None

    def put_if_absent(self, number: int, data: bytes) -> bool:
        """Create a manifest, durably -> False if another writer has created it.

        An answer can be lost: so what is there decides, and not the answer.
        raises  PermissionError; CorruptError if the next one is there; OSError: it is not known
                whether it was created
        """
        name = self.name(number)
        if self._are_there(number + 1)[0]:
            if self.stored(number) is not None:
                return False
            file = f"{self.path}/{name}"
            raise CorruptError("the manifest is lost, and a later one is there", file=file,
                               offset=0)  # fmt: skip
        job = job_of(data)
        tried.add((self.path, job))
        for left in range(TRIES, 0, -1):
            try:
                if SINGLE_WRITER in os.environ and self.stored(number) is not None:
                    raise FileExistsError
                self.unsettled.add((number, job))
                self.files.put(name, data, absent=SINGLE_WRITER not in os.environ)
                found: bytes | None = data
            except PermissionError:
                raise
            except OSError as error:
                found, failure = self._settled(number), error
            if found:
                self.unsettled.discard((number, job))
                self._known = number
                if job_of(found) != job:
                    return False
                self._latest = number, data
                with contextlib.suppress(OSError):  # a hint
                    self.files.put(LATEST, data)
                return True
            if found is not None:
                break
            time.sleep(random.uniform(0.5, 1) * min(PAUSE * 2 ** (TRIES - left), LONGEST))
        what = f"whether the commit was made is not known ({failure}): see `winkfs dataset history`"
        raise Refusal(what, f"{self.path}/{name}") from None

    def _settled(self, number: int) -> bytes | None:
        """Return what is stored under a number that was put; None also if there is no answer."""
        with contextlib.suppress(OSError):
            return self.stored(number)
        return None

    def renew(self, number: int, data: bytes) -> None:
        """Do nothing: what is stored is durable."""

    def remove(self, number: int) -> None:
        """Replace a manifest by an empty one, ignoring missing ones."""
        if self.stored(number):
            self.files.put(self.name(number), b"")


def far_files(path: str) -> ObjectDirectory:
    """Return a folder on object storage, whose small files are read with one request."""
    found = directory_of(path)
    assert isinstance(found, ObjectDirectory)
    found.first = WHOLE_BYTES
    return found


def read_files(root: str, names: Sequence[str]) -> Sequence[bytes | None]:
    """Return the bytes of files of a data set, from object storage at once; None: there is none."""
    if is_far(root):
        return far_files(root).read_whole(names)
    found = list[bytes | None]()
    with directory_of(root) as folder:
        for name in names:
            try:
                with folder.open(name) as storage:
                    found.append(storage.read(0, storage.size()))
            except FileNotFoundError:
                found.append(None)
    return found


def check_commits(root: str) -> None:
    """Raise Refusal if it is not known that the store of a data set keeps conditions.

    cost  one request the first time
    """
    if not is_far(root) or SINGLE_WRITER in os.environ or root in _checked:
        return
    from winkfs.remote.check import proven

    if not proven(*far_files(root).place):
        raise Refusal("it is not known whether this store keeps two writers apart: `winkfs remote "
                      f"check {root}` tries it, and `winkfs --single-writer` does without",
                      root, number=errno.EROFS)  # fmt: skip
    _checked.add(root)


def folder_of(path: str) -> Folder:
    """Return the folder of manifests with this path."""
    return FarFolder(path) if is_far(path) else Folder(path)
