"""Samples of WebDataset and MDS as sources of `pack`: files, with columns.

A sample that cannot be read is reported and left out; of a damaged shard those that are whole are
read. Nothing is decoded but numbers, texts and JSON: images and pickles stay the bytes that they
are.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import os
import tempfile
import zlib
from base64 import b64decode
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import xxhash

from winkformats.errors import FormatError
from winkfs.archive.decompress import GZIP
from winkfs.archive.items import Item, ItemSource, Large, Note, Notes, Ratio, Unreadable
from winkfs.archive.parquet import ParquetColumns
from winkfs.container.bulk import Row
from winkfs.container.ondisk.typed import (
    LEAST,
    MOST,
    RECORD,
    USER,
    Schema,
    canonical,
    check_schema,
    schema_text,
    to_text,
)
from winkfs.entry import FileType
from winkfs.errors import need
from winkfs.names import MAX_NAME, names_in, to_bytes
from winkfs.samples import mds, webdataset
from winkfs.units import NAMED

SAMPLE_BYTES: Final = 64 << 20  # of a sample that waits for its columns
MOST_JSON: Final = 16 << 20  # bytes of JSON that is parsed
LOOKED_AT: Final = 1000  # samples from which types of columns are found
LOOKED_BYTES: Final = 256 << 20  # of these, at most
PIECE: Final = 1 << 20  # bytes read or written at a time
WHOLE: Final = {"br": "brotli", "snappy": "snappy"}  # codecs of MDS that are no streams
FOUND_HASHES: Final = ("xxh64", "xxh3_64", "xxh128", "xxh3_128")
NO_VALUE: Final = "column {}: a value that does not fit {}, so it is null"
NOT_AMONG: Final = "{} in its JSON is no column of the first samples: the JSON is stored as a file"
TOO_LARGE: Final = "a sample of more than {:,} bytes: stored without columns"


# --- WebDataset ---


class WebSamples:
    """The files of a shard of WebDataset, with the values of their JSON as columns.

    source  the members of the tar file
    known   the columns, see `kinds_of`
    """

    def __init__(self, source: ItemSource, note: Notes, known: Schema) -> None:
        self._source, self._note, self._known = source, note, known

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield the files. Raises as the source does. Memory: a sample, SAMPLE_BYTES at most."""
        key: bytes | None = None
        rows: list[Row] = []
        size = 0
        with closing(self._source.items(by_mtime=by_mtime)) as items:
            for item in items:
                found = webdataset.split(to_bytes(item.name))
                mine = found[0] if found else None
                if rows and mine != key:
                    yield from self._sample(rows)
                    rows, size = [], 0
                key = mine
                row = self._whole(item, SAMPLE_BYTES - size) if mine is not None else None
                if row is not None:
                    rows.append(row)
                    size += len(row.data)
                    continue
                yield from self._sample(rows)
                rows, size = [], 0
                if isinstance(item, Large) and mine is not None:
                    self._note(Note(item.name, TOO_LARGE.format(SAMPLE_BYTES), False, NAMED, True))
                yield item
        yield from self._sample(rows)

    def _whole(self, item: Item, room: int) -> Row | None:
        """Return a file with its content; None: it is none, or too large."""
        if isinstance(item, Row):
            plain = item.ftype in (FileType.FILE, FileType.EXEC)
            return item if plain and len(item.data) <= room else None
        if not isinstance(item, Large) or item.sparse or item.size > room:
            return None
        parts = []
        try:
            while data := item.file.read(PIECE):
                parts.append(data)
        except Unreadable as error:
            self._note(Note(item.name, str(error), True))
            return Row(item.name, b"", None, FileType.DIR)  # left out by `_sample`
        finally:
            item.file.close()
        meta = item.meta
        return Row(item.name, b"".join(parts), meta.mtime_ns, FileType.FILE, meta.mode, meta.uid,
                   meta.gid, meta.xattrs)  # fmt: skip

    def _sample(self, rows: list[Row]) -> Iterator[Row]:
        rows = [row for row in rows if row.ftype != FileType.DIR]
        about = columns_of(rows)
        if about is None or len(rows) == 1:
            yield from rows
            return
        number, values = about
        files = rows[:number] + rows[number + 1 :]
        name = values.pop(webdataset.PATH, None)
        own = names_in(webdataset.PATH, [_utf8(name)])[0] if isinstance(name, str) else b""
        if len(files) == 1 and _is_name(own):
            files = [files[0]._replace(name=own)]
        elif name is not None:
            values[webdataset.PATH] = name
        xattrs, left = self._attributes(to_bytes(files[0].name), values)
        if left:
            files.append(rows[number])
        for row in files:
            yield row._replace(xattrs={**(row.xattrs or {}), **xattrs}) if xattrs else row

    def _attributes(
        self, name: bytes, values: Mapping[str, Any]
    ) -> tuple[dict[bytes, bytes], list[str]]:
        """Return extended attributes with values, and the names of those that no column takes."""
        found, left = {}, []
        for column, value in values.items():
            kind = self._known.get(column)
            if kind is None:
                if value is not None:
                    left.append(column)
                continue
            text = json_text(column, kind, value)
            if text is not None:
                found[USER + column.encode()] = text
            elif value is not None:
                what = NO_VALUE.format(column, kind)
                self._note(Note(name, what, False, NAMED, True))
                left.append(column)
        for column in left:
            if column not in self._known:
                self._note(Note(name, NOT_AMONG.format(column), False, NAMED, True))
        return found | ({RECORD: schema_text(self._known)} if self._known else {}), left


