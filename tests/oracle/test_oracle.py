"""The oracle tests itself: recipes pass and hold what they should, planted faults are named."""

import contextlib
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import oracle_kitchen
import pytest
from oracle_damage import Damage
from oracle_faults import FAULTS
from oracle_kitchen import Kitchen
from oracle_lives import Files
from oracle_pack import pack_hindex, pack_perm
from oracle_read import (
    OracleError,
    Tree,
    check,
    check_hindex,
    check_kvseq,
    check_perm,
    main,
    unpack,
)
from oracle_recipes import OPTIONS, RECIPES
from oracle_write import Expected

pytestmark = [pytest.mark.slow, pytest.mark.in_memory]


kitchen = oracle_kitchen.kitchen  # fixture


def assert_holds(tree: Tree, expected: Files) -> None:
    assert set(tree.files) == set(expected)
    for name, file in tree.files.items():
        found = Expected(
            file.content, file.ftype, file.mtime_ns, file.mode, file.uid, file.gid, file.xattrs
        )
        assert found == expected[name], name


@pytest.mark.few(16)
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_passes_and_holds_its_files(name: str, kitchen: Kitchen, tmp_path: Path) -> None:
    base, expected = kitchen.serve(name, tmp_path)
    tree = check(base, **OPTIONS[name])
    assert_holds(tree, expected)
    skipped = unpack(tree, tmp_path / "out")
    for name_, wanted in expected.items():
        path = tmp_path / "out" / name_.decode(errors="surrogateescape")
        if name_ not in skipped and wanted.ftype != 100:
            assert path.read_bytes() == wanted.content


UNCLEAN_FAULTS = ("value_byte", "cksum", "pointer_off_by_one", "sbcksum", "filesize_beyond_the_end")
PLANTED = [(fault, True) for fault in FAULTS] + [(fault, False) for fault in UNCLEAN_FAULTS]


@pytest.mark.parametrize(("fault", "clean"), PLANTED)
def test_planted_fault_is_named(fault: str, clean: bool, kitchen: Kitchen, tmp_path: Path) -> None:
    """Some also where the end may be unclean: damage of the data file is none."""
    recipe, rule, plant = FAULTS[fault]
    damage = kitchen.damage(recipe, tmp_path)
    plant(damage)
    with pytest.raises(OracleError) as caught:
        check(damage.base, clean=clean)
    assert caught.value.rule == rule, str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name, options in OPTIONS.items() if options])
def test_what_no_clean_close_leaves_needs_its_option(
    name: str, kitchen: Kitchen, tmp_path: Path
) -> None:
    base, _ = kitchen.serve(name, tmp_path)
    with pytest.raises(OracleError):
        check(base)


@pytest.mark.parametrize("fault", ["dataend_low", "cell_missing", "cell_of_a_dead_inode", "itotsz"])
def test_stale_derived_state_is_only_noted_after_an_unclean_end(
    fault: str, kitchen: Kitchen, tmp_path: Path
) -> None:
    recipe, rule, plant = FAULTS[fault]
    damage = kitchen.damage(recipe, tmp_path)
    plant(damage)
    tree = check(damage.base, clean=False)
    assert_holds(tree, kitchen.made[recipe])
    assert any(line.startswith(rule + ":") for line in tree.notes)


def flipped(base: Path, suffix: str, offset: int, bit: int) -> None:
    path = base.with_name(base.name + suffix)
    raw = bytearray(path.read_bytes())
    raw[offset] ^= bit
    path.write_bytes(raw)


@pytest.mark.few
@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".data", ".idx"])
@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_every_flipped_byte_of_a_new_container_is_found(
    suffix: str, bit: int, kitchen: Kitchen, tmp_path: Path
) -> None:
    base, _ = kitchen.serve("twins", tmp_path)
    size = base.with_name("c" + suffix).stat().st_size
    for offset in [*range(0, 512, 3), *range(512, 4096, 97), *range(4096, size)]:
        flipped(base, suffix, offset, bit)
        with pytest.raises(OracleError):
            check(base)
        flipped(base, suffix, offset, bit)
    check(base)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".data", ".idx", ".time"])
def test_flipped_byte_of_a_classic_container_raises_nothing_else(
    suffix: str, kitchen: Kitchen, tmp_path: Path, every: Callable[[str], slice]
) -> None:
    base, _ = kitchen.serve("classic_append_only", tmp_path)
    size = base.with_name("c" + suffix).stat().st_size
    for offset in [*range(0, 512, 3), *range(4096, size, 5)][every("oracle bytes")]:
        flipped(base, suffix, offset, 0x80)
        with contextlib.suppress(OracleError):
            check(base)
        flipped(base, suffix, offset, 0x80)
    check(base)


