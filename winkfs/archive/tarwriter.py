"""Writing a tar file: ustar with pax headers, as GNU tar, bsdtar and `pack` read it.

A pax header precedes a member whose metadata do not fit into its block: mtimes with nanoseconds,
long names, extended attributes (SCHILY.xattr), large numbers. Holes of files of 64 KiB or more are
those of GNU.sparse 1.0.
"""

from __future__ import annotations

from itertools import compress
from typing import Final

import numpy as np

from winkformats.errors import FormatError
from winkfs.archive import tarheader as tar
from winkfs.archive.archivewriter import Body, Output, Writes, body_of
from winkfs.archive.items import (
    PERMISSIONS,
    SPARSE_BYTES,
    Allowance,
    Note,
    Notes,
    UnpackReport,
)
from winkfs.archive.tarheader import BLOCK, FIELD, XATTR
from winkfs.archive.tarheaders import encode_many, is_usual, mtimes_many
from winkfs.container.scan import Run
from winkfs.entry import Entry, FileType
from winkfs.units import NANO

NO_TARGET: Final = "a symbolic link to nothing: left out"


class TarWriter:
    """A tar file as a Sink.

    out        file or pipe that it is written to
    allowance  limit of the contents
    note       called with files that are left out
    """

    def __init__(
        self, out: Writes, allowance: Allowance, report: UnpackReport, note: Notes
    ) -> None:
        self._out = Output(out)
        self._allowance, self._report, self._note = allowance, report, note

    def put(self, entry: Entry, path: bytes) -> bool:
        """Write a member; see `Sink`."""
        try:
            if entry.ftype == FileType.DIR:
                self._out.write(self._header(entry, path + b"/", 0, tar.DIR))
                self._report.directories += 1
            elif entry.ftype == FileType.LINK:
                target = entry.read()
                if not target or b"\0" in target:
                    what = "the target of the link has a NUL: left out" if target else NO_TARGET
                    self._note(Note(path, what, True))
                    return False
                self._out.write(self._header(entry, path, 0, tar.LINK, target))
                self._report.links += 1
            else:
                self._file(entry, path)
        except FormatError as error:
            self._note(Note(path, str(error), True))
            return False
        return True

    def put_run(self, run: Run, paths: list[bytes]) -> bool:
        """Write files together, byte for byte as `put` does -> False: they are too many bytes, and
        nothing is written."""
        table = run.table
        total = int(table.size.sum())
        if not self._allowance.has(total):
            return False
        self._allowance.claim(total)
        _, sizes, times, _, modes, uids, gids, _ = stats = table.stats(run.owner)
        folders = table.directories
        ends = zip(paths, folders.tolist(), strict=True)
        paths = [path + b"/" if folder else path for path, folder in ends]
        kinds = np.where(folders, ord(tar.DIR), ord(tar.FILE)).astype(np.uint8)
        seconds, part = np.divmod(times, NANO)
        fits = np.fromiter(map(len, paths), np.int64, len(paths)) <= FIELD
        fits &= (uids <= tar.MOST_ID) & (gids <= tar.MOST_ID)
        fits &= np.where(part == 0, (seconds >= 0) & (seconds <= tar.MOST_NUMBER), is_usual(times))
        others: dict[int, bytes] = {}
        for i in np.flatnonzero(~fits).tolist():
            size, ns, ftype, mode, uid, gid = (int(column[i]) for column in stats[1:7])
            entry = Entry("", 0, size, ns, ftype, mode, uid, gid, ns, bytes)
            others[i] = self._header(entry, paths[i], size, bytes(kinds[i : i + 1]))
        late = fits & (part != 0)
        heads = np.where(late, 3, 1)  # blocks
        heads[list(others)] = [len(head) // BLOCK for head in others.values()]
        counts = heads - (-sizes // BLOCK)
        stops = np.cumsum(counts)
        begins = stops - counts + heads  # of contents
        blocks = np.empty((int(stops[-1]), BLOCK), np.uint8)
        numbers = np.array([modes & PERMISSIONS, uids, gids, sizes, seconds])[:, fits]
        blocks[begins[fits] - 1] = encode_many(list(compress(paths, fits)), numbers, kinds[fits])
        blocks[begins[late, None] - (3, 2)] = mtimes_many(times[late])
        full = sizes > 0
        blocks[stops[full] - 1] = 0  # what follows the content
        into, data, at = blocks.reshape(-1).data, run.data.data, 0
        for i, head in others.items():
            start = int(begins[i]) * BLOCK - len(head)
            into[start : start + len(head)] = head
        for begin, size in zip((begins[full] * BLOCK).tolist(), sizes[full].tolist(), strict=True):
            into[begin : begin + size] = data[at : at + size]
            at += size
        self._out.write_at_once(into)
        directories = int(folders.sum())
        self._report.directories += directories
        self._report.files += len(table) - directories
        self._report.bytes += total
        return True

    def _file(self, entry: Entry, path: bytes) -> None:
        size = entry.size
        if size < SPARSE_BYTES:
            self._allowance.claim(size)
            data = entry.read()
            head = self._header(entry, path, size, tar.FILE)
            self._out.write(head, data, tar.ZEROS[: -size % BLOCK])
        else:
            body = body_of(entry, self._allowance, holes=False)
            if sum(length for _, length in body.ranges) < size:
                size = self._sparse(entry, path, body)
            else:
                self._out.write(self._header(entry, path, size, tar.FILE))
            for data in body.data(holes=False, note=self._note):
                self._out.write(data)
            self._out.write(tar.ZEROS[: -size % BLOCK])
        self._report.files += 1
        self._report.bytes += entry.size

    def _sparse(self, entry: Entry, path: bytes, body: Body) -> int:
        """Write the headers of a file with holes and its map -> bytes of its data that follow."""
        pairs = list(body.ranges)
        if not pairs or sum(pairs[-1]) < entry.size:
            pairs.append((entry.size, 0))  # a hole at the end
        text = b"%d\n" % len(pairs) + b"".join(b"%d\n%d\n" % pair for pair in pairs)
        text += bytes(-len(text) % BLOCK)
        stored = sum(length for _, length in body.ranges)
        above, slash, short = path.rpartition(b"/")
        records = {
            b"GNU.sparse.major": b"1", b"GNU.sparse.minor": b"0", b"GNU.sparse.name": path,
            b"GNU.sparse.realsize": b"%d" % entry.size,
        }  # fmt: skip
        name = above + slash + b"GNUSparseFile.0/" + short
        self._out.write(
            self._header(entry, name, len(text) + stored, tar.FILE, records=records), text
        )
        return stored

    def _header(
        self,
        entry: Entry,
        path: bytes,
        size: int,
        kind: bytes,
        link: bytes = b"",
        records: dict[bytes, bytes] | None = None,
    ) -> bytes:
        """Return the headers of a member."""
        found = dict(records or ())
        seconds, part = divmod(entry.mtime_ns, NANO)
        if part or not 0 <= seconds <= tar.MOST_NUMBER:
            found[b"mtime"] = tar.pax_time_text(entry.mtime_ns)
        if len(path) > FIELD:
            found[b"path"] = path
        if len(link) > FIELD:
            found[b"linkpath"] = link
        if entry.uid > tar.MOST_ID:
            found[b"uid"] = b"%d" % entry.uid
        if entry.gid > tar.MOST_ID:
            found[b"gid"] = b"%d" % entry.gid
        if size > tar.MOST_NUMBER:
            found[b"size"] = b"%d" % size
        for key, value in entry.xattrs.items():
            found[XATTR + key.replace(b"%", b"%25").replace(b"=", b"%3D")] = value
        mode = entry.mode & PERMISSIONS
        block = tar.encode(path, mode, entry.uid, entry.gid, size, seconds, kind, link)
        return tar.pax_header(found) + block if found else block

    def finish(self) -> None:
        """Write the end of the archive."""
        at = self._out.at + len(tar.END)
        self._out.write(tar.END, bytes(-at % tar.RECORD))
        self._out.flush()

    def abort(self) -> None:
        """Do nothing: the output is not published."""
