"""Jobs digest, sort, group, dedup and stats, each held against a plain loop over the same files."""

from __future__ import annotations

import datetime
import html
import os
import random
import re
import shutil
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import data_sets
import mmh3
import pytest
import stored
import xxhash
from flips import flip
from sparking import SparkSession
from sparking import spark as spark  # the fixture
from test_jobs_documents import plain_bands, plain_shingles, plain_signature
from xxh3_clash import clash

import winkfs
import winkfs.digests
from winkfs.dataset.dataset import create
from winkfs.dataset.manifest import Log
from winkfs.dataset.transaction import begin
from winkfs.errors import DatasetConflict, Refusal
from winkfs.results import orders
from winkfs.spark.jobs import dedup, digest, group, sort, stats
from winkfs.spark.jobs.session import Bad, cause

pytestmark = pytest.mark.spark
WORDS = [f"word{i}" for i in range(400)]
# A byte in 256 ends a word: of all bytes, a plain loop over a megabyte takes seconds.
LONG_WORDS = bytes(ord("a") if 0 < byte < 0x80 else byte for byte in range(256))


class File(NamedTuple):
    name: bytes
    data: bytes
    mtime_ns: int


def page(number: int, words: list[str]) -> bytes:
    return f"<html><title>Page {number} &amp; more</title><p>{' '.join(words)}</p>".encode()


def build(target: Path) -> None:
    """Shards in which files are replaced and deleted; twins, near twins, clashes, odd names."""
    one, two = clash(1)
    with create(target) as out:
        out.put_many((f"site{i % 5}/page {i}.html", page(i, WORDS[i : i + 90]), 1e9 + i)
                     for i in range(60))  # fmt: skip
        out.put(b"site0/gone.html", b"to be deleted")
        out.put(b"raw \xff\xfe.bin", one, mtime=5)
        out.put(b"clash.bin", two, mtime=4)
        out.put("empty 1", b"", mtime=3)
        out.mkdir("a directory")
    with create(target) as out:
        out.put("empty 2", b"", mtime=2)
        out.put("site1/twin of 7.txt", page(7, WORDS[7:97]), mtime=7)
        out.put("site1/twin of 8.HTML", page(8, WORDS[8:98]), mtime=2e9)
        out.put("site1/page 11.html", page(11, [*WORDS[11:99], "replaced"]), mtime=2e9)
        out.put("near 20", page(20, [*WORDS[20:108], "changed", "end"]), mtime=1)
        out.put("near near 20", page(20, [*WORDS[22:108], "changed", "end"]), mtime=1)
        out.put("twin of the raw one", one, mtime=5)
        out.put("large", os.urandom(5 << 20).translate(LONG_WORDS))
        out.delete("site0/gone.html")
        out.symlink("large", "a link")
    with create(target) as out:
        out.put("\u00fc/no title", b"<html><p>" + "gr\u00fc\u00df ".encode() * 60, mtime=-5.5)
        out.put("latin.html", b"<html lang=de><TITLE>\nf\xfcr alle </TITLE>", mtime=0)


def plain(target: Path) -> list[File]:
    """All files, shard after shard in the order they lie in, by a plain loop."""
    last: dict[bytes, int] = {}
    shards = Log(str(target)).latest().shards
    for number, record in enumerate(shards):
        with winkfs.open(target / record.path) as shard:
            last |= {os.fsencode(name): number for name in shard.names()}
    found = []
    for number, record in enumerate(shards):
        with winkfs.open(target / record.path) as shard:
            for entry in shard.scan():
                name = os.fsencode(entry.name)
                is_file = entry.ftype in (winkfs.FileType.FILE, winkfs.FileType.EXEC)
                if is_file and last[name] == number and name != b"site0/gone.html":
                    found.append(File(name, entry.read(), entry.mtime_ns))
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("jobs") / "data set, [x]"
    build(target)
    return target


@pytest.fixture(scope="module")
def files(source: Path) -> list[File]:
    found = plain(source)
    assert len(found) == len({file.name for file in found}) == 60 + 3 + 7 + 2
    return found


