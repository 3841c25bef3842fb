"""The command verify: parts, samples, what they find, and lists of checksums."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import data_sets
import pytest
import stored
from commands import Run, one_line
from flips import flipping

import winkfs
from winkfs.dataset import partial

pytestmark = pytest.mark.slow

FILES: dict[str | bytes, bytes] = {
    f"d/{i:04}": bytes([i % 251]) * (40 + i % 700) for i in range(600)
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial, "LEAST_BLOCK", 1 << 12)


@pytest.fixture
def corpus(run: Run, tmp_path: Path) -> Path:
    """A container with replaced, removed, empty and large files, a link and a directory."""
    base = stored.make(tmp_path / "c", FILES)
    with winkfs.open(base, "a") as c:
        c.put("empty", b"")
        c.put("large", b"x" * 100_000)
        c.put("d/0007", b"new")
        c.delete("d/0008")
        c.put("l", b"empty", ftype=winkfs.FileType.LINK)
        c.put("dir", b"", ftype=winkfs.FileType.DIR)
        c.append("d/0003", b"later")
    return base


def facts(run: Run, *options: object) -> dict[str, object]:
    done = run("verify", "c", "--json", *options)
    found: dict[str, object] = json.loads(done.out)
    assert done.status == bool(found["problems"])
    return found


@pytest.mark.few
@pytest.mark.parametrize("catalog", [True, False])
@pytest.mark.parametrize("parts", [1, 3, 60])
def test_parts_have_each_entry_once(run: Run, corpus: Path, parts: int, catalog: bool) -> None:
    if catalog:
        winkfs.reindex(corpus)
    else:
        Path(f"{corpus}.cat").unlink(missing_ok=True)
    whole = facts(run)
    found = [facts(run, "--part", f"{i + 1}/{parts}") for i in range(parts)] if parts > 1 else [
        facts(run, "--max-duration", "10m", "--jobs", 2)
    ]  # fmt: skip
    for what in ("files", "entries", "bytes"):
        assert sum(int(str(one[what])) for one in found) == whole[what], what
    assert whole["scope"] == "all" and "entries read, by bytes" in str(found[0]["scope"])


@pytest.mark.parametrize("settings", [{"classic": True}, {"ao": True}, {"compress": "zstd"}])
def test_parts_of_each_variant(run: Run, tmp_path: Path, settings: dict[str, object]) -> None:
    base = stored.make(tmp_path / "c", [(n, d, 1000) for n, d in FILES.items()], **settings)
    whole, found = facts(run), [facts(run, "--part", f"{i}/3") for i in (1, 2, 3)]
    for what in ("files", "entries", "bytes"):
        assert sum(int(str(one[what])) for one in found) == whole[what], what
    if "classic" in settings:
        return  # it has no checksums
    data = Path(f"{base}.data").read_bytes()
    at = data.find(FILES["d/0300"])
    with flipping(f"{base}.data", at if at > 0 else len(data) // 2):
        assert sum(run("verify", "c", "--part", f"{i}/3").status for i in (1, 2, 3)) == 1


def test_samples_are_chosen_by_their_seed(run: Run, corpus: Path) -> None:
    first = facts(run, "--sample", "20%")
    assert facts(run, "--sample", "20%") == first
    assert facts(run, "--sample", "20%", "--seed", 1) != first
    share = float(str(first["scope"]).split()[0])
    assert 5 < share < 60 and "seed 0" in str(first["scope"])
    line = run("verify", "c", "--sample", "20%").out.decode()
    assert re.fullmatch(r"c: \d+ files, \d+ entries: sound: [\d.]+ % of the entries read, by "
                        r"bytes, seed 0; index, catalog and counters were not compared with "
                        r"them\n", line)  # fmt: skip


def test_damage_is_found_by_the_part_that_has_it(run: Run, corpus: Path) -> None:
    data = Path(f"{corpus}.data").read_bytes()
    at = data.index(b"\x64" * 100)  # content of a file
    with flipping(f"{corpus}.data", at):
        found = [run("verify", "c", "--part", f"{i + 1}/5") for i in range(5)]
        bad = [done for done in found if done.status]
        assert len(bad) == 1 and b"bad entry" in bad[0].out and b" % of " in bad[0].out
        assert all(b": sound: " in done.out for done in found if not done.status)
        quick = run("verify", "c", "--quick")
        assert quick.status == 0 and b"no entry was read" in quick.out
        long = run("verify", "c", "--max-duration", "10m")
        assert long.status == 1 and b" 100 % of" in long.out
        none = run("verify", "c", "--max-duration", "0s")
        assert none.status == 0 and b": sound: 0 % of the entries read" in none.out


def test_an_extent_to_another_place_is_found_by_a_part(run: Run, corpus: Path) -> None:
    """The data of a file that was appended to is not beside its inode."""
    data = Path(f"{corpus}.data").read_bytes()
    with flipping(f"{corpus}.data", data.index(bytes([3]) * 43)):
        found = [run("verify", "c", "--part", f"{i + 1}/40") for i in range(40)]
        bad = [done.out for done in found if done.status]
        assert len(bad) == 2
        assert b"bad entry" in bad[0] and b"extent points to no data entry" in bad[1]


def test_quick_compares_index_and_catalog(run: Run, corpus: Path) -> None:
    winkfs.reindex(corpus)
    line = run("verify", "c", "--quick").out.decode()
    assert line.endswith(": sound: superblock, index and catalog; no entry was read\n")
    old = Path(f"{corpus}.idx").read_bytes()
    with winkfs.open(corpus, "a") as c:
        c.put_many([(f"e/{i}", b"") for i in range(3000)])
        c.put("d/0010", b"again")
        c.delete("d/0011")
    winkfs.reindex(corpus)
    index = Path(f"{corpus}.idx")
    size = index.stat().st_size
    stored.flip_text(index, index.read_bytes()[size // 2 : size // 2 + 64])
    done = run("verify", "c", "--quick")
    assert done.status == 1 and b"page" in done.out and b"no valid index" in done.out
    index.write_bytes(old)
    assert run("verify", "c", "--quick").status == 0  # its tail is replayed
    Path(f"{corpus}.cat").write_bytes(b"")
    assert b"no valid catalog to compare" in run("verify", "c", "--quick").out


def test_parts_of_a_data_set(run: Run, tmp_path: Path) -> None:
    some = list(FILES.items())
    data_sets.add(tmp_path / "c", dict(some[:200]), dict(some[200:]))
    data_sets.add(tmp_path / "c", dict(some[:50]))
    whole, twice = facts(run), facts(run, "--jobs", 2)
    assert whole == twice and whole["files"] == len(FILES)
    found = [facts(run, "--part", f"{i + 1}/4") for i in range(4)]
    assert sum(int(str(one["entries"])) for one in found) == whole["entries"]
    quick = facts(run, "--quick")
    assert quick["files"] == len(FILES) and "manifests" in str(quick["scope"])
    shard = next((tmp_path / "c").glob("*/*.data"))
    with flipping(shard, shard.stat().st_size // 2):
        assert sum(run("verify", "c", "--part", f"{i}/4").status for i in (1, 2, 3, 4)) == 1
        assert run("verify", "c", "--jobs", 2).status == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--quick", "--part", "1/2"], ["--sample", "0%"], ["--sample", "5"], ["--part", "0/3"],
        ["--part", "4/3"], ["--part", "x"], ["--seed", "1"], ["--checksum", "crc"],
        ["--checksum", "md5", "--quick"], ["--sample", "101%"],
    ],
)  # fmt: skip
def test_choices_that_cannot_be(run: Run, base: str, options: list[str]) -> None:
    one_line(run("verify", "c", *options), 2)


def test_a_part_is_for_containers_and_data_sets(run: Run) -> None:
    assert run("queue", "create", "q").status == 0
    assert "not for a queue" in one_line(run("verify", "q", "--part", "1/2"))


@pytest.mark.parametrize(
    "line", ["verify c", "reindex c", "compact c", "backup c b", "salvage c.data s"]
)
def test_quiet_is_without_a_summary(run: Run, base: str, line: str) -> None:
    done = run(*line.split(), "-q")
    assert (done.status, done.out, done.err) == (0, b"", "")


# --- checksums ---


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_list_is_accepted_by_the_tool(run: Run, tmp_path: Path, algorithm: str) -> None:
    files: dict[str | bytes, bytes] = {
        "a": b"1", "d/b c": b"2", "d/x\ny": b"3", "b\\n": b"4", b"\xff": b"", "cr\rz": b"5",
        "big": bytes(3 << 20),
    }  # fmt: skip
    base = stored.make(tmp_path / "c", files)
    with winkfs.open(base, "a") as c:
        c.put("link", b"a", ftype=winkfs.FileType.LINK)
    done = run("verify", "c", "--checksum", algorithm)
    assert (done.status, done.err) == (0, "") and done.out.count(b"\n") == len(files)
    assert run("unpack", "c", "out").status == 0
    tool = subprocess.run([f"{algorithm}sum", "-c", "--strict"], input=done.out, cwd="out",
                          capture_output=True)  # fmt: skip
    assert tool.returncode == 0, tool
    Path("out/a").write_bytes(b"other")
    assert subprocess.run([f"{algorithm}sum", "-c", "--quiet"], input=done.out, cwd="out",
                          capture_output=True).returncode == 1  # fmt: skip
    record = json.loads(run("verify", "c", "--checksum", algorithm, "--json").out.splitlines()[0])
    assert record.keys() == {"name", "algorithm", "checksum"}


def test_a_damaged_file_has_no_checksum(run: Run, corpus: Path) -> None:
    stored.flip_text(f"{corpus}.data", b"x" * 1000)
    done = run("verify", "c", "--checksum", "sha256")
    assert done.status == 1 and b"  large\n" not in done.out and "large" in done.err
    assert done.out.count(b"\n") == len(FILES)


def test_a_damaged_content_is_reported_with_the_name_of_its_file(run: Run) -> None:
    stored.make("n", {f"d/f{i}\n": b"content of %d" % i for i in range(20)})
    stored.flip_text("n.data", b"content of 7")
    done = run("verify", "n")
    assert done.status == 1
    assert b" (d/f7\\n): extent points to no data entry" in done.out


def test_quick_compares_positions_if_the_counts_are_equal(run: Run, tmp_path: Path) -> None:
    """The indexes are of two containers of one size, whose files lie in another order."""
    base = stored.make(tmp_path / "c", {"a": b"1"})
    shutil.copy(f"{base}.data", tmp_path / "d.data")
    sizes = {"x": 8, "y": 800}
    stored.change(base, {name: bytes(sizes[name]) for name in "xy"})
    stored.change(tmp_path / "d", {name: bytes(sizes[name]) for name in "yx"})
    winkfs.reindex(base)
    winkfs.reindex(tmp_path / "d")
    assert run("verify", "c", "--quick").status == 0
    shutil.copy(tmp_path / "d.idx", f"{base}.idx")
    done = run("verify", "c", "--quick")
    assert done.status == 1
    assert b"its cells are not those of the files of the catalog" in done.out
