"""Containers of every variant, made by the oracle's writer: RECIPES[name](base) -> expected files.

OPTIONS[name] are the arguments for `check` of those that no clean close leaves behind.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from oracle_lives import (
    ODD_NAMES,
    OPTIONS,
    RECIPES,
    SECOND,
    T0,
    Files,
    append_only_life,
    finish,
    pattern,
    recipe,
    seed_life,
    without,
)
from oracle_write import CLASSIC, NEW, Writer

__all__ = ["OPTIONS", "RECIPES", "Files"]


def delflags_life(writer: Writer) -> None:
    writer.tombstones = False
    seed_life(writer)


def ghosts_life(writer: Writer) -> None:
    writer.ghosts = True
    seed_life(writer)


# --- lives of plain containers ------------------------------------------------------------------


def plain_life(writer: Writer) -> None:
    """The default: XXH3, KVCKSUM, MTIMENS, PAIROFF, ATTRS, holes, tombstones, CONTID, DATAEND."""
    seed_life(writer)
    writer.number_step = 3
    writer.create(b"big", T0 + 123)
    writer.append(b"big", pattern(2_600_000))  # three entries
    writer.sync()
    writer.overwrite(b"big", 1_000_000, b"<in the middle>")
    writer.overwrite(b"big", 1_048_570, b"<over the seam of two entries>")
    writer.overwrite(b"big", 1_000_003, b"<again>")
    writer.overwrite(b"big", 2_599_990, b"<over the end of the file>")
    writer.truncate(b"report.txt", 5_000)  # grows again: a hole, the old bytes never come back
    writer.overwrite(b"report.txt", 4_000, b"island in the hole")
    writer.create(b"only a hole", T0)
    writer.truncate(b"only a hole", 70_000)
    writer.attributes(b"big", 0o4711, 1000, 100, {b"user.a": b"\0\1\2", b"user.empty": b""})
    writer.attributes(b"empty", 0o600, 0, 0, {})
    writer.sync()
    writer.attributes(b"big", 0o640, 1001, 101, {b"user.long": pattern(300)})
    writer.append(b"big", b"tail after attributes")
    writer.create(b"folder", T0, ftype=100)
    writer.put(b"folder/link", b"../big", T0, ftype=108)
    writer.put(b"program", b"#!/bin/sh\n", T0, ftype=112)
    writer.put(b"unlabelled", b"FTYPE 0 reads as f", T0, ftype=0)
    writer.put(b"put and nothing in it", b"", T0)
    writer.rename(b"program", b"unlabelled")  # onto a name in use
    writer.rename(b"big", b"bigger")
    writer.rename(b"bigger", b"big")
    writer.sync()
    writer.write_catalog()


def chains_life(writer: Writer) -> None:
    """Inodes that build on older ones of their file: INCHAIN."""
    seed_life(writer)
    for name, size in ((b"big", 2_600_000), (b"small", 900), (b"cut", 5_000), (b"doomed", 700)):
        writer.put(name, pattern(size), T0)
    for step, size in enumerate((15, 400, 30, 70)):
        writer.sync()
        writer.overwrite_above(b"big", 1_048_570 + 11 * step, pattern(size, step))
        writer.overwrite_above(b"small", 200 * step, pattern(size, step + 9))
    writer.overwrite_above(b"doomed", 690, b"over the end of the file")
    writer.truncate(b"cut", 3_000)
    writer.sync()
    writer.overwrite_above(b"cut", 2_990, b"what was cut off does not come back")
    writer.delete(b"doomed")
    writer.sync()
    writer.rename(b"small", b"dir/small")  # all of it again
    writer.attributes(b"a", 0o4711, 1000, 100, {b"user.a": b"\0\1\2"})
    writer.sync()
    writer.overwrite_above(b"a", 3, b"!")
    writer.sync()
    writer.write_catalog()


def everything_deleted_life(writer: Writer) -> None:
    writer.ghosts = True
    for name in ODD_NAMES:
        writer.put(name, b"x", T0)
    writer.sync()
    for name in ODD_NAMES:
        writer.delete(name)


def holes_in_pairs_life(writer: Writer) -> None:
    """Holes as (0, n), without PAIROFF."""
    seed_life(writer)
    writer.truncate(b"empty", 10_000)
    writer.append(b"empty", b"behind the hole")
    writer.truncate(b"a", 3)
    writer.truncate(b"a", 9)


def duplicates_life(writer: Writer) -> None:
    """HAVEDUPS 1: older versions keep delflag 0 for good."""
    seed_life(writer)
    for version in range(5):
        writer.put(b"again and again", b"version %d" % version, T0 + version)
    writer.rename(b"again and again", b"at last")


def full_index_life(writer: Writer) -> None:
    """No free cell: deleted ones only, and probe sequences that run round the end."""
    writer.ghosts = True
    for number in range(30):
        writer.put(b"%d" % number, pattern(number), T0)
    for number in range(0, 30, 3):
        writer.delete(b"%d" % number)
    writer.htsize = 30


def twins_life(writer: Writer) -> None:
    """Entries of the same size, that differ in hardly anything but their places."""
    for number in range(1, 4):
        writer.put(b"twin %d" % number, b"the same", T0)


def never_deletes_life(writer: Writer) -> None:
    """No KVDELFL: nothing can be deleted."""
    for name in ODD_NAMES:
        writer.create(name, T0)
        writer.append(name, pattern(40))


def old_times_life(writer: Writer) -> None:
    for nanoseconds in (-1, -SECOND, -5 * SECOND - 1, -(10**18)):
        writer.put(b"%d" % nanoseconds, b"before the epoch", nanoseconds)


# --- one life, by the variables of the superblock -----------------------------------------------

AO = without(NEW, "PAIROFF") | {"INCOMPAT": 1 | 2 | 16, "HAVEAO": 1, "TIMEMP": 10, "ISZ": 256}
BARE_AO = without(NEW, "PAIROFF") | {"INCOMPAT": 1 | 2, "HAVEAO": 1, "ATTRS": 0}
# name -> life, variables, SBSIZE
VARIANTS: dict[str, tuple[Callable[[Writer], None] | None, dict[str, int], int]] = {
    "classic": (seed_life, CLASSIC, 4096),
    # KEYREPR 0, VALREPR 3, ISZ 512, deletion by delflags alone, unknown variables
    "classic_seqdb": (
        delflags_life,
        CLASSIC | {"KEYREPR": 0, "VALREPR": 3, "ISZ": 512, "MYVAR": -5, "X": 1, "A B": 2}, 4096,
    ),
    # HTFREE -1, HTDEL -2 and stored hashes, with deleted cells in the index
    "classic_negative_cells": (
        ghosts_life, CLASSIC | {"HTFREE": -1, "HTDEL": -2, "CELLSZ": 2}, 4096,
    ),
    # HTFREE, HTDEL and CELLSZ stand in no superblock of the data; HAVEDUPS neither
    "classic_defaults_missing": (seed_life, without(CLASSIC, "HTFREE", "HTDEL", "HAVEDUPS"), 4096),
    "classic_append_only": (
        append_only_life, CLASSIC | {"HAVEAO": 1, "ISZ": 256, "TIMEMP": 10}, 4096,
    ),
    "classic_duplicates": (seed_life, CLASSIC | {"HAVEDUPS": 1, "CELLSZ": 2}, 4096),
    "murmur3": (ghosts_life, NEW | {"HTALGO": 3}, 4096),
    "wide_cells": (ghosts_life, NEW | {"CELLSZ": 3}, 4096),
    "aligned": (seed_life, NEW | {"ALIGN": 64}, 1024),
    # ALIGN 48 does not divide SBSIZE 520: zeros before the first entry too
    "aligned_odd": (seed_life, CLASSIC | {"ALIGN": 48}, 520),
    "limited_keys": (seed_life, NEW | {"KEYREPR": 459}, 4096),
    # VALREPR 514: at most 255 bytes a value; wide keys
    "limited_values": (seed_life, CLASSIC | {"KEYREPR": 3, "VALREPR": 514, "ISZ": 240}, 4096),
    "short_values": (seed_life, CLASSIC | {"KEYREPR": 2, "VALREPR": 0, "ISZ": 240}, 4096),
    "int16_values": (seed_life, NEW | {"VALREPR": 1}, 4096),
    "append_only": (append_only_life, AO, 4096),
    "plain": (plain_life, NEW | {"SOMEDAY": 42}, 4096),
    "chains": (chains_life, NEW | {"INCOMPAT": NEW["INCOMPAT"] | 64, "INCHAIN": 1}, 4096),
    "everything_deleted": (everything_deleted_life, NEW, 4096),
    "holes_in_pairs": (
        holes_in_pairs_life, without(NEW, "PAIROFF") | {"INCOMPAT": 1 | 2 | 4 | 16}, 4096,
    ),
    "duplicates": (duplicates_life, NEW | {"HAVEDUPS": 1}, 4096),
    "full_index": (full_index_life, NEW, 4096),
    "twins": (twins_life, NEW, 4096),
    "never_deletes": (never_deletes_life, without(CLASSIC, "KVDELFL"), 4096),
    "old_times": (old_times_life, NEW, 4096),
    "nothing": (None, NEW, 4096),
    "append_only_nothing": (None, BARE_AO, 4096),
}  # fmt: skip


def variant(name: str, base: Path) -> Files:
    life, variables, sbsize = VARIANTS[name]
    writer = Writer(base, variables, sbsize=sbsize)
    if life is not None:
        life(writer)
    return finish(writer)


RECIPES.update({name: partial(variant, name) for name in VARIANTS})
OPTIONS.update({name: {} for name in VARIANTS})


@recipe()
def preallocated(base: Path) -> Files:
    """The real files are longer than FILESIZE, with garbage behind it."""
    writer = Writer(base, NEW)
    seed_life(writer)
    finish(writer)
    for suffix in (".data", ".idx"):
        with writer.path(suffix).open("ab") as file:
            file.write(b"garbage, or an old entry\1\2\3" * 999)
    return writer.model


# --- what no clean close leaves ----------------------------------------------------------------


@recipe(missing_ok=True)
def index_missing(base: Path) -> Files:
    files = variant("plain", base)
    base.with_name(base.name + ".idx").unlink()
    base.with_name(base.name + ".cat").unlink()
    return files


@recipe(missing_ok=True)
def time_missing(base: Path) -> Files:
    files = variant("append_only", base)
    base.with_name(base.name + ".time").unlink()
    return files


@recipe(clean=False)
def unclean(base: Path) -> Files:
    """A tail behind DATAEND, SYNCSIZE below FILESIZE, counters and index of the last sync."""
    writer = Writer(base, NEW)
    seed_life(writer)
    writer.sync()
    writer.put(b"in the tail", pattern(500), T0)
    writer.rename(b"empty", b"empty no more")
    writer.append(b"empty no more", b"filled in the tail")
    writer.delete(b"a")
    writer.write_data()
    return writer.model


@recipe(clean=False)
def unclean_flags_unset(base: Path) -> Files:
    """As `unclean`, and no delflag of an older entry was written any more."""
    writer = Writer(base, NEW)
    writer.put(b"kept", b"first", T0)
    writer.put(b"renamed", b"second", T0)
    writer.put(b"deleted", b"third", T0)
    writer.sync()
    writer.vars["HAVEDUPS"] = 1  # so that the writer sets no delflags from here on
    writer.put(b"kept", b"newer", T0)
    writer.rename(b"renamed", b"new name")
    writer.delete(b"deleted")
    writer.vars["HAVEDUPS"] = 0
    writer.write_data()
    return writer.model


@recipe(clean=False)
def unclean_append_only(base: Path) -> Files:
    writer = Writer(base, AO)
    append_only_life(writer)
    writer.sync()
    writer.put(b"in the tail", b"no mark yet", 9000 * SECOND)
    writer.write_data()
    return writer.model
