"""Every container of the oracle's writer: read, listed, verified, unpacked, then changed by us."""

import shutil
from pathlib import Path

import container_checks
import pytest
from container_checks import assert_sound, contents, path_of
from oracle_lives import Files
from oracle_read import check
from oracle_recipes import OPTIONS, RECIPES

import winkfs
from winkfs import Container, FileType
from winkfs.cli import main
from winkfs.entry import default_mode

pytestmark = pytest.mark.slow

base = container_checks.base  # fixture

Model = dict[bytes, bytes]
UNCLEAN = sorted(name for name, options in OPTIONS.items() if not options.get("clean", True))


@pytest.fixture
def files(name: str, base: Path) -> Files:
    return RECIPES[name](base)


@pytest.fixture
def model(files: Files) -> Model:
    return {name: file.content for name, file in files.items()}


def no_deletes(name: str) -> bool:
    return name == "never_deletes"


@pytest.mark.few(12)
@pytest.mark.parametrize("name", RECIPES)
def test_read_and_listed(name: str, base: Path, files: Files, model: Model) -> None:
    with winkfs.open(base) as container:
        assert container.notes == []
        assert contents(container) == model
        for entry in container.scan():
            assert entry == container.scan(prefix=entry.name).__next__()
        for file_name, wanted in files.items():
            stat = container.stat(file_name)
            assert stat.mtime_ns == wanted.mtime_ns
            assert stat.ftype == (wanted.ftype or 102)
            mode = default_mode(stat.ftype) if wanted.mode is None else wanted.mode
            assert stat.mode == mode
            owner = base.parent.stat()
            uid = owner.st_uid if wanted.uid is None else wanted.uid
            gid = owner.st_gid if wanted.gid is None else wanted.gid
            assert (stat.uid, stat.gid) == (uid, gid)
            assert container.getxattrs(file_name) == wanted.xattrs
            middle = len(wanted.content) // 2
            assert container.read(file_name, middle, 50) == wanted.content[middle : middle + 50]
            with container.open_file(file_name) as file:
                file.seek(middle)
                assert file.read() == wanted.content[middle:]
        assert "gone and never was" not in container
        assert list(container.get_many(list(files))) == list(model.values())


@pytest.mark.few(16)
@pytest.mark.parametrize("name", RECIPES)
def test_verified_without_a_false_alarm(name: str, base: Path, model: Model) -> None:
    before = {path.name: path.read_bytes() for path in base.parent.iterdir()}
    report = winkfs.verify(base)
    assert report.problems == []
    assert (report.files, report.bytes) == (len(model), sum(map(len, model.values())))
    assert report.entries == len(check(base, **OPTIONS[name]).entries)
    assert {path.name: path.read_bytes() for path in base.parent.iterdir()} == before


