"""Frames: compressed content of a container.

Frames      decompresses frames, for all readers
Compressor  makes frames, for a writer
trained     trains a dictionary on samples, and returns it if it saves enough
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from winkformats.arrays import Int64
from winkformats.errors import CorruptError
from winkformats.kv.scan import Batch, scan_intact
from winkformats.kv.sequence import KVSeq
from winkfs.container.ondisk.compressed import KEY, MAX_FRAME_CONTENT, Compression, zstd

PROBE: Final = b"some words, and the same words again: some words" * 9
MIN_FRAME_BYTES: Final = 64  # content below which no frame is made
THREADS: Final = min(os.cpu_count() or 1, 8)
SHARED_BYTES: Final = 1 << 19  # contents from which several threads compress them
SAMPLE_BYTES: Final = 16 << 20  # bytes of content on which a dictionary is trained, at most
SAMPLE_FILES: Final = 4096
MIN_SAMPLE_FILES: Final = 32  # below which no dictionary is trained
ENOUGH_BYTES: Final = 256 << 10  # bytes of a sample that suffice to train a dictionary
HELD_OUT: Final = 8  # each eighth file is not trained on, but compressed to test the dictionary
DICTIONARY_BYTES: Final = 256 << 10  # at most
SAMPLE_PER_BYTE: Final = 32  # bytes of sample for each byte of the dictionary
MAX_RATIO: Final = 0.97  # of the size with a dictionary to that without, for it to be used


class Frames:
    """Reads the frames of a data file; threads may share it.

    at  returns the position of the entry that sets the compression of new content, 0: none
    """

    def __init__(self, kv: KVSeq, at: Callable[[], int]) -> None:
        self._kv, self.at, self._file = kv, at, kv.storage.name
        self._known: tuple[int, Compression] | None = None
        self._searched: tuple[int, dict[int, bytes]] = (0, {})
        self._mine = threading.local()  # decompressors by the ID of their dictionary

    @property
    def compression(self) -> Compression:
        """The current compression of new content. Raises CorruptError."""
        at = self.at()
        if not at:
            return Compression(0)
        if self._known is None or self._known[0] != at:
            self._known = at, self._read(at)
        return self._known[1]

    def _read(self, pos: int) -> Compression:
        entry = self._kv.get(pos)
        if entry.key != KEY:
            what = "not what content is compressed with"
            raise CorruptError(what, file=self._file, offset=pos)
        return Compression.decode(entry.value, file=self._file, offset=pos)

    @property
    def level(self) -> int:
        """The level of `compression`; 0 also if that entry is damaged."""
        try:
            return self.compression.level
        except CorruptError:
            return 0

    def load(self) -> None:
        """Read the dictionary into memory, so that the file may be closed."""
        try:
            _ = self.compression
        except CorruptError:
            self._search()

    def content(self, frame: bytes, pos: int) -> bytes:
        """Decompress the frame that is the value of the entry at `pos`.

        raises  CorruptError, also if the dictionary is damaged or missing; Refusal if zstandard is
                not installed
        cost    memory: MAX_FRAME_CONTENT at most
        """
        library = zstd(self._file)
        try:
            head = library.get_frame_parameters(frame)
            if head.content_size > MAX_FRAME_CONTENT:
                what = "a frame claims to have more in it than a frame can have"
                raise CorruptError(what, file=self._file, offset=pos, found=head.content_size)
            reader = self._decompressor(library, head.dict_id, pos)
            found: bytes = reader.decompress(frame, allow_extra_data=False)
        except library.ZstdError as error:
            what = f"a frame that zstd cannot read ({error})"
            raise CorruptError(what, file=self._file, offset=pos) from None
        return found

    def _decompressor(self, library: Any, number: int, pos: int) -> Any:
        """Return the decompressor of this thread for a dictionary ID; decompressors have state."""
        known: dict[Any, Any] = self._mine.__dict__
        if number not in known:
            words = self._dictionary(number, pos) if number else b""
            chosen = library.ZstdCompressionDict(words) if words else None
            known[number] = library.ZstdDecompressor(dict_data=chosen)
        return known[number]

    def _dictionary(self, number: int, pos: int) -> bytes:
        state = "which is not there"
        try:
            if self.compression.dictid == number:
                return self.compression.dictionary
        except CorruptError as error:
            state = f"which is damaged ({error.what} at byte {error.offset})"
        found = self._search().get(number)
        if found is None:
            what = f"content needs dictionary {number}, {state}"
            raise CorruptError(what, file=self._file, offset=pos)
        return found

    def _search(self) -> dict[int, bytes]:
        """Return all dictionaries of the data file, by ID: the superblock may have lost their
        positions.

        cost    one pass over the data file, once
        """
        kv = self._kv
        if self._searched[0] != kv.end:
            kv.show(kv.end - 1)  # all of it written
            found = {}
            for pos in find_all(kv, kv.start, kv.end):
                with contextlib.suppress(CorruptError):
                    made = self._read(pos)
                    found[made.dictid] = made.dictionary
            self._searched = kv.end, found
        return self._searched[1]


def find_all(kv: KVSeq, start: int, stop: int) -> list[int]:
    """Return positions of the intact entries of [start, stop) that set the compression."""
    found: list[int] = []
    with contextlib.suppress(CorruptError):  # without checksums, the next entry cannot be found
        for batch in scan_intact(kv.storage, kv.layout, start, stop, problem=lambda _: None):
            found += batch.pos[entries_of(batch, KEY)].tolist()
    return found


def entries_of(batch: Batch, key: bytes) -> Int64:
    """Return the indices of the entries of a batch that have this key."""
    first = batch.raw[np.minimum(batch.key, len(batch.raw) - 1)]
    chosen = np.flatnonzero((batch.key_len == len(key)) & (first == key[0]))
    same = np.array([found == key for found in batch.key_views(chosen)], bool)
    found: Int64 = chosen[same]
    return found


class Compressor:
    """Makes frames, on several threads; only one thread may call it at a time."""

    def __init__(self, compression: Compression, file: str, pos: int = 0) -> None:
        """Prepare compressors.

        pos     position of the entry with the dictionary
        raises  Refusal if zstandard is not installed; CorruptError if frames that are made with the
                dictionary could not be read
        """
        library = zstd(file)
        words = compression.dictionary
        chosen = library.ZstdCompressionDict(words) if words else None
        if chosen is not None and not _is_usable(library, chosen, compression.dictid):
            raise CorruptError("a dictionary that zstd cannot use", file=file, offset=pos)
        self._made = [
            library.ZstdCompressor(level=compression.level, dict_data=chosen)
            for _ in range(THREADS)
        ]

    def one(self, data: Any) -> bytes | None:
        """Return the frame of a content; None if it would be hardly smaller."""
        return _frame(self._made[0], data)

    def many(self, contents: Sequence[Any]) -> list[bytes | None]:
        """Return the frames of many contents, None for each that would be hardly smaller."""
        if THREADS == 1 or sum(map(len, contents)) < SHARED_BYTES:
            return list(map(self.one, contents))
        from concurrent.futures import ThreadPoolExecutor  # few containers need it

        def run(number: int) -> list[bytes | None]:
            return [_frame(self._made[number], data) for data in contents[number::THREADS]]

        found: list[bytes | None] = [None] * len(contents)
        with ThreadPoolExecutor(THREADS) as threads:
            for number, part in enumerate(threads.map(run, range(THREADS))):
                found[number::THREADS] = part
        return found


def _is_usable(library: Any, dictionary: Any, number: int) -> bool:
    """Return whether frames that are made with a dictionary have its ID and can be read."""
    try:
        frame = library.ZstdCompressor(dict_data=dictionary).compress(PROBE)
        back = library.ZstdDecompressor(dict_data=dictionary).decompress(frame)
        return bool(back == PROBE and library.get_frame_parameters(frame).dict_id == number)
    except library.ZstdError:
        return False


def _frame(compressor: Any, data: Any) -> bytes | None:
    if len(data) < MIN_FRAME_BYTES:
        return None
    frame: bytes = compressor.compress(data)
    return frame if len(frame) <= len(data) - (len(data) >> 4) else None


def trained(samples: Sequence[bytes], level: int, total: int, file: str) -> Compression:
    """Return the compression for content like some samples, with a dictionary if it saves enough.

    total   bytes of content that there are, about
    raises  Refusal if zstandard is not installed
    """
    library, plain = zstd(file), Compression(level, True)
    held, rest = samples[::HELD_OUT], [x for i, x in enumerate(samples) if i % HELD_OUT]
    size = min(DICTIONARY_BYTES, sum(map(len, rest)) // SAMPLE_PER_BYTE)
    if len(samples) < MIN_SAMPLE_FILES or size < 1024:
        return plain
    try:
        made = library.train_dictionary(size, rest)
    except library.ZstdError:  # too few of them have anything in common
        return plain
    best = Compression(level, True, made.dict_id(), made.as_bytes())
    content = sum(map(len, held))
    without, with_it = (_size(Compressor(one, file), held) for one in (plain, best))
    own = len(best.dictionary) * content / max(total, content)  # its bytes, as a share of these
    return best if with_it + own < MAX_RATIO * without else plain


def _size(compressor: Compressor, contents: Sequence[bytes]) -> int:
    frames = zip(contents, compressor.many(contents), strict=True)
    return sum(len(data if frame is None else frame) for data, frame in frames)
