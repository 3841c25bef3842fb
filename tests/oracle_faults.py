"""Faults for the oracle's self test, one each: (recipe, the rule that must name it, the deed)."""

from collections.abc import Callable

from oracle_check import catalog_rows, read_data
from oracle_damage import Damage, number
from oracle_lives import SECOND
from oracle_pack import pack_catalog

BARE = ("SBSIZE", "FORMAT", "PURPOSE", "FILESIZE", "SYNCTIME", "CONTID", "DATAEND", "SBCKSUM")

Table = dict[str, tuple[str, str, Callable[[Damage], object]]]


def first_dead(d: Damage, name: bytes) -> int:
    """Position of a superseded inode of this name."""
    return next(
        i.entry.pos for i in d.tree.inodes if i.name == name and i.entry.delflag and i.inode
    )


def delete_by_flag_alone(d: Damage, name: bytes) -> None:
    file = d.tree.files[name]
    d.patch(".data", file.inode_pos, b"\1")
    d.add(".data", AENTRIES=-1, ITOTSZ=-len(d.entry(name + b"/I0").value))


def free_deleted_cells(d: Damage) -> None:
    index = d.tree.index
    assert index is not None
    ghosts = [slot for slot, cell in enumerate(index.cells) if cell[0] == index.deleted]
    for slot in ghosts:
        d.cell(slot, index.free, 0)
    d.add(".idx", ENTRIES=-len(ghosts))


def swap_entries(d: Damage, one: bytes, other: bytes) -> None:
    """Two sound entries of the same size, each in the place of the other."""
    raw = d.path(".data").read_bytes()
    first, second = d.entry(one), d.entry(other)
    length = first.end - first.pos
    assert length == second.end - second.pos
    d.patch(".data", first.pos, raw[second.pos : second.end])
    d.patch(".data", second.pos, raw[first.pos : first.end])


def rename_variable(d: Damage, old: bytes, new: bytes) -> None:
    d.patch(".data", d.path(".data").read_bytes().index(old), new)


def other_catalog(d: Damage, change: Callable[[dict[bytes, list[int]]], object]) -> None:
    """Another catalog, whole in itself."""
    rows = catalog_rows(read_data(d.path(".data")))
    change(rows)
    variables = {name: d.variables(".cat")[name] for name in BARE}
    d.path(".cat").write_bytes(pack_catalog(variables, rows))