def columns_of(rows: Sequence[Row]) -> tuple[int, dict[str, Any]] | None:
    """Return the file of a sample that has its columns, by its number, and these; None: there is
    none."""
    for wanted in (webdataset.COLUMNS_TOO, webdataset.COLUMNS):
        for number, row in enumerate(rows):
            found = webdataset.split(to_bytes(row.name))
            if found is None or found[1].lower() != wanted or len(row.data) > MOST_JSON:
                continue
            try:
                values = json.loads(row.data)
            except (ValueError, RecursionError):
                continue
            if isinstance(values, dict):
                return number, values
    return None


def kinds_of(source: ItemSource, known: Schema) -> dict[str, str]:
    """Return the columns that the JSON of the first samples of a shard has, and their types.

    known  columns that there are already, whose types stay
    """
    found: dict[str, str | None] = {}

    class Look(WebSamples):
        seen = 0

        def _sample(self, rows: list[Row]) -> Iterator[Row]:
            self.seen += sum(len(row.data) for row in rows)
            about = columns_of(rows) if len(rows) > 1 else None
            for name, value in about[1].items() if about else ():
                if value is not None and name != webdataset.PATH:
                    kind = _kind_of(value)
                    found[name] = _both(found[name], kind) if name in found else kind
            yield from rows[:1]

    try:
        look = Look(source, lambda note: None, {})
        with closing(look.items(by_mtime=False)) as items:
            for item in islice(items, LOOKED_AT):
                if isinstance(item, Large):
                    item.file.close()
                if look.seen > LOOKED_BYTES:
                    break
    except (FormatError, OSError):
        pass  # the task that reads the shard reports it
    chosen = dict(known)
    for name, kind in found.items():
        if kind is not None and name not in known:
            try:
                chosen = check_schema(chosen | {name: kind})
            except ValueError:
                continue
    return chosen


