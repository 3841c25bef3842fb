"""The oracle: reads winkfs containers from the documents alone and names the first deviation.

A second opinion for tests. It imports nothing of winkformats, winkfs or winkmount.

    check(base, clean=True, missing_ok=False) -> Tree     a container
    check_kvseq(path), check_hindex(path, keys), check_perm(path, keys)     single files
    python tests/oracle_read.py BASE [--unclean] [--missing-ok] [--unpack DIR]

Where the documents are silent or can be read in two ways:

- Of INCOMPAT, bits 1, 2, 8 must equal their variable; 4 is needed where a hole is, 16 where an
  attribute pair is (and ATTRS 1), 32 where a frame or COMPRESS is.
- A variable twice in a superblock, or with a name that is not printable ASCII, is a deviation.
- A superblock with CONTID must have SBCKSUM ("new files have it").
- I<n>, D<n>, A<n>: n decimal without leading zeros; other spellings are unknown keys, ignored.
  I<n> with n > 0 is refused (NI is always 1). A data key whose front is no FILEID is refused.
- Dead inodes, their pairs and targets must be right too; only tombstones have an empty value.
- A tombstone is asked for after a delete only where CONTID stands (seed containers set a delflag).
- ISZ is a lower bound of inodes only in new plain containers; in others it is a default.
- Unused data entries of a live file, older A0 entries, data of a FILEID without any inode: any
  delflag. All data of a FILEID whose inodes are all dead: delflag 1 (HAVEDUPS 0, clean).
- D<n> must be new among the entries with delflag 0, though the text could mean dead ones too.
- "Valid" in ITOTSZ, DTOTSZ: live by rule R1, also under HAVEDUPS 1. AENTRIES counts delflags.
- TIMEMARK, TIMEMN, LASTMT may be anything or missing while no file was ever appended.
- ao: a file is a FILEID; its mtime and place are those of its first inode and its lowest entry.
- Zero-size pairs and holes, superfluous attributes, bytes behind FILESIZE: allowed.
- SYNCSIZE of derived files equals their FILESIZE after a clean close, where they have it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from oracle_check import Tree, check
from oracle_derived import (
    Hindex,
    Perm,
    check_cells,
    check_perm_hashes,
    read_hindex,
    read_perm,
)
from oracle_format import (
    KVSEQ,
    Entry,
    OracleError,
    Superblock,
    check_entry_counters,
    equal,
    read_entries,
    read_superblock,
)
from oracle_inode import FileView, Pair

__all__ = [
    "Entry",
    "FileView",
    "Hindex",
    "OracleError",
    "Pair",
    "Perm",
    "Superblock",
    "Tree",
    "check",
    "check_hindex",
    "check_kvseq",
    "check_perm",
    "unpack",
]


def check_kvseq(path: Path) -> tuple[Superblock, list[Entry]]:
    """Any kvseq file by itself, whatever its PURPOSE."""
    sb = read_superblock(path.name, path.read_bytes(), KVSEQ, None)
    entries = read_entries(sb)
    check_entry_counters(sb, entries)
    equal("SYNCSIZE", path.name, sb.filesize, sb.get("SYNCSIZE", sb.filesize))
    return sb, entries


def check_hindex(path: Path, keys: dict[int, bytes] | None = None) -> Hindex:
    """Any hindex file. keys: kv_pointer -> key of all that must be in it, and nothing else."""
    index = read_hindex(path.name, path.read_bytes())
    if keys is not None:
        check_cells(index, keys)
    return index


def check_perm(path: Path, keys: dict[int, bytes] | None = None) -> Perm:
    """Any perm file. keys: kv_pointer -> key of the kvseq it points into."""
    perm = read_perm(path.name, path.read_bytes())
    if keys is not None:
        check_perm_hashes(perm, keys)
    return perm


def unpack(tree: Tree, folder: Path) -> list[bytes]:
    """Write the files below `folder`; the names that no folder can hold are skipped, returned."""
    skipped = []
    for name, file in tree.files.items():
        parts = name.split(b"/")
        if any(part in (b"", b".", b"..") or len(part) > 255 for part in parts):
            skipped.append(name)
            continue
        target = Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.ftype == 100:
            target.mkdir(exist_ok=True)
            continue
        target.write_bytes(file.content)
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
    return skipped


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hold a container against the documents.")
    parser.add_argument("base", type=Path, help="the container without .data")
    parser.add_argument("--unclean", action="store_true", help="it was not closed")
    parser.add_argument("--missing-ok", action="store_true", help="derived files may be missing")
    parser.add_argument("--unpack", type=Path, metavar="DIR", help="write its files there")
    options = parser.parse_args(arguments)
    try:
        tree = check(options.base, clean=not options.unclean, missing_ok=options.missing_ok)
    except (OracleError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for line in tree.notes:
        print(f"note: {line}")
    for name, file in sorted(tree.files.items()):
        print(f"{file.fileid:6} {file.lsize:12} {file.mtime_ns / 1e9:20.6f} {name!r}")
    print(f"right: {len(tree.files)} files, {len(tree.entries)} entries")
    if options.unpack is not None:
        for name in unpack(tree, options.unpack):
            print(f"skipped: {name!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
