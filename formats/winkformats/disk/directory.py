"""Directory: files by name. `paths` says which disk a path is on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, Self

from winkformats.disk.storage import Info, Kind, Storage


class Lock(Protocol):
    """Held until `release`, or until the process ends. `identity` of the file: see `Info`."""

    identity: tuple[int, int]

    def release(self) -> None: ...


class Directory(ABC):
    """A directory. Names are relative to it and may have slashes in them.

    path    of the directory, for messages and for `locate`
    All methods raise OSError.
    """

    path: str

    @abstractmethod
    def open(
        self, name: str, mode: str = "r", *, uncached: bool = False, follow: bool = True
    ) -> Storage:
        """Open a regular file: "r" for reading, "w" for reading and writing.

        follow  whether the name may be a symbolic link
        raises  OSError: there is none, or it is a fifo, a device or a directory
        """

    @abstractmethod
    def create_new(
        self, name: str, *, like: Storage | None = None, uncached: bool = False
    ) -> Storage:
        """Make an empty file, open for reading and writing.

        like    a file whose mode and owner it gets, as far as we may
        raises  FileExistsError where the name is taken, also by a symbolic link
        """

    @abstractmethod
    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name; a file that has it is replaced."""

    @abstractmethod
    def link(self, old: str, new: str) -> None:
        """Give a file a second name. Raises FileExistsError."""

    @abstractmethod
    def unlink(self, name: str) -> None:
        """Remove a name, that of a symbolic link and not what it points to.

        A missing one is none to remove.
        """

    @abstractmethod
    def list(self) -> list[str]:
        """The names, in no order."""

    @abstractmethod
    def sync(self) -> None:
        """Return when the names in this directory are on the disk. See `Storage.sync`."""

    @abstractmethod
    def info(self, name: str = "", *, follow: bool = False) -> Info | None:
        """What stands under a name, None where nothing does; without one: of the directory itself.

        follow  of what a symbolic link points to
        """

    @abstractmethod
    def mkdir(self, name: str) -> None:
        """Raises FileExistsError."""

    def take_after(self, name: str) -> None:  # noqa: B027 - most have no owners
        """Give a directory the mode and owner of this one, as far as we may."""

    @abstractmethod
    def rmdir(self, name: str) -> None:
        """Remove an empty directory."""

    @abstractmethod
    def subdirectory(self, name: str) -> Self:
        """The directory of that name; a symbolic link is refused with NotADirectoryError."""

    @abstractmethod
    def scratch(self) -> Storage:
        """An empty file without a name; it is gone when it is closed."""

    @abstractmethod
    def lock(self, name: str) -> Lock | None:
        """Lock a file against others who lock it -> None where somebody else has it locked.

        The lock is on the file, whatever becomes of its name.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Close the directory. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def exists(self, name: str) -> bool:
        return self.info(name) is not None

    def remove_tree(self, name: str) -> None:
        """Remove a directory with all that is below it; symbolic links are removed, not followed.

        A missing one is none to remove.
        """
        try:
            folder = self.subdirectory(name)
        except FileNotFoundError:
            return
        with folder:
            for entry in folder.list():
                found = folder.info(entry)
                if found is not None and found.kind is Kind.DIRECTORY:
                    folder.remove_tree(entry)
                else:
                    folder.unlink(entry)
        self.rmdir(name)