SUPERBLOCK: Table = {
    "magic": ("plain", "magic", lambda d: d.patch(".data", 0, b"?")),
    "sbsize_not_first": ("plain", "variable order", lambda d: d.patch(".data", 8, b"SBSISE")),
    "format_not_second": ("classic", "variable order", lambda d: d.patch(".data", 24, b"FORMAS")),
    "sbsize_beyond_the_file": (
        "classic",
        "SBSIZE",
        lambda d: d.patch(".data", 16, number(1 << 40)),
    ),
    "sbsize_too_small": ("classic", "SBSIZE", lambda d: d.patch(".data", 16, number(24))),
    "no_terminator": (
        "classic",
        "superblock terminator",
        lambda d: d.patch(".data", 16, number(8 + 16 * len(d.variables(".data")))),
    ),
    "format": ("plain", "FORMAT", lambda d: d.set(".data", FORMAT=0x20)),
    "purpose": ("plain", "PURPOSE", lambda d: d.set(".data", PURPOSE=0x4653595349445800)),
    "index_purpose": ("plain", "PURPOSE", lambda d: d.set(".idx", PURPOSE=0x4653595344415441)),
    "bytes_behind_terminator": (
        "classic",
        "superblock rest zero",
        lambda d: d.patch(".data", 4095, b"\1"),
    ),
    "variable_twice": ("classic", "variable name", lambda d: d.patch(".data", 56, b"FORMAT  ")),
    "variable_padded_with_nul": (
        "classic",
        "variable name",
        lambda d: d.patch(".data", 24, b"FORMAT\0\0"),
    ),
    "sbcksum": ("plain", "SBCKSUM", lambda d: d.patch(".data", 8 + 16 * 3 + 15, b"\0")),
    "name_of_sbcksum": ("plain", "SBCKSUM", lambda d: rename_variable(d, b"SBCKSUM ", b"SBCKSUL ")),
    "index_sbcksum": ("plain", "SBCKSUM", lambda d: d.patch(".idx", 8 + 16 * 4 + 15, b"~")),
    "too_many_variables": (
        "plain",
        "at most 31 variables",
        lambda d: d.set(".data", V1=1, V2=2, V3=3),
    ),
    "unknown_incompat": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=128)),
    "kvcksum_without_its_bit": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-1)),
    "mtimens_without_its_bit": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-2)),
    "hole_without_its_bit": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-4)),
    "pairoff_without_its_bit": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-8)),
    "attribute_without_its_bit": ("plain", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-16)),
    "bit_without_mtimens": ("plain", "INCOMPAT", lambda d: d.set(".data", MTIMENS=0)),
    "havedups_2": ("plain", "HAVEDUPS", lambda d: d.set(".data", HAVEDUPS=2)),
    "filesize_beyond_the_end": ("plain", "FILESIZE", lambda d: d.add(".data", FILESIZE=1)),
    "filesize_in_the_last_entry": (
        "plain",
        "FILESIZE",
        lambda d: d.add(".data", FILESIZE=-1, SYNCSIZE=-1),
    ),
    "file_cut": ("plain", "FILESIZE", lambda d: d.cut(".data", 9000)),
    "filesize_counts_padding": (
        "aligned",
        "FILESIZE",
        lambda d: (d.append(".data", bytes(8)), d.add(".data", FILESIZE=8, SYNCSIZE=8)),
    ),
    "syncsize_low": ("plain", "SYNCSIZE", lambda d: d.add(".data", SYNCSIZE=-1)),
    "syncsize_high": ("plain", "SYNCSIZE", lambda d: d.add(".data", SYNCSIZE=1)),
    "entries": ("plain", "ENTRIES", lambda d: d.add(".data", ENTRIES=1)),
    "aentries": ("plain", "AENTRIES", lambda d: d.add(".data", AENTRIES=1)),
    "itotsz": ("plain", "ITOTSZ", lambda d: d.add(".data", ITOTSZ=8)),
    "dtotsz": ("classic", "DTOTSZ", lambda d: d.add(".data", DTOTSZ=-1)),
    "nextfid_used": ("plain", "NEXTFID", lambda d: d.add(".data", NEXTFID=-1)),
    "ckalgo_unknown": ("plain", "CKALGO", lambda d: d.set(".data", CKALGO=3)),
    "keyrepr_missing": ("classic", "KEYREPR", lambda d: d.set(".data", KEYREPR=None)),
    "valrepr_515": ("limited_values", "VALREPR", lambda d: d.set(".data", VALREPR=515)),
}

