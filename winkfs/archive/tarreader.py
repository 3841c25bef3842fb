"""Reading the members of a tar file, forwards.

Damage is skipped with a Note: from a damaged header to the next valid one, as GNU tar does it, or
to the end of a truncated archive. Parts of a member that cannot be read are in its `faults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Final

from winkformats.errors import FormatError
from winkfs.archive import tarheader as tar
from winkfs.archive.decompress import Decompressed
from winkfs.archive.items import PERMISSIONS, Note, Notes, Unreadable
from winkfs.archive.tarheader import BLOCK, XATTR
from winkfs.names import clean, to_str
from winkfs.units import LAST, NANO

BUFFER: Final = 1 << 20  # bytes read from the file at a time
MOST_EXTENDED: Final = 16 << 20  # bytes of a pax header, of a map of holes
MOST_LONG: Final = 1 << 20  # bytes of a long name
MOST_SIZE: Final = 1 << 50  # bytes of a member: a header that asks for more is damaged
SPARSE_KEYS: Final = b"GNU.sparse."
LONG: Final = (tar.LONG_NAME, tar.LONG_LINK)
NUMBERS: Final = (b"mtime", b"size", b"uid", b"gid")
LABEL: Final = "the label of the volume: left out"
GLOBALS: Final = frozenset((b"path", b"linkpath", *NUMBERS))
"""Keys of a global pax header that are kept: their number is bounded."""


class NoTar(FormatError):
    """The file is not a tar file, or has no whole member."""


@dataclass(slots=True)
class Member:
    """A member, from its headers.

    at       offset of its first header, bytes
    size     bytes of its content
    stored   bytes of its data that follow
    holes    (offset, bytes) of each range of data; None: there are no holes
    faults   parts of it that cannot be stored as they are
    failed   why it cannot be read at all
    """

    at: int
    name: bytes
    kind: bytes
    size: int
    stored: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    link: bytes
    xattrs: dict[bytes, bytes]
    holes: list[tuple[int, int]] | None = None
    faults: list[str] = field(default_factory=list)
    failed: str | None = None


class Extended:
    """The extensions before the header of a member: pax records, long names.

    pax     the records, those of global headers among them
    pairs   numbers of the map of holes of GNU.sparse 0.0
    whole   False: a part could not be read, maybe the name or the size
    """

    def __init__(self, pax: dict[bytes, bytes]) -> None:
        self.pax = dict(pax)
        self.pairs: list[bytes] = []
        self.name: bytes | None = None
        self.link: bytes | None = None
        self.whole = True
        self.at: int | None = None
        self.faults: list[str] = []

    def add(self, data: bytes) -> None:
        """Take the records of a pax header."""
        if not data:
            self.faults.append("its pax header is empty")
        for record in tar.pax_records(data):
            if record is None:
                self.whole = False
                self.faults.append("its pax header is damaged")
                return
            key, value = record
            if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
                self.pairs.append(value)
            elif value or key.startswith(XATTR):  # an attribute may be empty
                self.pax[key] = value
            else:
                self.pax.pop(key, None)  # POSIX: as if there were none

    def text(self, key: bytes, long: bytes | None, written: bytes) -> bytes:
        """Return a name: of the pax header, else the long one, else that of the header."""
        value = self.pax.get(key)
        if value is not None and b"\0" in value:
            self.whole = False
            self.faults.append(f"the {key.decode()} of its pax header has a NUL")
            value = None
        return value if value is not None else written if long is None else long

    def number(self, key: bytes, written: int | None, parse: Callable[[bytes], int | None]) -> int:
        """Return a number: of the pax header, else that of the header."""
        if (value := self.pax.get(key)) is not None:
            found = parse(value)
            if found is not None:
                return found
            text = to_str(value[:40]) + "..." * (len(value) > 40)
            self.faults.append(f"the {key.decode()} of its pax header is no number: {text}")
        if written is None:
            self.faults.append(f"its {key.decode()} is no number")
            return 0
        return written


class Reader:
    """Reads the members of an archive in order.

    file          its bytes
    note          called with each damage that is skipped
    ignore_zeros  read on after the end
    source        the decompressor; None: it is not compressed
    """

    def __init__(
        self, file: IO[bytes], note: Notes, *, ignore_zeros: bool, source: Decompressed | None
    ) -> None:
        self._file, self._note, self._ignore_zeros = file, note, ignore_zeros
        self._source = source
        self._at = 0
        self._left = 0  # bytes of data and padding of the last member
        self._doubt = 0  # bytes that may be its data, or the next headers
        self._ended = False
        self._members = 0
        self._zeros = False  # the last block was one of the end
        self._continued = False  # the next member, from another volume
        self.globals: dict[bytes, bytes] = {}

    def go(self, offset: int, known: dict[bytes, bytes]) -> None:
        """Continue at a member. known: `globals` as they were there."""
        self._file.seek(offset)
        self._at, self._left, self._doubt, self._ended = offset, 0, 0, False
        self.globals = known

    # --- bytes ---

    def take(self, size: int) -> bytes:
        """Return the next bytes of the member's data, padding not counted.

        raises  Unreadable if the archive ends before
        """
        data = self._read(size)
        if len(data) < size:
            raise Unreadable(self.cut())
        return data

    def _read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end of the archive."""
        data = self._file.read(size)
        self._at += len(data)
        self._left = max(self._left - len(data), 0)
        if len(data) < size:
            self._left, self._ended = 0, True
            self._check_damage()
        return data

    def drain(self) -> bool:
        """Skip the rest of the member -> whether it was complete."""
        while self._left > 0:
            self._read(min(self._left, BUFFER))
        return not self._ended

    @property
    def read(self) -> int:
        """Bytes read of the file until now."""
        return self._source.read_bytes if self._source else self._at

    def cut(self) -> str:
        """Return why the archive ends before its end."""
        what = self._source.cut if self._source else None
        return "cut: " + (what or f"the archive ends at byte {self._at:,}")

    def _check_damage(self) -> None:
        if self._source and self._source.damage:
            raise FormatError(
                f"{self._source.damage}: {self._source.tool} -c FILE | winkfs pack - BASE takes "
                "what comes before, which may be wrong"
            )

    def _block(self) -> bytes:
        """Return the next block; b"" at the end, noting where it is not the end of the archive."""
        block = self._read(BLOCK)
        if len(block) == BLOCK:
            return block
        if not self._members:
            whole = "whole " if self._source else ""
            raise NoTar(f"not a {whole}tar file: {self.cut()}")
        if block or (self._source and self._source.cut):
            self._bad(self._at - len(block), self.cut())
        elif not self._zeros:
            what = f"the archive ends at byte {self._at:,} without its mark of the end: is it all?"
            self._note(Note(b"", what, True))
        return b""

    def _bad(self, at: int, what: str) -> None:
        self._note(Note(b"byte %d" % at, what, True))

    # --- headers ---

    def next(self) -> Member | None:
        """Return the next member; None at the end."""
        before: Extended | None = None
        while (found := self._header()) is not None:
            (head, block), at = found, self._at - BLOCK
            if head.kind not in (tar.PAX, tar.PAX_SOLARIS, tar.PAX_GLOBAL, *LONG):
                before = before or Extended(self.globals)
                self._members += 1
                return self._member(head, before, at if before.at is None else before.at, block)
            if head.kind == tar.PAX_GLOBAL:
                self._global(head)
                continue
            if before is None:
                before = Extended(self.globals)
                before.at = at
            if not self._extend(before, head):
                break
        if before is not None:
            self._bad(before.at or 0, "an extended header of a member that is missing")
        return None

    def _header(self) -> tuple[tar.Header, bytes] | None:
        """Return the next header and its block, behind what is none; None at the end."""
        if self._left and not self.drain():
            self._bad(self._at, self.cut())
        skipped: int | None = None
        while not self._ended and (block := self._block()):
            at, zeros = self._at - BLOCK, block == tar.ZEROS
            self._zeros = zeros
            if zeros and self._ignore_zeros:
                continue
            head = None if zeros else self._sound_header(block)
            if head is not None or zeros:
                self._doubt = 0
                if skipped is not None:
                    self._bad(skipped, f"no header of a member: skipped up to byte {at:,}")
                if head is not None:
                    return head, block
                self._end()
            elif self._doubt:
                self._left, self._doubt = self._doubt - BLOCK, 0
                if not self.drain():
                    self._bad(self._at, self.cut())
            elif skipped is None:
                skipped = at
                if at == 0 and block[257:262] != tar.OLD_GNU[:5]:
                    raise NoTar("not a tar file")
        if skipped is not None and not self._ended:
            self._bad(skipped, "no header of a member: skipped up to the end")
        return None

    def _sound_header(self, block: bytes) -> tar.Header | None:
        """Return the header in a block; None: it has none, or one whose size is wrong, which is
        noted."""
        if not tar.is_header(block):
            return None
        head = tar.decode(block)
        if _sound(head.size):
            return head
        size = "no number" if head.size is None else f"{head.size:,} bytes"
        self._note(Note(clean(head.name), f"its size is {size}", True))
        return None

    def _end(self) -> None:
        """Read what is behind the end: nothing, zeros, or another archive, which is noted."""
        self._ended, end, start = True, self._at, None
        while data := self._file.read(BUFFER):
            if start is None and (rest := data.lstrip(b"\0")):
                start = self._at + len(data) - len(rest)
            self._at += len(data)
        self._check_damage()
        if start is not None:
            start -= (start - end) % BLOCK
            what = "behind the end of the archive are not read: another archive? --ignore-zeros"
            self._note(Note(b"", f"bytes {start:,} to {self._at:,} {what} reads on", True))
        elif self._source and self._source.cut:
            self._bad(self._at, f"behind the end of the archive: {self._source.cut}")

    def _data(self, size: int, most: int) -> bytes | None:
        """Return the data of an extended header; None: too many, which are passed over."""
        padded = -(-size // BLOCK) * BLOCK
        self._left = padded
        if size > most:
            self.drain()
            return None
        return self._read(padded)[:size]

    def _global(self, head: tar.Header) -> None:
        at = self._at - BLOCK
        data = self._data(head.size or 0, MOST_EXTENDED)
        found = Extended(self.globals)
        if data is None:
            self._bad(at, f"a global pax header of {head.size:,} bytes: not read")
            return
        found.add(data)
        for fault in found.faults:
            self._bad(at, fault.replace("its", "a global", 1))
        if label := found.pax.get(b"GNU.volume.label"):
            self._note(Note(label, LABEL, False))
        self._continued = found.pax.get(b"GNU.volume.offset", b"0") != b"0"
        self.globals = {key: value for key, value in found.pax.items() if key in GLOBALS}

    def _extend(self, before: Extended, head: tar.Header) -> bool:
        """Take an extended header -> whether it was all there."""
        size, long = head.size or 0, head.kind in LONG
        data = self._data(size, MOST_LONG if long else MOST_EXTENDED)
        if data is None:
            before.whole = False
            what = "long name has {:,} bytes" if long else "pax header has {:,} bytes: not read"
            before.faults.append(f"its {what.format(size)}")
        elif head.kind == tar.LONG_NAME:
            before.name = data.partition(b"\0")[0]
        elif head.kind == tar.LONG_LINK:
            before.link = data.partition(b"\0")[0]
        else:
            before.add(data)
        return not self._ended

    def _member(self, head: tar.Header, before: Extended, at: int, block: bytes) -> Member:
        name = before.text(b"path", before.name, head.name)
        link = before.text(b"linkpath", before.link, head.link)
        size = before.number(b"size", head.size, tar.pax_number)
        if not _sound(size):
            before.faults.append(f"its pax header has a size of {size:,} bytes: not taken")
            size = head.size or 0
        written = None if head.mtime is None else head.mtime * NANO
        mtime = before.number(b"mtime", written, tar.pax_time)
        uid = before.number(b"uid", head.uid, tar.pax_number)
        gid = before.number(b"gid", head.gid, tar.pax_number)
        mode = head.mode
        if mode is None:
            before.faults.append("its mode is no number")
            mode = 0o700
        kind = head.kind
        if kind in tar.FILES and head.name.endswith(b"/") and before.name is None:
            kind = tar.DIR
        member = Member(
            at, name, kind, size, size, mode & PERMISSIONS, uid, gid, mtime, link, {},
            faults=before.faults,
        )  # fmt: skip
        if not before.whole and head.full:
            member.failed = f"{before.faults[-1]}, and its name may be longer"
        self._data_of(member, head, before, block)
        return member

    def _data_of(self, member: Member, head: tar.Header, before: Extended, block: bytes) -> None:
        """Find where its data are, its holes and attributes."""
        if head.kind in tar.EMPTY:
            member.stored, self._doubt = 0, -(-member.size // BLOCK) * BLOCK
        self._left = -(-member.stored // BLOCK) * BLOCK
        if member.kind == tar.SPARSE_GNU:
            self._old_sparse(member, block)
        elif before.pairs or any(key.startswith(SPARSE_KEYS) for key in before.pax):
            self._pax_sparse(member, before)
        if self._continued:
            member.kind, self._continued = tar.CONTINUED, False
        for key, value in before.pax.items():
            if key.startswith(XATTR):
                name = key.removeprefix(XATTR).replace(b"%3D", b"=").replace(b"%25", b"%")
                member.xattrs[name] = value

    def _old_sparse(self, member: Member, block: bytes) -> None:
        """Read the map of holes of the old GNU format, which goes on in blocks before the data."""
        found, size, more = tar.gnu_map(block, 386, 4), tar.number(block[483:495]), block[482]
        read = 0
        while more and found is not None and read < MOST_EXTENDED:
            block = self._file.read(BLOCK)
            self._at += len(block)
            read += BLOCK
            part = tar.gnu_map(block, 0, 21) if len(block) == BLOCK else None
            found, more = None if part is None else found + part, block[504:505] > b"\0"
        self._set_holes(member, found, None if more else size)

    def _pax_sparse(self, member: Member, before: Extended) -> None:
        """Read the map of holes of a pax header, or of the data."""
        pax = before.pax
        member.name = before.text(b"GNU.sparse.name", member.name, member.name)
        key = b"GNU.sparse.realsize" if b"GNU.sparse.realsize" in pax else b"GNU.sparse.size"
        size = before.number(key, member.size, tar.pax_number)
        if pax.get(b"GNU.sparse.major", b"0") != b"0":
            self._set_holes(member, self._map_in_data(member), size)
        elif b"GNU.sparse.map" in pax:
            self._set_holes(member, tar.pairs_of(pax[b"GNU.sparse.map"].split(b",")), size)
        elif before.pairs:
            self._set_holes(member, tar.pairs_of(before.pairs), size)

    def _map_in_data(self, member: Member) -> list[tuple[int, int]] | None:
        """Read the map of GNU.sparse 1.0: the number of pairs, then these, a line a number."""
        data, count = b"", 1
        while data.count(b"\n") < count:
            if len(data) >= min(member.stored, MOST_EXTENDED):
                return None
            try:
                data += self.take(BLOCK)
            except Unreadable:
                return None
            first = data.partition(b"\n")[0]
            if b"\n" in data:
                if not first.isdigit() or len(first) > tar.DIGITS:
                    return None
                count = 2 * int(first) + 1
        member.stored -= len(data)
        return tar.pairs_of(data.split(b"\n")[1:count])

    def _set_holes(
        self, member: Member, found: list[tuple[int, int]] | None, size: int | None
    ) -> None:
        if found is None or size is None or not tar.is_map(found, size, member.stored):
            member.failed = "its map of holes is damaged"
            return
        if size > LAST // 8:
            member.failed = f"its size is {size:,} bytes"
            return
        member.size, member.holes = size, found


def _sound(size: int | None) -> bool:
    return size is not None and 0 <= size <= MOST_SIZE