def container(target: Path, files: list[File]) -> Path:
    return stored.make(target, {file.name: file.data for file in files})


# --- a container that was added twice ---


def adopted_twice(place: Path) -> Path:
    """A data set of two states of one container: two shards with one CONTID."""
    base = place / "c"
    container(base, [File(b"%02d" % i, page(i, WORDS[i : i + 90]), 0) for i in range(10)])
    target = place / "set"
    create(target).close()
    job = begin(str(target))
    records = []
    for number in range(2):
        copy = job.attempt(f"{number:05}")
        for file in place.glob("c.*"):
            shutil.copy(file, copy + file.suffix)
        records.append(job.seal(copy))
        stored.change(base, {"03": page(3, WORDS[100:190]), "new": page(11, WORDS[200:290])})
    job.commit(records)
    assert len({record.contid for record in records}) == 1
    return target


@pytest.mark.long
def test_two_shards_with_one_contid_count_each_file_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = adopted_twice(tmp_path)
    with winkfs.open(source) as found:
        names = sorted(found.names())
        size = sum(entry.size for entry in found.scan())
    assert len(names) == 11
    for job in (sort, group):
        summary = job.run(spark, str(source), str(tmp_path / "o"), "path")
        assert (summary["files"], summary["groups"], summary["bytes"]) == (11, 11, size)
    parts = read_in_order(spark, source, tmp_path / "o")
    assert sorted(os.fsdecode(name) for part in parts for name in part) == names
    for threshold in (None, 0.5):
        assert dedup.run(spark, str(source), threshold=threshold)["files"] == 11
    assert digest.run(spark, str(source), str(tmp_path / "d"))["files"] == 11
    assert stats.run(spark, str(source))["files"] == 11


# --- digest ---


def plain_title(data: bytes) -> str | None:
    found = re.search(rb"(?is)<title[^>]*>(.*?)</title", data)
    if found is None:
        return None
    try:
        text = found[1].decode()
    except UnicodeDecodeError:
        text = found[1].decode("cp1252")
    return " ".join(html.unescape(text).split()) or None


def plain_language(data: bytes) -> str | None:
    found = re.search(rb"<html lang=(\w+)>", data)
    return found[1].decode() if found else None


def plain_digest(file: File) -> winkfs.digests.Digest:
    return winkfs.digests.Digest(
        xxhash.xxh3_64_intdigest(file.data), mmh3.hash_bytes(file.data, 0, True), len(file.data),
        file.mtime_ns, plain_title(file.data), plain_language(file.data),
    )  # fmt: skip