ENTRIES: Table = {
    "delflag_2": ("plain", "delflag", lambda d: d.patch(".data", 4096, b"\2")),
    "key_byte": ("plain", "KVCKSUM", lambda d: d.patch(".data", d.pos(b"a/I0") + 2, b"b")),
    "value_byte": ("plain", "KVCKSUM", lambda d: d.patch(".data", d.tree.entries[9].end - 5, b"~")),
    "checksum_byte": (
        "plain",
        "KVCKSUM",
        lambda d: d.patch(".data", d.tree.entries[9].end - 1, b"~"),
    ),
    "entries_of_another_container": ("plain", "KVCKSUM", lambda d: d.add(".data", CONTID=1)),
    "entry_in_the_place_of_another": (
        "twins",
        "KVCKSUM",
        lambda d: swap_entries(d, b"twin 1/I0", b"twin 2/I0"),
    ),
    "align_skip_byte": (
        "aligned",
        "ALIGN skip bytes",
        lambda d: d.patch(".data", d.tree.entries[3].pos - 1, b"\1"),
    ),
    "value_padding": (
        "limited_values",
        "VALREPR padding",
        lambda d: d.patch(".data", d.tree.entries[0].end - 1, b"\1"),
    ),
    "length_over_the_field": (
        "limited_keys",
        "KEYREPR",
        lambda d: d.patch(".data", d.tree.entries[0].pos + 1, b"\xff"),
    ),
    "second_inode_of_a_file": (
        "plain",
        "one inode per file",
        lambda d: d.rename_key(b"folder/I0", b"folder/I1"),
    ),
    "nul_in_name": ("plain", "file name", lambda d: d.rename_key(b"gone/I0", b"g\0ne/I0")),
    "uppercase_fileid": ("plain", "data key", lambda d: d.rename_key(b"e/D0", b"E/D0")),
    "fileid_with_zero": ("plain", "data key", lambda d: d.rename_key(b"11/D3", b"01/D3")),
    "data_of_another_file": ("plain", "pair target", lambda d: d.rename_key(b"3/D0", b"4/D0")),
    "number_twice": ("plain", "D<n> used twice", lambda d: d.rename_key(b"2/D3", b"2/D4")),
    "tombstone_not_deleted": (
        "plain",
        "tombstone delflag",
        lambda d: d.patch(".data", d.pos(b"bigger/I0"), b"\0"),
    ),
    "superseded_inode_not_deleted": (
        "plain",
        "delflag of superseded inode",
        lambda d: (d.patch(".data", first_dead(d, b"a"), b"\0"), d.add(".data", AENTRIES=1)),
    ),
    "dead_data_not_deleted": (
        "plain",
        "delflag of dead data",
        lambda d: (d.patch(".data", d.pos(b"e/D0"), b"\0"), d.add(".data", AENTRIES=1)),
    ),
    "live_data_deleted": (
        "plain",
        "delflag of live data",
        lambda d: (d.patch(".data", d.pos(b"3/D0"), b"\1"), d.add(".data", AENTRIES=-1)),
    ),
    "inode_deleted_without_tombstone": (
        "plain",
        "R2 tombstone",
        lambda d: delete_by_flag_alone(d, b"folder"),
    ),
}

INODES: Table = {
    "cksum": ("plain", "CKSUM", lambda d: d.inode(b"a", "CKSUM", 1)),
    "classic_cksum": ("classic", "CKSUM", lambda d: d.inode(b"a", "CKSUM", 1)),
    "field_byte": ("classic", "CKSUM", lambda d: d.value(b"a/I0", 47, b"\xee")),
    "pair_byte": ("plain", "CKSUM", lambda d: d.value(b"a/I0", 58, b"\xee")),
    "nexti": ("plain", "NEXTI", lambda d: d.inode(b"a", "NEXTI", 4096)),
    "nexti_to_data": ("chains", "NEXTI", lambda d: d.inode(b"big", "NEXTI", d.pos(b"5/D0"))),
    "nexti_of_a_tombstone": (
        "chains",
        "NEXTI",
        lambda d: d.inode(b"big", "NEXTI", d.pos(b"doomed/I0")),
    ),
    "nexti_forward": ("chains", "NEXTI", lambda d: d.inode(b"cut", "NEXTI", d.pos(b"a/I0"))),
    "nexti_of_another_file": (
        "chains",
        "NEXTI",
        lambda d: d.inode(b"big", "NEXTI", d.pos(b"empty/I0")),
    ),
    "below_without_nexti": ("chains", "pair pointer", lambda d: d.inode(b"big", "NEXTI", 0)),
    "below_reaches_too_far": (
        "chains",
        "pair size",
        lambda d: d.inode(b"cut", "PAIRS", 3_001, 16),
    ),
    "inchain_without_its_bit": ("chains", "INCOMPAT", lambda d: d.add(".data", INCOMPAT=-64)),
    "bit_without_inchain": ("chains", "INCOMPAT", lambda d: d.set(".data", INCHAIN=0)),
    "fileid_0": ("plain", "FILEID", lambda d: d.inode(b"gone", "FILEID", 0)),
    "fileid_of_another_file": ("plain", "pair target", lambda d: d.inode(b"a", "FILEID", 2)),
    "lsize_over_the_pairs": ("plain", "LSIZE", lambda d: d.inode(b"a", "LSIZE", 53)),
    "lsize_negative": ("plain", "LSIZE", lambda d: d.inode(b"a", "LSIZE", -1)),
    "ftype_256": ("plain", "FTYPE", lambda d: d.inode(b"a", "FTYPE", 256)),
    "dcount_over_the_inode": ("plain", "DCOUNT", lambda d: d.value(b"a/I0", 48, number(4))),
    "dcount_negative": ("plain", "DCOUNT", lambda d: d.value(b"a/I0", 48, number(-1))),
    "padding": ("plain", "inode padding", lambda d: d.value(b"a/I0", 127, b"\1")),
    "classic_padding": ("classic", "inode padding", lambda d: d.value(b"a/I0", 127, b"\1")),
    "pointer_off_by_one": ("plain", "pair pointer", lambda d: d.inode(b"a", "PAIRS", 6390)),
    "pointer_to_an_inode": ("plain", "pair target", lambda d: d.inode(b"a", "PAIRS", 4096)),
    "pointer_to_another_file": ("plain", "pair target", lambda d: d.inode(b"a", "PAIRS", 6799)),
    "pair_longer_than_the_value": (
        "plain",
        "pair size",
        lambda d: d.inode(b"a", "PAIRS", 31, offset=16),
    ),
    "skip_and_size_longer_than_the_value": (
        "plain",
        "pair size",
        lambda d: d.inode(b"a", "PAIRS", 1, offset=8),
    ),
    "skip_negative": ("plain", "pair size", lambda d: d.inode(b"a", "PAIRS", -1, offset=8)),
    "classic_hole": ("classic", "INCOMPAT", lambda d: d.inode(b"a", "PAIRS", 0)),
    "hole_with_skip": (
        "plain",
        "hole skip",
        lambda d: d.inode(b"only a hole", "PAIRS", 5, offset=8),
    ),
    "classic_attributes": ("classic", "ATTRS", lambda d: d.inode(b"a", "PAIRS", -30, offset=8)),
    "attributes_not_first": (
        "plain",
        "attribute pair first",
        lambda d: d.inode(b"a", "PAIRS", -22, offset=24 + 16),
    ),
    "attributes_with_skip": (
        "plain",
        "attribute pair skip",
        lambda d: d.inode(b"big", "PAIRS", 1, offset=8),
    ),
    "attributes_longer_than_the_value": (
        "plain",
        "pair size",
        lambda d: d.inode(b"empty", "PAIRS", -25, offset=16),
    ),
    "attributes_cut": (
        "plain",
        "attributes",
        lambda d: d.inode(b"big", "PAIRS", -338, offset=16),
    ),
    "mode_with_file_type": (
        "plain",
        "attributes mode",
        lambda d: d.value(b"1/A0", 0, number(0o100644)),
    ),
    "directory_with_content": (
        "plain",
        "directory LSIZE",
        lambda d: d.inode(b"a", "FTYPE", 100),
    ),
    "isz": ("plain", "ISZ", lambda d: d.set(".data", ISZ=256)),
}