def _kind_of(value: Any) -> str | None:
    """Return the type of a column for a value of JSON; None: none holds it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if LEAST <= value <= MOST else None
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        kinds = {_kind_of(each) for each in value if each is not None}
        if kinds == {"int64", "float64"}:
            kinds = {"float64"}
        one = kinds.pop() if len(kinds) == 1 else None
        return f"list<{one}>" if one in ("string", "int64", "float64") else None
    return None


def _both(one: str | None, other: str | None) -> str | None:
    if one == other:
        return one
    wider = {frozenset(["int64", "float64"]): "float64",
             frozenset(["list<int64>", "list<float64>"]): "list<float64>"}  # fmt: skip
    return wider.get(frozenset([one or "", other or ""]))


def json_text(name: str, kind: str, value: Any) -> bytes | None:
    """Return a value of JSON as the text of a type of column; None: it does not fit."""
    if value is None:
        return None
    try:
        if kind == "binary":
            return b64decode(value, validate=True) if isinstance(value, str) else None
        if isinstance(value, str) and kind != "string":
            return canonical(kind, _utf8(value))
        if kind == "float64" and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind.startswith("decimal") and isinstance(value, int | float):
            return canonical(kind, str(value).encode())
        return to_text(name, kind, value)
    except (ValueError, OverflowError, TypeError):
        return None


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _is_name(name: bytes) -> bool:
    return 0 < len(name) <= MAX_NAME and b"\0" not in name


# --- MDS ---


class MdsSamples:
    """The samples of a shard of MDS, as files.

    folder   that of the index
    shard    its record there
    below    a directory before names that are made from the number of a sample
    columns  which columns are path and content, if there are such
    known    the columns of the target, whose types count
    """

    def __init__(
        self, folder: str, shard: mds.ShardInfo, below: str, note: Notes, scratch: str,
        columns: ParquetColumns, ratio: Ratio, known: Schema,
    ) -> None:  # fmt: skip
        self._folder, self._shard, self._below, self._note = folder, shard, below, note
        self._scratch, self._ratio = scratch, ratio
        stem = shard.basename.removesuffix(".mds")
        self._stem = os.fsencode(f"{below}{stem}/")
        self._path = self._find_path(columns)
        self._contents = self._find_contents(columns)
        self._schema = self._typed(known)

    @property
    def _where(self) -> str:
        return os.path.join(self._folder, self._shard.basename)

    def _find_path(self, columns: ParquetColumns) -> int | None:
        for number, column in enumerate(self._shard.columns):
            if column.name == columns.path and column.encoding == "str":
                return number
        return None

    def _find_contents(self, columns: ParquetColumns) -> list[int]:
        """Return the columns that become files. Raises FormatError if there is none."""
        all_columns = list(enumerate(self._shard.columns))
        found = [number for number, column in all_columns if column.extension is not None]
        # JSON beside an image or bytes is about these.
        found = [
            number for number in found if self._shard.columns[number].encoding != "json"
        ] or found
        named = [
            number for number, column in all_columns
            if column.name == columns.content and number != self._path
            and (column.extension is not None or column.encoding == "str")
        ]  # fmt: skip
        if named and self._path is not None:  # as `winkfs export` writes them
            also = [number for number in found if self._shard.columns[number].encoding != "bytes"]
            return named + [number for number in also if number not in named]
        if named and len(found) <= 1:
            return named
        if found:
            return found
        texts = [
            number for number, column in all_columns
            if column.encoding == "str" and number != self._path
        ]  # fmt: skip
        if len(texts) == 1:
            return texts
        names = ", ".join(f"{column.name} ({column.encoding})" for _, column in all_columns)
        what = "no column that is a file" if not texts else "several texts, and none is the content"
        raise FormatError(f"{self._where}: {what}: --content-column names one of {names}")

    def _typed(self, known: Schema) -> dict[str, str]:
        """Return the columns whose values become those of the files; note those that cannot."""
        found: dict[str, str] = {}
        for number, column in enumerate(self._shard.columns):
            own = {"json": "string", "bytes": "binary"}.get(column.encoding, column.kind)
            if number == self._path or number in self._contents or own is None:
                continue
            try:
                found = check_schema(found | {column.name: known.get(column.name, own)})
            except ValueError as error:
                self._note(Note(os.fsencode(self._where), f"{error}: left out", False))
        return found

    def items(self, *, by_mtime: bool) -> Generator[Item, None, None]:
        """Yield the files. Raises FormatError if the shard is missing, or nothing of it can be
        read; OSError. Memory: a sample."""
        with self._opened() as file:
            self._check_hashes(file)
            size = file.seek(0, os.SEEK_END)
            mtime = os.fstat(file.fileno()).st_mtime_ns
            head = 4 * (self._shard.samples + 2)
            file.seek(0)
            try:
                start = memoryview(file.read(min(head, size)))
                offsets = mds.read_offsets(start, self._shard.samples)
            except FormatError as error:
                raise FormatError(f"{self._where}: {error}") from None
            if size != self._shard.size:
                what = f"it has {size:,} bytes, and in the index {self._shard.size:,}"
                self._note(Note(os.fsencode(self._where), what, True))
            for number, (at, end) in enumerate(
                zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            ):
                try:
                    if not head <= at <= end:
                        raise FormatError(f"its offsets are {at:,} and {end:,}")
                    if end > size:
                        raise FormatError(f"cut: it ends at byte {end:,} of {size:,}")
                    file.seek(at)
                    values = mds.decode(memoryview(file.read(end - at)), self._shard.columns)
                except FormatError as error:
                    where = os.fsencode(f"{self._where}: sample {number}")
                    self._note(Note(where, str(error), True))
                    continue
                yield from self._files(number, values, mtime)

    def _files(self, number: int, values: list[memoryview], mtime: int) -> Iterator[Row]:
        name = self._stem + b"%06d" % number
        if self._path is not None:
            column = self._shard.columns[self._path].name
            name = names_in(column, [bytes(values[self._path])])[0]
        if not _is_name(name):
            what = f"sample {number}: its path has {len(name):,} bytes"
            what += ", or NUL in it" if b"\0" in name else f": 1 to {MAX_NAME:,} are possible"
            self._note(Note(os.fsencode(self._where), what, True))
            return
        xattrs = self._attributes(name, values)
        for place, at in enumerate(self._contents):
            own = name + self._suffix(at, first=place == 0)
            yield Row(own, bytes(values[at]), mtime, FileType.FILE, None, None, None, xattrs)

    def _suffix(self, at: int, *, first: bool) -> bytes:
        """Return what the name of the file of a column ends with."""
        column, several = self._shard.columns[at], len(self._contents) > 1
        if self._path is not None:
            return b"" if first else b"." + os.fsencode(column.name.replace("/", "_"))
        words = [column.name.replace("/", "_")] if several else []
        extension = "txt" if column.encoding == "str" else column.extension or ""
        if extension and words != [extension]:
            words.append(extension)
        return b"".join(b"." + os.fsencode(word) for word in words)

    def _attributes(self, name: bytes, values: list[memoryview]) -> dict[bytes, bytes] | None:
        if not self._schema:
            return None
        found = {RECORD: schema_text(self._schema)}
        for column, value in zip(self._shard.columns, values, strict=True):
            if (kind := self._schema.get(column.name)) is None:
                continue
            text = None
            if len(value) or kind == "string":
                text = canonical(kind, mds.text_of(column, value))
            if text is not None:
                found[USER + column.name.encode()] = text
            elif bytes(value) not in (b"", b"null", b"NaN"):
                what = NO_VALUE.format(column.name, kind)
                self._note(Note(name, what, False, NAMED, True))
        return found

    # --- the file ---

    def _opened(self) -> IO[bytes]:
        """Open the plain file, if necessary a decompressed copy without a name."""
        path = Path(self._where)
        if path.is_file():
            return path.open("rb")
        shard = self._shard
        packed = Path(self._folder, shard.packed)
        if not shard.packed or not packed.is_file():
            raise FormatError(f"{self._where}: the shard is missing")
        read = packed.stat().st_size
        if self._ratio.is_exceeded(shard.size, read):
            raise FormatError(f"{packed}: {self._ratio.reason(read)}")
        copy = tempfile.TemporaryFile(dir=self._scratch, prefix=".winkfs-")  # noqa: SIM115
        try:
            with packed.open("rb") as file:
                made = 0
                for data in _decompressed(file, shard, str(packed)):
                    made += len(data)
                    if made > shard.size:
                        what = f"more than the {shard.size:,} bytes of the index"
                        raise FormatError(f"{packed}: it unpacks to {what}")
                    copy.write(data)
            copy.flush()
        except BaseException:
            copy.close()
            raise
        return copy

    def _check_hashes(self, file: IO[bytes]) -> None:
        """Compare the hashes of the index. Raises FormatError."""
        states = {}
        for name, digits in self._shard.hashes:
            if name in FOUND_HASHES:
                states[name] = getattr(xxhash, name)(), digits
            elif name in hashlib.algorithms_guaranteed and not name.startswith("shake"):
                states[name] = hashlib.new(name), digits
        if not states:
            return
        file.seek(0)
        while data := file.read(PIECE):
            for state, _ in states.values():
                state.update(data)
        for name, (state, digits) in states.items():
            if state.hexdigest() != digits:
                what = f"damaged: its {name} is {state.hexdigest()}, and in the index {digits}"
                raise FormatError(f"{self._where}: {what}")


def _decompressed(file: IO[bytes], shard: mds.ShardInfo, where: str) -> Iterator[bytes]:
    """Yield what a compressed file has. Raises FormatError for damage, and for a codec that is not
    known. Memory: of brotli and snappy the whole shard."""
    kind = shard.compression.partition(":")[0]
    if kind in WHOLE:
        pa = need("pyarrow", f"reading shards that are compressed by {WHOLE[kind]}", "arrow")
        try:
            yield pa.decompress(file.read(), shard.size, codec=WHOLE[kind], asbytes=True)
        except (OSError, ValueError) as error:
            line = str(error).splitlines()[0]
            raise FormatError(f"{where}: damaged {WHOLE[kind]} data: {line}") from None
        return
    if kind == "zstd":
        zstd = need("zstandard", "reading shards that are compressed with zstd")
        try:
            with zstd.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
                while data := reader.read(PIECE):
                    yield data
        except zstd.ZstdError as error:
            raise FormatError(f"{where}: damaged zstd data: {error}") from None
        return
    if kind not in ("gz", "bz2"):
        known = f"zstd, gz, bz2, {' and '.join(WHOLE)} are known"
        raise FormatError(f"{where}: compressed by {kind or 'an unknown codec'}: {known}")
    try:
        state: Any = zlib.decompressobj(GZIP) if kind == "gz" else bz2.BZ2Decompressor()
        while packed := file.read(PIECE):
            while packed or (kind == "bz2" and not (state.needs_input or state.eof)):
                data = state.decompress(packed, PIECE)
                packed = state.unconsumed_tail if kind == "gz" else b""
                if data:
                    yield data
                if state.eof:
                    return
    except (zlib.error, OSError, ValueError, EOFError) as error:
        raise FormatError(f"{where}: damaged {kind} data: {error}") from None
    raise FormatError(f"{where}: its {kind} data are cut")


def folders_of(root: str) -> Iterable[tuple[str, str]]:
    """Yield the folders with an index of MDS, and their paths below `root`, with a / at the end."""
    if Path(root, mds.INDEX).is_file():
        yield root, ""
        return
    for folder, folders, names in os.walk(root):
        folders.sort()
        if mds.INDEX in names:
            folders.clear()
            yield folder, os.path.relpath(folder, root) + "/"


def shards_in(folder: str) -> list[mds.ShardInfo]:
    """Return the shards of an index. Raises FormatError; OSError."""
    path = Path(folder, mds.INDEX)
    if path.stat().st_size > mds.MOST_INDEX:
        raise FormatError(f"{path}: an index of {path.stat().st_size:,} bytes")
    return mds.read_index(path.read_bytes(), str(path))