# --- by hand, so that reader and writer cannot share one misunderstanding ----------------------


def variable(name: bytes, value: int) -> bytes:
    return name.ljust(8, b" ") + struct.pack(">q", value)


def test_container_written_by_hand_from_the_seed(tmp_path: Path) -> None:
    block = b"#!WINKME" + variable(b"SBSIZE", 256) + variable(b"FORMAT", 0x10)
    block += b"PURPOSE FSYSDATA" + variable(b"KVDELFL", 1)
    block += variable(b"KEYREPR", 0) + variable(b"VALREPR", 1)
    covered = struct.pack(">8q", 0, 10, 5, 102, 1_000_000_000, 1, 256, 6)
    inode = hashlib.md5(covered).digest()[:8] + covered + bytes(8)
    entries = b"\0\x04a/D0\0\x06hello!"  # at 256: delflag, length and key, length and value
    entries += b"\0\x08hello/I0\0\x50" + inode  # at 270
    (tmp_path / "c.data").write_bytes(block.ljust(256, b"\0") + entries)
    slot = int.from_bytes(hashlib.md5(b"hello/I0").digest(), "big") % 2**63 % 3
    cells = [struct.pack(">q", 270 if i == slot else 0) for i in range(3)]
    block = b"#!WINKME" + variable(b"SBSIZE", 128) + variable(b"FORMAT", 0x20)
    block += b"PURPOSE FSYSIDX\0" + variable(b"HTSIZE", 3) + variable(b"HTALGO", 1)
    (tmp_path / "c.idx").write_bytes(block.ljust(128, b"\0") + b"".join(cells))
    tree = check(tmp_path / "c")
    assert_holds(tree, {b"hello": Expected(b"hello", 102, 10**18)})
    assert tree.files[b"hello"].inode_pos == 270


# --- single files ------------------------------------------------------------------------------


def test_single_files_of_a_container(kitchen: Kitchen, tmp_path: Path) -> None:
    base, _ = kitchen.serve("plain", tmp_path)
    tree = check(base)
    assert check_kvseq(tmp_path / "c.data")[1] == tree.entries
    keys = {file.inode_pos: name + b"/I0" for name, file in tree.files.items()}
    check_hindex(tmp_path / "c.idx", keys)
    check_kvseq(tmp_path / "c.cat")
    keys.popitem()
    with pytest.raises(OracleError, match="stale cell"):
        check_hindex(tmp_path / "c.idx", keys)


@pytest.mark.parametrize("algorithm", [1, 2, 3])
@pytest.mark.parametrize("htsize", [0, 7])
def test_perm_and_hindex_alone(algorithm: int, htsize: int, tmp_path: Path) -> None:
    keys = [(b"key %d" % i, 1000 + i) for i in range(5)]
    variables = {"SBSIZE": 512, "FORMAT": 0x30, "PURPOSE": 0, "HTALGO": algorithm}
    (tmp_path / "p").write_bytes(pack_perm(variables | {"HTSIZE": htsize}, b"ANY", keys))
    by_pointer = {pointer: key for key, pointer in keys}
    assert [pointer for pointer, _ in check_perm(tmp_path / "p", by_pointer).pairs] == [
        pointer for _, pointer in keys
    ]
    variables |= {"FORMAT": 0x20, "HTSIZE": htsize + 5, "CELLSZ": 2}
    (tmp_path / "h").write_bytes(pack_hindex(variables, b"ANY", list(keys)))
    check_hindex(tmp_path / "h", by_pointer)


# --- the command -------------------------------------------------------------------------------


def test_the_command_accepts_a_sound_container_and_unpacks(
    kitchen: Kitchen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, expected = kitchen.serve("plain", tmp_path)
    assert main([str(base), "--unpack", str(tmp_path / "out")]) == 0
    assert f"right: {len(expected)} files" in capsys.readouterr().out
    assert (tmp_path / "out" / "big").read_bytes() == expected[b"big"].content


def test_command_names_the_fault_in_one_line(
    kitchen: Kitchen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, _ = kitchen.serve("plain", tmp_path)
    Damage(base).patch(".data", 0, b"?")
    assert main([str(base)]) == 1
    assert capsys.readouterr().err.startswith("magic: c.data byte 0: expected")
