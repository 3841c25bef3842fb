"""The numbers and structures of the FUSE protocol are those of the kernel's header."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from winkmount.kernel import protocol as p

HEADER = Path("/usr/include/linux/fuse.h")
SIZES = {"uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8, "int64_t": 8, "char": 1}

# struct of the header -> ours; the first bytes of it, where it has a flexible or newer end
STRUCTS = {
    "fuse_in_header": p.IN, "fuse_out_header": p.OUT, "fuse_init_out": p.INIT_OUT,
    "fuse_setattr_in": p.SETATTR_IN, "fuse_mknod_in": p.MKNOD_IN, "fuse_mkdir_in": p.MKDIR_IN,
    "fuse_rename_in": p.RENAME_IN, "fuse_rename2_in": p.RENAME2_IN, "fuse_open_in": p.OPEN_IN,
    "fuse_create_in": p.CREATE_IN, "fuse_open_out": p.OPEN_OUT, "fuse_write_in": p.WRITE_IN,
    "fuse_getattr_in": p.GETATTR_IN, "fuse_fsync_in": p.FSYNC_IN,
    "fuse_fallocate_in": p.FALLOCATE_IN, "fuse_notify_store_out": p.STORE_OUT,
    "fuse_attr_out": p.ATTR_OUT, "fuse_entry_out": p.ENTRY_OUT, "fuse_write_out": p.WORDS,
    "fuse_lseek_out": p.LONG, "fuse_statfs_out": p.STATFS_OUT, "fuse_getxattr_in": p.WORDS,
}  # fmt: skip
OTHER_NAMES = {"STORE": "FUSE_NOTIFY_STORE", "TOP": "FUSE_ROOT_ID", "MAJOR": "FUSE_KERNEL_VERSION"}
FLAGS = [
    "ASYNC_READ", "ATOMIC_O_TRUNC", "BIG_WRITES", "DO_READDIRPLUS", "ASYNC_DIO", "NO_OPEN_SUPPORT",
    "PARALLEL_DIROPS", "MAX_PAGES", "CACHE_SYMLINKS", "HANDLE_KILLPRIV_V2",
    "AUTO_INVAL_DATA", "INIT_EXT",
]  # fmt: skip
OPCODES = [
    "LOOKUP", "FORGET", "GETATTR", "SETATTR", "READLINK", "SYMLINK", "MKNOD", "MKDIR", "UNLINK",
    "RMDIR", "RENAME", "LINK", "OPEN", "READ", "WRITE", "STATFS", "RELEASE", "FSYNC", "SETXATTR",
    "GETXATTR", "LISTXATTR", "REMOVEXATTR", "FLUSH", "INIT", "OPENDIR", "READDIR", "RELEASEDIR",
    "FSYNCDIR", "ACCESS", "CREATE", "INTERRUPT", "BATCH_FORGET", "FALLOCATE",
    "READDIRPLUS", "RENAME2", "LSEEK",
]  # fmt: skip


@pytest.fixture(scope="module")
def header() -> str:
    if not HEADER.exists():
        pytest.skip("the kernel's header is not installed: linux-libc-dev")
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


def test_numbers(header: str) -> None:
    known = dict(re.findall(r"#define\s+(FUSE_\w+)\s+(\(?\w+(?:\s*<<\s*\w+\)?)?)", header))
    known |= dict(re.findall(r"^\s+(FUSE_\w+)\s*=\s*(\w+)", header, re.MULTILINE))
    for name in [*FLAGS, *OPCODES, *OTHER_NAMES]:
        text = known[OTHER_NAMES.get(name, f"FUSE_{name}")].strip("()")
        base, _, shift = text.partition("<<")
        assert getattr(p, name) == int(base, 0) << int(shift or "0", 0), name


def size_of(name: str, header: str) -> int:
    """Of a structure, whose fields are aligned as they stand."""
    found = re.search(rf"struct {name} {{(.*?)}};", header, re.DOTALL)
    assert found is not None, name
    size = 0
    for kind, field in re.findall(r"(?:struct )?(\w+)\s+(\w+(?:\[\w*\])?);", found[1]):
        count = re.search(r"\[(\w*)\]", field)
        one = SIZES.get(kind) or size_of(kind, header)
        size += one * (1 if count is None else int(count[1] or 0))
    return size


@pytest.mark.parametrize("name", STRUCTS)
def test_structures_have_their_sizes(name: str, header: str) -> None:
    assert STRUCTS[name].size == size_of(name, header)


def test_an_entry_of_a_listing_has_the_offsets_of_its_parts(header: str) -> None:
    assert p.ENTRY.itemsize == size_of("fuse_entry_out", header) + p.DIRENT.size
    packed = p.ENTRY_OUT.pack(*range(1, 7), *range(7, 23))
    fields = p.ENTRY.fields
    assert fields is not None
    read = {n: int.from_bytes(packed[at : at + 4], "little") for n, (_, at) in fields.items()
            if at < p.ENTRY_OUT.size}  # fmt: skip
    order = ["node", "valid", "valid_nanos", "id", "size", "blocks", "seconds", "nanos", "mode",
             "links", "uid", "gid", "blksize"]  # fmt: skip
    assert [read[name] for name in order] == [1, 3, 5, 7, 8, 9, 10, 13, 16, 17, 18, 19, 21]
    assert struct.calcsize("=QQII") == p.DIRENT.size
