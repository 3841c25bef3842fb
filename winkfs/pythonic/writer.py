"""Writer: what a store that is written by name has of a dict and of `open`, built on `put`."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, overload

from winkfs.errors import FileExists, NoSuchFile, NoSuchKey
from winkfs.names import Name, to_str
from winkfs.pythonic.files import IN_MEMORY_BYTES, FileWriter, Mode, TextWriter
from winkfs.reader import Reader
from winkfs.units import to_ns

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")
PIECE_BYTES: Final = 1 << 20  # of what is appended to a file at a time
_RAISE: Final[Any] = object()


class Writer(Reader):
    """A store whose files are put and deleted by name."""

    @abstractmethod
    def put(self, *given: Any, **options: Any) -> None:
        """Create or replace a file: name, data, and what the store has besides."""

    @abstractmethod
    def put_many(self, files: Iterable[tuple[Any, ...]]) -> int:
        """Create or replace many files -> how many."""

    @abstractmethod
    def put_file(self, *given: Any, **options: Any) -> int:
        """Create or replace a file: name, and a source whose `read` returns its bytes."""

    @abstractmethod
    def delete(self, name: Name) -> None:
        """Remove a file. Raises FileNotFoundError."""

    @abstractmethod
    def append(self, name: Name, data: ReadableBuffer) -> None:
        """Add to the end of a file."""

    @abstractmethod
    def check_writable(
        self, name: Name, columns: Mapping[str, Any] | None = None, *, append: bool = False
    ) -> None:
        """Check that a file with these columns can be put, or that one can be appended to.

        raises  ReadOnly; Closed; NotAllowed; ValueError for the name or a column
        """

    @abstractmethod
    def locked(self) -> AbstractContextManager[object]:
        """Return a context in which no other thread uses the handle."""

    # --- as a dict ---

    def __setitem__(self, name: Name, data: ReadableBuffer) -> None:
        """Create or replace a file: see `put`."""
        self.put(name, data)

    def __delitem__(self, name: Name) -> None:
        """Remove a file. Raises NoSuchKey, which is a KeyError, for a missing file."""
        try:
            self.delete(name)
        except NoSuchFile as error:
            raise NoSuchKey(error.strerror or "", error.filename) from None

    @overload
    def pop(self, name: Name) -> bytes: ...
    @overload
    def pop(self, name: Name, default: T) -> bytes | T: ...
    def pop(self, name: Name, default: Any = _RAISE) -> Any:
        """Remove a file -> its content; if it is missing, `default`.

        raises  NoSuchKey, which is a KeyError, for a missing file without a default
        """
        with self.locked():
            try:
                content = self[name]
            except KeyError:
                if default is _RAISE:
                    raise
                return default
            del self[name]
            return content

    def setdefault(self, name: Name, data: ReadableBuffer = b"") -> bytes:
        """Create a file unless it exists -> its content."""
        with self.locked():
            if name not in self:
                self.put(name, data)
            return self[name]

    def update(
        self,
        files: Mapping[Any, Any] | Iterable[tuple[Any, ...]] = (),
        /,
        **more: ReadableBuffer,
    ) -> None:
        """Create or replace many files: those of a dict or another store, or (name, data) each.

        raises  as `put_many`, by which they are put
        """
        given: Any = files
        pairs: Any = files
        if hasattr(files, "items"):
            pairs = files.items()
        elif hasattr(files, "keys"):
            pairs = ((name, given[name]) for name in given.keys())  # noqa: SIM118
        self.put_many(pairs)
        if more:
            self.put_many(more.items())

    # --- as files ---

    def _open_to_write(
        self,
        name: Name,
        mode: Mode,
        text: Mapping[str, str | None],
        options: Mapping[str, Any],
    ) -> FileWriter | TextWriter:
        given = {key: value for key, value in options.items() if value is not None}
        to_ns(given.get("mtime"))
        appends = mode.action == "a" and name in self
        self.check_writable(name, given.get("columns"), append=appends)
        if mode.action == "x" and name in self:
            raise FileExists("exists already", to_str(name))
        if mode.action == "a" and given:
            raise ValueError(f"{next(iter(given))} is of a whole file: mode w or x")
        if "permissions" in given:
            given["mode"] = given.pop("permissions")
        store = partial(self._append_all if mode.action == "a" else self._put_all, name)
        if mode.action == "x":
            given["exclusive"] = True
        folder = os.path.dirname(self.base) or "."
        file = FileWriter(to_str(name), f"{mode.action}b", partial(store, **given), folder)
        return TextWriter(file, **text) if mode.text else file  # type: ignore[arg-type]

    def _put_all(
        self, name: Name, file: IO[bytes], size: int, *, exclusive: bool = False, **options: Any
    ) -> None:
        """Put a file from one that is read."""
        if size <= IN_MEMORY_BYTES:
            self.put(name, file.read(), exclusive=exclusive, **options)
            return
        with self.locked():
            if exclusive and name in self:
                raise FileExists("exists already", to_str(name))
            self.put_file(name, file, **options)

    def _append_all(self, name: Name, file: IO[bytes], size: int) -> None:
        """Append a file that is read, or put it if there is none of that name."""
        with self.locked():
            if name not in self:
                self._put_all(name, file, size)
                return
            before = self.stat(name).size
            try:
                while piece := file.read(PIECE_BYTES):
                    self.append(name, piece)
            except BaseException:
                with contextlib.suppress(Exception):
                    self._cut(name, before)
                raise

    def _cut(self, name: Name, size: int) -> None:
        """Cut a file after a failed append, if that is possible."""