INDEX: Table = {
    "index_missing": ("plain", "derived file", lambda d: d.path(".idx").unlink()),
    "time_missing": ("append_only", "derived file", lambda d: d.path(".time").unlink()),
    "index_entries": ("plain", "ENTRIES", lambda d: d.add(".idx", ENTRIES=1)),
    "index_aentries": ("plain", "AENTRIES", lambda d: d.add(".idx", AENTRIES=-1)),
    "htsize": ("plain", "FILESIZE", lambda d: d.add(".idx", HTSIZE=-1)),
    "index_cut": ("plain", "FILESIZE", lambda d: d.cut(".idx", 4200)),
    "contid": ("plain", "CONTID", lambda d: d.add(".idx", CONTID=1)),
    "contid_missing": ("plain", "CONTID", lambda d: d.set(".idx", CONTID=None)),
    "dataend_low": ("plain", "DATAEND", lambda d: d.add(".idx", DATAEND=-1)),
    "dataend_missing": ("plain", "DATAEND", lambda d: d.set(".idx", DATAEND=None)),
    "synctime": ("classic", "SYNCTIME", lambda d: d.add(".idx", SYNCTIME=1)),
    "htalgo_4": ("plain", "HTALGO", lambda d: d.set(".idx", HTALGO=4)),
    "htalgo_not_the_datas": (
        "plain",
        "HTALGO as in the data superblock",
        lambda d: d.set(".data", HTALGO=3),
    ),
    "htdel_not_the_datas": (
        "plain",
        "HTDEL as in the data superblock",
        lambda d: d.set(".data", HTDEL=2),
    ),
    "cell_missing": (
        "classic",
        "missing cell",
        lambda d: (
            d.cell(d.find_slot(d.pos(b"a/I0")), 0),
            d.add(".idx", ENTRIES=-1, AENTRIES=-1),
        ),
    ),
    "cell_deleted": (
        "plain",
        "missing cell",
        lambda d: (d.cell(d.find_slot(d.pos(b"a/I0")), 1, 0), d.add(".idx", AENTRIES=-1)),
    ),
    "cell_behind_a_free_one": ("full_index", "missing cell", lambda d: free_deleted_cells(d)),
    "cell_of_a_dead_inode": (
        "classic_negative_cells",
        "stale cell",
        lambda d: (
            d.cell(d.find_slot(-2), first_dead(d, b"a"), 0),
            d.add(".idx", AENTRIES=1),
        ),
    ),
    "cell_points_elsewhere": (
        "classic",
        "stale cell",
        lambda d: d.cell(d.find_slot(d.pos(b"a/I0")), 4097),
    ),
    "cell_twice": (
        "classic",
        "one cell per key",
        lambda d: (d.cell(d.find_slot(0), d.pos(b"a/I0")), d.add(".idx", ENTRIES=1, AENTRIES=1)),
    ),
    "s_word": (
        "plain",
        "S word",
        lambda d: d.cell(d.find_slot(d.pos(b"a/I0")), d.pos(b"a/I0"), 12345),
    ),
    "word_of_a_deleted_cell": (
        "classic_negative_cells",
        "words of free and deleted cells",
        lambda d: d.cell(d.find_slot(-2), -2, 1),
    ),
    "word_of_a_free_cell": (
        "wide_cells",
        "words of free and deleted cells",
        lambda d: d.cell(d.find_slot(0), 0, 0, 1),
    ),
    "catalog_without_a_name": (
        "plain",
        "names of the catalog",
        lambda d: other_catalog(d, lambda rows: rows.pop(b"big")),
    ),
    "catalog_with_another_size": (
        "plain",
        "row of the catalog",
        lambda d: other_catalog(d, lambda rows: rows[b"big"].__setitem__(2, 7)),
    ),
    "catalog_clashes": ("plain", "CLASHES", lambda d: d.set(".cat", CLASHES=77)),
    "catalog_from_the_future": ("plain", "DATAEND", lambda d: d.add(".cat", DATAEND=1)),
    "catalog_block": ("plain", "KVCKSUM", lambda d: d.patch(".cat", 4200, b"\xee")),
    "catalog_run": ("plain", "hash", lambda d: d.add(".cat", RUNHASH=1)),
}