@pytest.mark.few(16)
@pytest.mark.parametrize("name", RECIPES)
def test_unpacked_to_the_byte(name: str, base: Path, files: Files, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert main(["unpack", str(base), str(target)]) == 0
    found = {}
    for path in target.rglob("*"):
        key = str(path.relative_to(target)).encode("utf-8", "surrogateescape")
        if path.is_symlink():
            found[key] = str(path.readlink()).encode("utf-8", "surrogateescape")
        elif path.is_file():
            found[key] = path.read_bytes()
            assert path.stat().st_mtime_ns == files[key].mtime_ns
    folders = {name for name, file in files.items() if file.ftype == 100}
    assert all((target / name.decode()).is_dir() for name in folders)
    wanted = {name: file.content for name, file in files.items() if name not in folders}
    assert found == wanted


@pytest.mark.few(8)
@pytest.mark.parametrize("dropped", [(".idx",), (".time",), (".idx", ".time", ".cat")])
@pytest.mark.parametrize("name", RECIPES)
def test_read_without_its_derived_files(
    name: str, dropped: tuple[str, ...], base: Path, model: Model
) -> None:
    for suffix in dropped:
        path_of(base, suffix).unlink(missing_ok=True)
    with winkfs.open(base) as container:
        assert contents(container) == model
        for entry in container.scan():
            assert entry.name in [e.name for e in container.scan(since=entry.mtime_ns // 10**9)]
    winkfs.open(base, "a").close()
    assert_sound(base, model, missing_ok=True)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", RECIPES)
def test_opening_for_writing_leaves_a_strictly_right_container(
    name: str, base: Path, model: Model
) -> None:
    winkfs.open(base, "a").close()
    assert_sound(base, model, missing_ok=True)


@pytest.mark.few(16)
@pytest.mark.parametrize("name", RECIPES)
def test_reindexed(name: str, base: Path, model: Model) -> None:
    assert winkfs.reindex(base) == len(model)
    assert_sound(base, model)


def change(container: Container, model: Model) -> None:
    """Delete, rename, append, rewrite, cut, grow: on some of the files, old ones and new ones."""
    names = sorted(model)
    container.put(b"new one", b"N" * 50)
    model[b"new one"] = b"N" * 50
    container.put_many((b"many%d" % i, b"m" * i) for i in range(40))
    model.update((b"many%d" % i, b"m" * i) for i in range(40))
    if container.superblock.get("KVDELFL") != 1:
        return
    for name in [*names[::3], b"many1", b"many2"]:
        container.delete(name)
        del model[name]
    for name in [*names[1::3], b"many3"]:
        container.put(name, b"put again")
        model[name] = b"put again"
    container.put_many([(b"many4", b"first"), (b"many4", b"second")])
    model[b"many4"] = b"second"
    if container.ao:
        return
    kept = [name for name in names[2::3] if container.stat(name).ftype != FileType.DIR]
    for name in [*kept, b"many5", b"many6"]:
        container.append(name, b"appended")
        model[name] += b"appended"
    container.sync()
    for name in [*kept, b"many6", b"many7"]:
        container.write(name, 3, b"WRITTEN")
        model[name] = model[name][:3].ljust(3, b"\0") + b"WRITTEN" + model[name][10:]
    for i, name in enumerate([*kept, b"many8", b"many9"]):
        container.truncate(name, 4)
        container.truncate(name, 9 + i)
        model[name] = model[name][:4].ljust(9 + i, b"\0")
    for i, name in enumerate([*kept, b"many10"]):
        container.rename(name, b"moved %d" % i)
        model[b"moved %d" % i] = model.pop(name)
    container.rename(b"many13", b"many11")
    model[b"many11"] = model.pop(b"many13")
    container.sync()
    container.utime(b"many12", 1)
    container.chmod(b"many12", 0o755)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", RECIPES)
def test_changed_then_strictly_right(name: str, base: Path, model: Model) -> None:
    with winkfs.open(base, "a") as container:
        change(container, model)
        assert contents(container) == model
    assert_sound(base, model)
    winkfs.reindex(base)
    assert_sound(base, model)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", RECIPES)
def test_changed_by_a_writer_that_dies(name: str, base: Path, model: Model) -> None:
    """Its files are copied as they are, after a sync and no close."""
    copy = base.with_name("copy")
    with winkfs.open(base, "a") as container:
        change(container, model)
        container.sync()
        wanted = dict(model)
        for path in list(base.parent.glob("c.*")):
            shutil.copy(path, path_of(copy, path.suffix))
        for extra in (b"later", b"later still"):
            container.put(extra, b"x")
    with winkfs.open(copy) as container:
        assert contents(container) == wanted
    assert winkfs.verify(copy).problems == []
    check(copy, clean=False)
    winkfs.open(copy, "a").close()
    assert_sound(copy, wanted, missing_ok=True)


@pytest.mark.parametrize("name", UNCLEAN)
def test_what_a_dead_writer_left_is_finished(name: str, base: Path, model: Model) -> None:
    for mode in ("r", "a", "r", "a"):
        with winkfs.open(base, mode) as container:
            assert contents(container) == model
    assert_sound(base, model)


@pytest.mark.parametrize("name", ["plain", "classic_seqdb", "append_only"])
def test_unknown_variables_and_entries_are_kept(name: str, base: Path, model: Model) -> None:
    before = check(base)
    with winkfs.open(base, "a") as container:
        change(container, model)
    after = check(base)
    changing = {"FILESIZE", "SYNCSIZE", "SYNCTIME", "SBCKSUM", "ENTRIES", "AENTRIES"}
    changing |= {"ITOTSZ", "DTOTSZ", "NEXTFID"}
    assert list(after.superblock.variables)[: len(before.superblock.variables)] == list(
        before.superblock.variables
    )
    for variable, value in before.superblock.variables.items():
        if variable not in changing:
            assert after.superblock.variables[variable] == value, variable
    strange = [e.key for e in before.entries if e.key in (b"a key of somebody else", b"1/Z9")]
    assert [e.key for e in after.entries if e.key in strange] == strange


def test_cells_keep_the_words_of_their_user(base: Path) -> None:
    """CELLSZ 3: the third word is not ours, and survives a new index."""
    model = {name: file.content for name, file in RECIPES["wide_cells"](base).items()}
    before = check(base)
    assert before.index
    words = {cell[0]: cell[2] for cell in before.index.cells if cell[2]}
    assert set(words.values()) == {7}
    with winkfs.open(base, "a") as container:
        container.put_many((b"%d" % i, b"") for i in range(500))
    model |= {b"%d" % i: b"" for i in range(500)}
    after = assert_sound(base, model)
    assert after.index
    now = {cell[0]: cell[2] for cell in after.index.cells}
    kept = [file.inode_pos for name, file in after.files.items() if name in before.files]
    assert kept and all(now[pos] == 7 for pos in kept if pos in words)