def test_digests_are_those_of_a_plain_loop(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    for shards in (1, 7):  # the second takes the place of the first
        summary = digest.run(spark, str(source), str(tmp_path / "d"), shards=shards)
    assert (summary["files"], summary["bad"]) == (len(files), 0)
    assert (summary["bytes"], summary["shards"]) == (sum(len(f.data) for f in files), 7)
    with winkfs.digests.open(tmp_path / "d") as found:
        assert len(found) == len(files)
        for file in files:
            assert found.get(file.name) == plain_digest(file)
        assert "a link" not in found and "site0/gone.html" not in found
    assert len(os.listdir(tmp_path / "d")) == 2


def damaged(source: Path, target: Path, what: bytes) -> Path:
    shutil.copytree(source, target)
    for path in target.rglob("*.data"):
        if what in path.read_bytes():
            flip(path, path.read_bytes().index(what) + 1)
    return target


def test_a_damaged_document_is_listed_and_the_others_digested(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    bad_one = damaged(source, tmp_path / "damaged", b"<title>Page 33 ")
    listed: list[Bad] = []
    summary = digest.run(spark, str(bad_one), str(tmp_path / "d"), bad=listed.append)
    assert (summary["files"], summary["bad"]) == (len(files) - 1, 1)
    assert [bad.name for bad in listed] == ["site3/page 33.html"]
    with winkfs.digests.open(tmp_path / "d") as found:
        good = [file for file in files if file.name != b"site3/page 33.html"]
        assert [found.get(file.name) for file in good] == list(map(plain_digest, good))
        assert found.get("site3/page 33.html") is None


def test_fail_fast_leaves_the_digest_set_that_was_there(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    bad_one = damaged(source, tmp_path / "damaged", b"<title>Page 33 ")
    digest.run(spark, str(bad_one), str(tmp_path / "d"))
    there = sorted((tmp_path / "d").rglob("*"))
    for target in ("d", "new"):
        with pytest.raises(Exception, match="checksum") as caught:
            digest.run(spark, str(bad_one), str(tmp_path / target), fail_fast=True)
        assert "\n" not in cause(caught.value) and ".data" in cause(caught.value)
    assert not (tmp_path / "new").exists()
    assert sorted((tmp_path / "d").rglob("*")) == there


# --- sort and group ---


def read_in_order(spark: SparkSession, source: Path, order: Path) -> list[list[bytes]]:
    """The names as the source gives them, one list for each partition."""
    frame = spark.read.format("winkfs").option("orderBy", f"perm:{order}")
    frame = frame.option("columns", "name_raw,content").option("splitBytes", "64k")
    rows = frame.load(f'["{source}"]').rdd.mapPartitions(lambda rows: [[bytes(r[0]) for r in rows]])
    return rows.collect()


def first_part(file: File) -> bytes:
    return file.name.split(b"/")[0]


KEYS: dict[str, Callable[[File], Any]] = {
    "name_raw": lambda file: file.name,
    "mtime": lambda file: file.mtime_ns // 1000,
    "length(content) % 3 / 0.5": lambda file: len(file.data) % 3 / 0.5,
    "nullif(size % 4, 0)": lambda file: len(file.data) % 4,  # nulls first, as 0
}


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("key", KEYS)
def test_an_order_is_that_of_a_stable_sort(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path, key: str
) -> None:
    down = key == "name_raw"
    summary = sort.run(spark, str(source), str(tmp_path / "o"), key, parts=3, descending=down)
    wanted = sorted(files, key=KEYS[key], reverse=down)  # equal ones stay in the order they lie in
    assert summary["files"] == len(files)
    assert summary["groups"] == len(set(map(KEYS[key], files)))
    found = [name for part in read_in_order(spark, source, tmp_path / "o") for name in part]
    assert found == [file.name for file in wanted]
    assert os.listdir(tmp_path) == ["o"]


@pytest.mark.parametrize(("key", "of"), [
    ("split(path, '/')[0]", lambda f: f.name.decode("utf-8", "backslashreplace").split("/")[0]),
    ("double(size % 7) * -0.0", lambda f: 0),
])  # fmt: skip
@pytest.mark.long  # in the suite: by several workers, test_spark_cluster
@pytest.mark.few(1)
def test_groups_are_whole_and_none_is_cut_by_a_partition(
    spark: SparkSession,
    source: Path,
    files: list[File],
    tmp_path: Path,
    key: str,
    of: Callable[[File], Any],
) -> None:
    summary = group.run(spark, str(source), str(tmp_path / "g"), key, parts=3)
    wanted = defaultdict(list)
    for file in files:
        wanted[of(file)].append(file.name)
    assert (summary["groups"], summary["files"]) == (len(wanted), len(files))
    kind = {file.name: of(file) for file in files}
    found: dict[Any, list[bytes]] = {}
    for part in read_in_order(spark, source, tmp_path / "g"):
        runs: list[Any] = []
        for name in part:
            if not runs or runs[-1] != kind[name]:
                runs.append(kind[name])
                assert kind[name] not in found, "a group stands in two places"
                found[kind[name]] = []
            found[kind[name]].append(name)
    assert found == wanted
    order = orders.open(tmp_path / "g")
    assert order.groups == len(wanted)


@pytest.mark.long
def test_a_sort_by_contents_reads_them_once(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    def noted(content: bytes) -> int:
        with notes.open("a") as file:
            file.write("x")
        return len(content)

    spark.udf.register("noted", noted, "int")
    summary = sort.run(spark, str(source), str(tmp_path / "o"), "noted(content)", parts=3)
    assert summary["files"] == len(files) == len(notes.read_text())


def test_a_key_that_is_none_is_one_line_and_leaves_nothing(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    for key, message in (
        ("nonsense", "is no expression over path, size"), ("size +", "is no expression"),
        ("explode(split(path, '/'))", "is no expression"),
        ("array(size)", "is of type array"), ("null", "is of type void"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message) as caught:
            sort.run(spark, str(source), str(tmp_path / "o"), key)
        assert "\n" not in str(caught.value)
        assert os.listdir(tmp_path) == []


# --- dedup ---


def doubles_of(groups: list[list[File]]) -> dict[bytes, bytes]:
    """Name of each double -> of the one that stays: the oldest, then by name."""
    found = {}
    for members in groups:
        first, *others = sorted(members, key=lambda file: (file.mtime_ns, file.name))
        found |= {file.name: first.name for file in others}
    return found


def exact_groups(files: list[File], least: int = 1) -> list[list[File]]:
    groups = defaultdict(list)
    for file in files:
        if len(file.data) >= least:
            groups[file.data].append(file)
    return list(groups.values())


def share(a: set[int], b: set[int]) -> float:
    """The Jaccard index."""
    both = len(a & b)
    return both / (len(a) + len(b) - both)


def by_age(files: list[File]) -> list[tuple[bytes, bytes, set[int]]]:
    """Name, data and shingles of documents with words, the oldest first."""
    files = sorted(files, key=lambda file: (file.mtime_ns, file.name))
    found = [(file.name, data, set(plain_shingles(data)))
             for file in files for data in [file.data[: 1 << 20]]]  # fmt: skip
    return [row for row in found if row[2]]


def near_doubles(files: list[File], threshold: float) -> dict[bytes, bytes]:
    """Each document is held against the oldest of each of its bands."""
    found: dict[bytes, bytes] = {}
    first: dict[int, int] = {}
    documents = by_age(files)
    for i, (name, data, mine) in enumerate(documents):
        bands = plain_bands(plain_signature(data))
        for head in sorted({first.setdefault(band, i) for band in bands} - {i}):
            other, _, theirs = documents[head]
            if other not in found and share(mine, theirs) >= threshold:
                found.setdefault(name, other)
    return found


def table_of(path: Path) -> dict[bytes, bytes]:
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist()
    assert all(row["path"].encode() == row["name_raw"] for row in rows if row["path"].isascii())
    return {row["name_raw"]: row["same_as_raw"] for row in rows}


def content_of(target: Path) -> dict[bytes, tuple[bytes, int, int]]:
    with winkfs.open(target) as found:
        return {os.fsencode(e.name): (e.read(), e.mtime_ns, e.ftype) for e in found.scan()}


@pytest.mark.long  # in the suite: when they are deleted, or left out of a new data set
@pytest.mark.parametrize("least", [0, 100])
def test_exact_doubles_are_those_of_a_plain_loop(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path, least: int
) -> None:
    summary = dedup.run(spark, str(source), table=str(tmp_path / "t"), min_size=least)
    wanted = doubles_of(exact_groups(files, least))
    assert table_of(tmp_path / "t") == wanted
    assert len(wanted) == {0: 4, 100: 2}[least]
    assert b"clash.bin" not in wanted and b"clash.bin" not in wanted.values()
    sizes = {file.name: len(file.data) for file in files}
    assert (summary["doubles"], summary["bytes"]) == (len(wanted), sum(map(sizes.get, wanted)))
    assert summary["groups"] == len(set(wanted.values()))
    assert summary["files"] == sum(size >= least for size in sizes.values())


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_near_doubles_are_those_of_a_plain_loop(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path, threshold: float
) -> None:
    dedup.run(spark, str(source), table=str(tmp_path / "t"), threshold=threshold)
    wanted = near_doubles(files, threshold)
    assert table_of(tmp_path / "t") == wanted
    assert len(wanted) >= 3


def edited_pages(number: int) -> list[File]:
    """Text that people wrote, as pages; and copies with edits, some of them of copies."""
    chance = random.Random(number)
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:100]
    texts = [words for path in sources if len(words := path.read_bytes().split()[:500]) > 200]
    several = [word for text in texts for word in text]
    for _ in range(120):
        text = list(chance.choice(texts))
        for _ in range(chance.choice([1, 3, 6, 10, 15, 25, 40])):
            at = chance.randrange(len(text))
            text[at : at + chance.choice([0, 1])] = chance.choices(several, k=chance.choice([0, 1]))
        texts.append(text)
    pages = [b"<html><p>" + html.escape(b" ".join(t).decode("latin-1")).encode() for t in texts]
    order = chance.sample(range(len(pages)), len(pages))
    return [File(b"%d.html" % i, pages[i], at * 10**9) for at, i in enumerate(order)]


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("threshold", [0.7, 0.8, 0.9])
def test_near_doubles_are_similar_and_few_are_missed(
    spark: SparkSession, tmp_path: Path, threshold: float
) -> None:
    files = edited_pages(int(threshold * 10))
    rows = ((file.name, file.data, file.mtime_ns // 10**9) for file in files)
    data_sets.put(tmp_path / "set", rows)
    dedup.run(spark, str(tmp_path / "set"), table=str(tmp_path / "t"), threshold=threshold)
    found = table_of(tmp_path / "t")
    sets = {name: shingles for name, _, shingles in by_age(files)}
    assert all(share(sets[name], sets[same]) >= threshold for name, same in found.items())
    assert not set(found.values()) & set(found)
    stays: list[bytes] = []
    doubles = set()
    for name, mine in sets.items():  # each against all that stay
        similar = any(share(mine, sets[other]) >= threshold for other in stays)
        doubles.add(name) if similar else stays.append(name)
    assert len(doubles & set(found)) >= 0.95 * len(doubles) > 20


@pytest.mark.long
def test_a_chain_of_small_changes_deletes_no_dissimilar_document(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each is like the one before it, and the last like the first in nothing."""
    texts = (" ".join(WORDS[6 * i : 6 * i + 100]).encode() for i in range(16))
    data_sets.put(tmp_path / "set", ((f"{i:02d}", text, i) for i, text in enumerate(texts)))
    summary = dedup.run(spark, str(tmp_path / "set"), threshold=0.8, delete=True)
    assert 2 <= summary["doubles"] <= 10
    before = {f"{i:02d}": set(range(6 * i, 6 * i + 96)) for i in range(16)}
    left = set(stored.names(tmp_path / "set"))
    assert {"00", "15"} & left and summary["doubles"] == 16 - len(left)
    for gone in before.keys() - left:
        assert any(share(before[gone], before[one]) >= 0.8 for one in left)


def test_doubles_are_deleted_by_one_commit_and_nothing_else_is(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    shutil.copytree(source, tmp_path / "d")
    before = content_of(tmp_path / "d")
    summary = dedup.run(spark, str(tmp_path / "d"), delete=True)
    gone = doubles_of(exact_groups(files))
    assert content_of(tmp_path / "d") == {n: c for n, c in before.items() if n not in gone}
    assert Log(str(tmp_path / "d")).newest() == summary["generation"] == 4
    again = dedup.run(spark, str(tmp_path / "d"), delete=True)
    assert (again["doubles"], again["generation"]) == (0, 4)


def test_a_document_that_was_changed_meanwhile_is_not_deleted(
    spark: SparkSession, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(source, tmp_path / "d")
    real = dedup._delete

    def delete(*arguments: Any) -> int:
        stored.change(tmp_path / "d", {"site1/twin of 8.HTML": b"something new"})
        return real(*arguments)

    monkeypatch.setattr(dedup, "_delete", delete)
    with pytest.raises(DatasetConflict, match="changed meanwhile"):
        dedup.run(spark, str(tmp_path / "d"), delete=True)
    assert content_of(tmp_path / "d")[b"site1/twin of 8.HTML"][0] == b"something new"
    assert list((tmp_path / "d" / "_pending").iterdir()) == []


def test_a_new_data_set_has_all_but_the_doubles(
    spark: SparkSession, source: Path, files: list[File], tmp_path: Path
) -> None:
    dedup.run(spark, str(source), into=str(tmp_path / "new"))
    gone = doubles_of(exact_groups(files))
    wanted = {name: found for name, found in content_of(source).items() if name not in gone}
    assert content_of(tmp_path / "new") == wanted


def test_what_cannot_be_is_refused_before_anything_is_read(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    one = container(tmp_path / "c", [File(b"a", b"1", 0)])
    (tmp_path / "t").mkdir()
    for arguments, message in (
        ({"threshold": 0.3}, "0.5 to 1"), ({"table": str(tmp_path / "t")}, "exists already"),
        ({"into": str(source)}, "is what is read"), ({"into": str(one)}, "is a single container"),
    ):  # fmt: skip
        with pytest.raises((ValueError, Refusal), match=message):
            dedup.run(spark, str(source), **arguments)
    with pytest.raises(Refusal, match="is a single container"):
        dedup.run(spark, str(one), delete=True)


# --- stats ---


def test_counts_are_those_of_a_plain_loop(
    spark: SparkSession, source: Path, files: list[File]
) -> None:
    found = stats.run(spark, str(source))
    assert (found["files"], found["bytes"]) == (len(files), sum(len(f.data) for f in files))

    def counted(of: Callable[[File], Any]) -> dict[Any, tuple[int, int]]:
        counts, sizes = Counter(map(of, files)), Counter[Any]()
        for file in files:
            sizes[of(file)] += len(file.data)
        return {key: (counts[key], sizes[key]) for key in counts}

    def rows(name: str) -> dict[Any, tuple[int, int]]:
        return {row["what"]: (row["files"], row["bytes"]) for row in found[name]}

    def path(file: File) -> str:
        return file.name.decode("utf-8", "backslashreplace")

    def day(file: File) -> str:
        epoch = datetime.datetime(1970, 1, 1)
        return str((epoch + datetime.timedelta(microseconds=file.mtime_ns // 1000)).date())

    types = counted(lambda f: (re.findall(r"[^/]\.(\w{1,10})$", path(f)) or [""])[0].lower())
    assert rows("types") == types
    assert rows("prefixes") == counted(lambda f: path(f).split("/")[0] if "/" in path(f) else "")
    assert rows("sizes") == counted(
        lambda f: 2 ** (len(f.data).bit_length() - 1) // 1 if f.data else 0
    )
    assert rows("days") == counted(day)
    assert [row["what"] for row in found["days"]] == sorted(rows("days"))
    text = "\n".join(stats.lines(found))
    assert f"{len(files)} files, " in text and "site1" in text


def test_relative_paths_resolve_at_the_driver_sites_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [File(b"http://site%d.org/x/%d" % (i % 25, i), b"x" * i, 0) for i in range(100)]
    container(tmp_path / "c", some)
    monkeypatch.chdir(tmp_path)  # the workers stay where they were
    digest.run(spark, "c", "d", shards=3)
    with winkfs.digests.open("d") as digests:
        assert len(digests) == 100
        assert digests.get(some[60].name).xxh3 == xxhash.xxh3_64_intdigest(some[60].data)
    found = stats.run(spark, "c")
    names = [row["what"] for row in found["prefixes"]]
    assert len(names) == 21 and names[-1] == "(others)" and names[0] == "http://site24.org"
    assert sum(row["files"] for row in found["prefixes"]) == 100


@pytest.mark.long
def test_an_empty_data_set_has_no_answers_and_no_errors(
    spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path / "d").close()
    source = str(tmp_path / "d")
    found = stats.run(spark, source)
    assert found["files"] == 0 and next(stats.lines(found)).startswith("0 files")
    assert digest.run(spark, source, str(tmp_path / "g"))["files"] == 0
    assert sort.run(spark, source, str(tmp_path / "o"), "path")["files"] == 0
    assert dedup.run(spark, source, threshold=0.9)["doubles"] == 0