TIME: Table = {
    "mark": ("append_only", "time marks", lambda d: d.patch(".time", 4096, number(-40))),
    "mark_position": ("append_only", "time marks", lambda d: d.patch(".time", 4104, number(4161))),
    "mark_missing": (
        "append_only",
        "time marks",
        lambda d: d.add(".time", FILESIZE=-16, ENTRIES=-1, AENTRIES=-1),
    ),
    "mark_count": ("append_only", "ENTRIES", lambda d: d.add(".time", ENTRIES=1)),
    "timemark": ("append_only", "TIMEMARK", lambda d: d.add(".time", TIMEMARK=-10)),
    "timemn": ("append_only", "TIMEMN", lambda d: d.add(".time", TIMEMN=1)),
    "lastmt": ("append_only", "LASTMT", lambda d: d.add(".time", LASTMT=1)),
    "timemp": (
        "append_only",
        "TIMEMP as in the data superblock",
        lambda d: d.set(".time", TIMEMP=20),
    ),
    "time_keyrepr": ("append_only", "KEYREPR", lambda d: d.set(".time", KEYREPR=1)),
    "time_dataend": ("append_only", "DATAEND", lambda d: d.add(".time", DATAEND=-1)),
    "time_contid": ("append_only", "CONTID", lambda d: d.add(".time", CONTID=1)),
    "fmtime_steps_back": (
        "append_only",
        "FMTIME order",
        lambda d: d.inode(b"8.html", "FMTIME", 8 * SECOND),
    ),
    "time_index_of_a_plain_container": (
        "classic",
        "time index",
        lambda d: d.path(".time").write_bytes(b""),
    ),
}

FAULTS = SUPERBLOCK | ENTRIES | INODES | INDEX | TIME
