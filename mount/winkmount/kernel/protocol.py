"""The kernel's FUSE protocol: the numbers and structures of linux/fuse.h that are used here.

A request is IN and what its opcode has, a reply OUT and its data. A notice is OUT with unique 0
and its code in the place of the error. All in the byte order of the machine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

Call = Callable[[int, memoryview], bytes]
"""Answers a request for a number, whose body is given. The body is gone after the call."""
Calls = dict[int, Call]
"""By opcode."""

MAJOR: Final = 7
MINOR: Final = 38  # the newest that is known here; the kernel may be older or newer
TOP: Final = 1  # number of the top directory

# requests
LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK, MKNOD, MKDIR = 1, 2, 3, 4, 5, 6, 8, 9
UNLINK, RMDIR, RENAME, LINK, OPEN, READ, WRITE, STATFS, RELEASE = 10, 11, 12, 13, 14, 15, 16, 17, 18
FSYNC, SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, FLUSH, INIT = 20, 21, 22, 23, 24, 25, 26
OPENDIR, READDIR, RELEASEDIR, FSYNCDIR, ACCESS, CREATE, INTERRUPT = 27, 28, 29, 30, 34, 35, 36
BATCH_FORGET, FALLOCATE, READDIRPLUS, RENAME2, LSEEK = 42, 43, 44, 45, 46
SILENT: Final = frozenset({FORGET, INTERRUPT, BATCH_FORGET})  # no reply is awaited
CHANGES: Final = frozenset({4, 6, 8, 9, 10, 11, 12, 13, 16, 21, 24, 35, 43, 45, 47, 51})

# notices
STORE: Final = 4  # bytes of a file for the page cache
PRUNE: Final = 9  # numbers of files that are not in use; 7.45

# what each side states in INIT that it can
ASYNC_READ: Final = 1 << 0
ATOMIC_O_TRUNC: Final = 1 << 3
BIG_WRITES: Final = 1 << 5
DO_READDIRPLUS: Final = 1 << 13
ASYNC_DIO: Final = 1 << 15
NO_OPEN_SUPPORT: Final = 1 << 17
PARALLEL_DIROPS: Final = 1 << 18
MAX_PAGES: Final = 1 << 22
CACHE_SYMLINKS: Final = 1 << 23
HANDLE_KILLPRIV_V2: Final = 1 << 28
INIT_EXT: Final = 1 << 30  # there are flags from 32 on
REQUEST_TIMEOUT: Final = 1 << 42
AUTO_INVAL_DATA: Final = 1 << 12

# of a SETATTR: what is set
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME, SET_FH = 1, 2, 4, 8, 16, 32, 64
SET_MTIME_NOW, KILLS = 1 << 8, 1 << 11
SET_ANY: Final = SET_MODE | SET_UID | SET_GID | SET_ATIME | SET_MTIME  # all but the size

KILL_AT_OPEN: Final = 1  # of an OPEN or CREATE: take set-user-ID bits away
KILL_AT_WRITE: Final = 4
DIRECT_IO, KEEP_CACHE, CACHE_DIR, NOFLUSH = 1, 2, 8, 32  # of the answer to an OPEN

UINT16: Final = (1 << 16) - 1
UINT32: Final = (1 << 32) - 1
MOST: Final = 1 << 20  # bytes of one read or write
REQUEST: Final = MOST + 4096  # bytes of the largest request

IN: Final = struct.Struct("=IIQQ16x")  # fuse_in_header: length, opcode, unique, node
CALLER: Final = struct.Struct("=24xIII")  # of the same: uid, gid, pid
OUT: Final = struct.Struct("=IiQ")  # fuse_out_header: length, -errno, unique
INIT_IN: Final = struct.Struct("=IIII")  # major, minor, max_readahead, flags
INIT_MORE: Final = struct.Struct("=16xI")  # of a newer kernel: flags from 32 on
INIT_OUT: Final = struct.Struct("=IIIIHHIIHHIIH22x")  # ... flags from 32 on, stack, timeout
SETATTR_IN: Final = struct.Struct("=I4xQQ16xq12xI4xI4xII4x")  # what, fh, size, mtime, its
# nanoseconds, mode, uid, gid
MKNOD_IN: Final = struct.Struct("=II8x")  # mode, device
MKDIR_IN: Final = struct.Struct("=I4x")  # mode
RENAME_IN: Final = struct.Struct("=Q")  # directory
RENAME2_IN: Final = struct.Struct("=QI4x")  # directory, flags
OPEN_IN: Final = struct.Struct("=II")  # flags, how
CREATE_IN: Final = struct.Struct("=II4xI")  # flags, mode, how
OPEN_OUT: Final = struct.Struct("=QI4x")  # handle, flags
WRITE_IN: Final = struct.Struct("=QQII16x")  # handle, offset, size, flags
HANDLE: Final = struct.Struct("=Q")  # begins a fuse_release_in, _flush_in, _fsync_in ...
GETATTR_IN: Final = struct.Struct("=I4xQ")  # flags, handle
FSYNC_IN: Final = struct.Struct("=QI4x")  # handle, flags
SETXATTR_IN: Final = struct.Struct("=II")  # size, flags
FALLOCATE_IN: Final = struct.Struct("=QQQI4x")  # handle, offset, size, mode
READ_IN: Final = struct.Struct("=QQI")  # of a fuse_read_in: handle, offset, size
LSEEK_IN: Final = struct.Struct("=QqI")  # handle, offset, whence
PRUNE_OUT: Final = struct.Struct("=I12x")  # count, and as many numbers
STORE_OUT: Final = struct.Struct("=QQI4x")  # node, offset, size
LONG: Final = struct.Struct("=Q")
WORD: Final = struct.Struct("=I")
WORDS: Final = struct.Struct("=II")
STATFS_OUT: Final = struct.Struct("=5Q3I28x")
ATTR: Final = "6q10I"  # fuse_attr
ATTR_OUT: Final = struct.Struct("=QII" + ATTR)
ENTRY_OUT: Final = struct.Struct("=QQQQII" + ATTR)
DIRENT: Final = struct.Struct("=QQII")  # id, offset, length of the name, kind
DOT: Final = struct.Struct("=QQII8s")
ENTRY: Final = np.dtype({  # fuse_direntplus, without the name; the fields that are filled
    "names": [
        "node", "valid", "valid_nanos", "id", "size", "blocks", "seconds", "nanos", "mode",
        "links", "uid", "gid", "blksize", "ino", "offset", "length", "kind",
    ],
    "formats": [
        "i8", "(2,)u8", "(2,)u4", "i8", "i8", "i8", "(3,)i8", "(3,)u4", "u4", "u4", "u4", "u4",
        "u4", "i8", "i8", "u4", "u4",
    ],
    "offsets": [0, 16, 32, 40, 48, 56, 64, 88, 100, 104, 108, 112, 120, 128, 136, 144, 148],
    "itemsize": ENTRY_OUT.size + DIRENT.size,
})  # fmt: skip
