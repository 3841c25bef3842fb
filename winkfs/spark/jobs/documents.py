"""Title and language of documents, as columns of the files that `ingest --html` stores."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Final

from winkfs.archive.items import Item, ItemSource, Large, Note, Notes, Readable, Unreadable
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import RECORD, USER, parse_schema, schema_text
from winkfs.entry import FileType
from winkfs.spark.jobs.reading import SEARCHED, language_of, title_of

DOCUMENT: Final = {"title": "string", "lang": "string"}


class Documents:
    """The files of a source, with title and language (see `spark.jobs.reading`) in the columns of
    DOCUMENT, unless they have a value there already."""

    def __init__(self, source: ItemSource, note: Notes) -> None:
        self._source, self._note = source, note

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        with contextlib.closing(self._source.items(by_mtime=by_mtime)) as items:
            for item in items:
                if isinstance(item, Row) and item.ftype in (FileType.FILE, FileType.EXEC):
                    yield item._replace(xattrs=_described(item.data, item.xattrs))
                elif isinstance(item, Large) and not item.sparse:
                    try:
                        file = _Peeked(item.file)
                    except Unreadable as error:
                        item.file.close()
                        self._note(Note(item.name, str(error), True))
                        continue
                    meta = item.meta._replace(xattrs=_described(file.head, item.meta.xattrs))
                    yield item._replace(file=file, meta=meta)
                else:
                    yield item


class _Peeked:
    """A file without holes whose first SEARCHED bytes have been read, and are returned again."""

    def __init__(self, file: Readable) -> None:
        """Read the start of a file. Raises Unreadable, FormatError."""
        self._file, self.head = file, b""
        while len(self.head) < SEARCHED and (more := file.read(SEARCHED - len(self.head))):
            self.head += more
        self._rest = self.head

    def read(self, size: int = -1, /) -> bytes:
        if not self._rest:
            return self._file.read(size)
        size = len(self._rest) if size < 0 else size
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def skip_hole(self) -> int:
        return 0

    def rewind(self) -> bool:
        if not self._file.rewind():
            return False
        self._rest = b""
        return True

    def close(self) -> None:
        self._file.close()


def _described(data: bytes, known: Mapping[bytes, bytes] | None) -> Mapping[bytes, bytes] | None:
    """Return the extended attributes of a file, with those of its title and language."""
    known, view, stop = known or {}, memoryview(data), min(len(data), SEARCHED)
    try:
        schema = parse_schema(known.get(RECORD, b""))
    except ValueError:  # an attribute of other software
        return known
    taken = {name.lower() for name, kind in schema.items() if (name, kind) not in DOCUMENT.items()}
    texts = {"title": title_of(view, 0, stop), "lang": language_of(view, 0, stop)}
    found = {
        USER + name.encode(): word for name, word in texts.items() if word and name not in taken
    }
    if not found:
        return known
    new = {name: kind for name, kind in DOCUMENT.items() if name not in taken}
    return found | dict(known) | {RECORD: schema_text(schema | new)}
