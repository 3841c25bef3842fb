"""DatasetSource: a data set as what winkmount serves, read-only: contents and attributes."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from winkfs.container.columns.columns import BY_INODE
from winkfs.container.ondisk.inode import FileType
from winkfs.mounting.datasetview import DatasetView, Place
from winkfs.mounting.facts import find_data, text_of
from winkfs.mounting.ids import OWN_IDS

if TYPE_CHECKING:
    from winkmount.options import Options


def mount(path: str, options: Options) -> DatasetSource:
    """What `winkfs mount` serves of a data set. Raises WinkError, ValueError, FormatError."""
    if options.timedir:
        from winkfs.mounting.timedsource import TimedSource

        return TimedSource(path, options.as_of or None)
    return DatasetSource(path, options.as_of or None)


class DatasetSource(DatasetView):
    """A data set as of one generation."""

    def read(self, id: int, offset: int, size: int) -> bytes:
        files, chunk, row = self._file(id)
        return files.read(chunk, row, offset, size)

    def seek(self, id: int, offset: int, *, hole: bool) -> int:
        files, chunk, row = self._file(id)
        size = chunk.size.item(row)
        if not 0 <= offset < size:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if chunk.pointer.item(row) != BY_INODE:
            return size if hole else offset
        return find_data(files.extents(chunk.pos.item(row)), offset, hole=hole)

    def readlink(self, id: int) -> bytes:
        files, chunk, row = self._file(id)
        return files.read(chunk, row, 0, chunk.size.item(row))

    def _entry_file(self, id: int) -> Place | None:
        """The same for a directory with an entry, too; None for one without."""
        if id < OWN_IDS:
            return self._file(id)
        found = self.find(self.places[id])
        return found if found and found[1].ftype.item(found[2]) == FileType.DIR else None

    def xattrs(self, id: int) -> Mapping[bytes, bytes]:
        found = self._entry_file(id)
        if found is None or not found[1].special.item(found[2]):
            return {}
        files, chunk, row = found
        attrs = files.found(chunk.pos.item(row)).attrs
        return {} if attrs is None else dict(attrs.xattrs)

    def facts(self, id: int) -> Mapping[str, str]:
        found = self._entry_file(id)
        if found is None:
            return {}
        files, chunk, row = found
        pos = chunk.pos.item(row)
        inode = files.found(pos)
        return {
            "shard": files.record.path,
            "fileid": str(inode.fileid),
            "ftype": chr(inode.ftype) if 32 < inode.ftype < 127 else str(inode.ftype),
            "extents": text_of(files.extents(pos)),
        }

    # the whole

    def status(self) -> Mapping[str, object]:
        shards = self.shown.values()
        return {
            "base": self._log.root,
            "variant": "data set",
            "writable": False,
            "generation": self._snapshot.generation,
            "shards": len(self.shown),
            "broken_shards": sum(files.error is not None for files in shards),
            "files": self._order.count,
            "bytes": sum(files.bytes_shown() for files in shards),
            "container_bytes": sum(files.record.size for files in shards),
        }

    def statfs(self) -> Mapping[str, int]:
        disk = os.statvfs(self._log.root)
        fields = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail")
        return {f"f_{field}": getattr(disk, f"f_{field}") for field in fields}
