"""What each command does with a URL: docs/remote.md has the list."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import invoke
from simulated.objectstore import ObjectStore

import winkfs
from winkfs.cli import COMMANDS

pytestmark = pytest.mark.in_memory
ROOT = Path(__file__).resolve().parents[2]
ONLY = "can only be read"
YES = {
    "unpack": ["URL", "out"],
    "get": ["URL", "d/0007", "got"],
    "diff": ["URL", "c"],
    "grep": ["URL", "^7$"],
    "sync": ["URL", "c"],
    "cp": ["URL", "whole"],
    "split": ["URL", "part", "--files", "200"],
    "report": ["URL", "--json"],
    "metrics": ["URL"],
    "export": ["URL", "--parquet", "files.parquet"],
    "info": ["URL"],
    "ls": ["URL", "d/000*"],
    "find": ["URL", "d", "-name", "000*"],
    "du": ["URL", "d"],
    "tree": ["URL", "d"],
    "cat": ["URL", "d/0007"],
    "stat": ["URL", "d/0007"],
    "query": ["URL", "select count(*) from files"],
    "verify": ["URL", "--sample", "50%"],
    "backup": ["URL", "copy"],
    "push": ["c", "URL"],
    "pull": ["URL", "pulled"],
    "sign": ["URL", "d/0007"],
    "salvage": ["URL", "copy"],
    "fct": ["list", "URL.data"],
}
NO = {
    "create": (["URL2"], ONLY),
    "pack": (["folder", "URL2"], ONLY),
    "columns": (["URL", "add", "a=int64"], ONLY),
    "put": (["URL", "n", "file"], ONLY),
    "append": (["URL", "n", "file"], ONLY),
    "rm": (["URL", "d/0001"], ONLY),
    "mv": (["URL", "d/0001", "x"], ONLY),
    "reindex": (["URL"], ONLY),
    "compact": (["URL"], ONLY),
    "repair": (["URL", "--apply"], ONLY),
    "rollback": (["URL"], ONLY),
    "store": (["create", "URL2", "--kind", "log"], ONLY),
    "queue": (["create", "URL2"], ONLY),
    "ring": (["create", "URL2"], ONLY),
}
SET = """\
dataset create SET
dataset add SET c
ls SET d/000*
find SET d -type f
du SET
tree SET -L 1
put SET new file
cat SET new
rm SET d/0001
mv SET d/0002 moved
columns SET add a=int64
stat SET moved
info SET
verify SET
verify SET --part 1/2
verify SET --quick
verify SET --checksum md5
dataset history SET
dataset compact SET --all --jobs 2
dataset rebalance SET --shards 2
dataset vacuum SET --older-than 0
dataset repair SET --apply
put SET scrap file
sync folder SET
sync folder SET --delete --force --include scrap
pack folder SET --shards 2 --update
unpack SET out
sync SET synced/
cp c SET --prefix more/ --include 0007
rm SET more/d/0007
cp SET c whole
split SET parts --shards 2
export SET --mds samples
query SET "select count(*) from files"
pull SET pulled
push pulled SET
backup SET copy
"""  # of data sets, in this order
ELSEWHERE = {"mount": "test_far_mount",
    "cache": "test_far_cache", "remote": "test_check", "umount": "a directory", "mounts": "nothing",
             "completion": "nothing", "pipeline": "test_spark_urls"}  # fmt: skip


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as made:
        yield made


@pytest.fixture
def url(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with winkfs.create("c") as c:
        c.put_many((f"d/{i:04}", b"%d" % i) for i in range(300))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    return store.put_container(tmp_path / "c")


def test_the_list_has_all_commands() -> None:
    assert {*YES, *NO, *ELSEWHERE, *of_data_sets()} == COMMANDS.keys()


def of_data_sets() -> set[str]:
    return {line.split()[0] for line in SET.splitlines()}


def test_the_page_has_the_list() -> None:
    page = (ROOT / "docs/remote.md").read_text()
    shown = re.findall(r"^\| `([a-z`, ]+)` \| (yes|no)", page, re.MULTILINE)
    found = {name: answer for names, answer in shown for name in names.split("`, `")}
    yes = {*YES, *of_data_sets(), "mount", "pipeline"}
    assert found == dict.fromkeys(NO, "no") | dict.fromkeys(yes, "yes")


def test_data_sets_are_written(url: str, store: ObjectStore) -> None:
    root = store.trusted("set")
    for line in SET.splitlines():
        needed = {"query": "duckdb", "export": "pyarrow"}.get(line.split()[0], "sys")
        if find_spec(needed) is None:
            continue
        done = invoke(*shlex.split(line.replace("SET", root)))
        assert done.exit_code == 0, (line, done.stderr)
    with winkfs.open(root) as there, winkfs.open("pulled") as pulled:
        assert len(there) == 301 and sorted(there) == sorted(pulled)
        assert "scrap" not in there
        assert there.read("new") == there.read("file") == b"x" and "d/0001" not in there


def test_a_data_set_needs_a_store_that_was_checked(
    url: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ("dataset create URL2", "pack folder URL2 --shards 2", "push copy URL2"):
        if line.startswith("push"):
            invoke("dataset", "create", "copy")
        done = invoke(*shlex.split(line.replace("URL", url)))
        assert done.exit_code == 1 and "winkfs remote check" in done.stderr
    monkeypatch.setenv("WINKFS_SINGLE_WRITER", "1")
    assert invoke("dataset", "create", f"{store.url}/alone").exit_code == 0


@pytest.mark.few(13)
@pytest.mark.parametrize("verb", YES)
def test_it_reads(url: str, verb: str) -> None:
    if verb == "query":
        pytest.importorskip("duckdb")
    done = invoke(verb, *(word.replace("URL", url) for word in YES[verb]))
    assert done.exit_code == 0, done.stderr
    if verb in ("unpack", "backup", "salvage"):
        found = Path("out/d/0007") if verb == "unpack" else Path("copy.data")
        assert found.exists()


@pytest.mark.parametrize("verb", NO)
def test_it_refuses_in_one_line(url: str, verb: str) -> None:
    arguments, line = NO[verb]
    done = invoke(verb, *(word.replace("URL", url) for word in arguments))
    assert done.exit_code == 1 and line in done.stderr and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("line", ["dataset create X", "create X", "pack folder X", "ls X"])
@pytest.mark.parametrize("scheme", ["s4", "file"])
def test_no_folder_is_made_of_a_scheme_that_nothing_knows(url: str, scheme: str, line: str) -> None:
    done = invoke(*line.replace("X", f"{scheme}://bucket/corpus").split())
    assert done.exit_code == 1 and "no store is at such URLs" in done.stderr
    assert done.stderr.count("\n") == 1 and not list(Path().glob("*:"))
