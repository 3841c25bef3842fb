"""Push, pull, sign: what readers see meanwhile, requests that fail, and what is sent again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import Run, one_line
from commands import run as run  # a fixture
from simulated.objectstore import ObjectStore, Request

import winkfs
import winkfs.dataset
from winkformats.disk import parts
from winkfs.container.store import Store
from winkfs.errors import FileExists, NotAllowed, Refusal, StalePlan
from winkfs.remote.signed import Link

pytestmark = pytest.mark.in_memory
OLD = {f"d/{i:02}": bytes([i]) * 700 for i in range(30)}
NEW = OLD | {"d/03": b"changed", "new": b"n" * 900}


class Cut(BaseException):
    """What ends a program."""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 4096)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(OLD.items())
    return tmp_path / "c"


def change(base: Path) -> None:
    with winkfs.open(base, "a") as c:
        c.put("d/03", NEW["d/03"])
        c.put("new", NEW["new"])


def content(url: str) -> dict[str, bytes]:
    """-> all files; they were found by the catalog."""
    with winkfs.open(url) as there:
        assert isinstance(there, winkfs.Container)
        found = dict(there.items())
        assert not there.problems
        assert not there.store.remarks
        return found


# --- push ---


def test_what_was_pushed_is_read_with_four_requests(store: ObjectStore, base: Path) -> None:
    url = f"{store.url}/dir/c"
    done = winkfs.push(base, url)
    assert (done.url, done.same, done.replaces) == (url, False, False)
    assert done.sent == done.size == sum(len(data) for data, _ in store.objects.values())
    with store.counted() as asked, winkfs.open(url) as there:
        assert there.read("d/07") == OLD["d/07"]
    assert len(asked) <= 4
    assert content(url) == OLD and not winkfs.verify(url).problems
    suffixes = {re.sub(r"\.[0-9a-f]{16}\.", ".X.", key) for key in store.objects}
    assert suffixes == {"dir/c.data", "dir/c.X.cat"}


def test_what_is_there_is_not_sent_again(store: ObjectStore, base: Path) -> None:
    url = f"{store.url}/c"
    winkfs.push(base, url)
    with store.counted() as asked:
        done = winkfs.push(base, url)
    assert done.same and not done.sent and not _writes(asked)


def _writes(requests: list[Request]) -> list[Request]:
    return [asked for asked in requests if asked.what in ("put", "part", "begin", "complete")]


def test_a_container_in_use_is_sent_as_of_its_last_sync(store: ObjectStore, base: Path) -> None:
    with winkfs.open(base, "a") as c:
        c.put("d/03", NEW["d/03"])
        c.put("new", NEW["new"])
        c.sync()
        c.put("later", b"x" * 5000)
        c.delete("d/05")
        winkfs.push(base, f"{store.url}/c")
        assert content(f"{store.url}/c") == NEW
        c.sync()
        winkfs.push(base, f"{store.url}/c")
    there = content(f"{store.url}/c")
    assert there.keys() == (NEW.keys() | {"later"}) - {"d/05"}
    assert not winkfs.verify(f"{store.url}/c").problems


def test_what_others_write_meanwhile_is_not_seen(
    store: ObjectStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their delflags are set in the file that is being read."""
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    with winkfs.open(base, "a") as c:
        c.append("d/07", b"and more")
        c.sync()
        before, names = dict(c.items()), iter(sorted(OLD))

        def write(key: str) -> None:
            if key == "c.data" and (name := next(names, "")):
                c.put(name, b"changed")
                c.append(next(names), b"more")
                c.delete(next(names))
                c.sync()
                c.sync()

        store.failing = write
        winkfs.push(base, f"{store.url}/c")
        store.failing = _nothing
        assert len(c) < len(before)
    assert content(f"{store.url}/c") == before
    assert not winkfs.verify(f"{store.url}/c").problems


def test_a_copy_by_hand_is_what_it_is(store: ObjectStore, base: Path) -> None:
    url = store.put_container(base)
    before = dict(store.objects)
    assert winkfs.push(base, url).same and store.objects == before
    del store.objects["dir/c.cat"]
    assert winkfs.push(base, url).sent
    assert content(url) == OLD
    change(base)
    assert winkfs.push(base, url).replaces
    assert content(url) == NEW and "dir/c.cat" not in store.objects


def test_catalogs_that_killed_pushes_left_are_removed(store: ObjectStore, base: Path) -> None:
    url, kept = f"{store.url}/d/c", ["d/c.0000000000000001.cat", "d/c.other.cat", "d/other.cat"]
    for key in ("d/c.0000000000000000.cat", *kept):
        store.put(key, b"")
    data, info = store.objects[kept[0]]
    store.objects[kept[0]] = data, info._replace(mtime=info.mtime + 90_000)  # of a push that runs
    winkfs.push(base, url)
    assert {key for key in store.objects if not store.objects[key][0]} == {*kept}


def test_a_dry_run_sends_nothing(store: ObjectStore, base: Path) -> None:
    done = winkfs.push(base, f"{store.url}/c", dry_run=True)
    assert done.sent == done.size > 0 and not store.objects and not store.pending


def pushed(store: ObjectStore, base: Path) -> str:
    """Push a state, and change the container."""
    url = f"{store.url}/c"
    winkfs.push(base, url)
    change(base)
    return url


def test_readers_see_one_state_at_each_moment(store: ObjectStore, base: Path) -> None:
    url, seen = pushed(store, base), list[bool]()

    def look(key: str) -> None:
        hooks, store.failing, store.lost = (store.failing, store.lost), _nothing, _nothing
        store.transport.recent.clear()
        found = content(url)
        assert found in (OLD, NEW)
        seen.append(found == NEW)
        store.failing, store.lost = hooks

    store.failing = store.lost = look
    done = winkfs.push(base, url)
    assert done.replaces
    assert seen == sorted(seen) and set(seen) == {False, True}
    assert len(store.objects) == 2  # the catalog of the old state is gone


def _nothing(key: str) -> None:
    """Let it pass."""


def test_an_open_reader_never_mixes_states(store: ObjectStore, base: Path) -> None:
    url = pushed(store, base)
    with winkfs.open(url) as before, winkfs.open(url) as fresh:
        assert before.read("d/01") == OLD["d/01"]
        winkfs.push(base, url)
        for reader in (before, fresh):
            with pytest.raises(StalePlan, match="was replaced"):
                list(reader.items())
            with pytest.raises(StalePlan, match="was replaced"):
                reader.read("d/29")
    store.transport.recent.clear()
    assert content(url) == NEW


class Fault:
    """A hook that raises an error at the call with a number, or also at later ones."""

    def __init__(self, at: int, error: BaseException, *, later: bool = False) -> None:
        self.at, self.error, self.later, self.calls = at, error, later, 0

    def __call__(self, key: str) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number == self.at or (self.later and number > self.at):
            raise self.error


@pytest.mark.few(1)
@pytest.mark.parametrize("hook", ["failing", "lost"])
def test_each_request_can_fail(
    store: ObjectStore, base: Path, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winkfs.remote.pushcontainer.PAUSE", 0.0)
    url = pushed(store, base)
    objects = dict(store.objects)
    for at in range(100):
        store.objects, store.pending = dict(objects), {}
        fault = Fault(at, OSError(5, "it fails"))
        setattr(store, hook, fault)
        try:
            winkfs.push(base, url)
        except OSError as error:
            assert "another program" not in str(error)
        setattr(store, hook, _nothing)
        store.transport.recent.clear()
        assert content(url) in (OLD, NEW)
        winkfs.push(base, url)
        assert content(url) == NEW
        if fault.calls <= at:
            break
    assert 5 < at < 99


def test_a_push_that_was_killed_goes_on(
    store: ObjectStore, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is the last one in turn."""
    monkeypatch.setattr(parts, "AT_ONCE", 1)  # no thread outlives the push
    url = pushed(store, base)
    objects, whole = dict(store.objects), 0
    for at in range(100):
        store.objects, store.pending = dict(objects), {}
        store.failing = Fault(at, Cut(), later=True)
        with store.counted() as first:
            try:
                winkfs.push(base, url)
                ended = True
            except Cut:
                ended = False
        store.failing = _nothing
        store.transport.recent.clear()
        assert content(url) in (OLD, NEW)
        with store.counted() as second:
            winkfs.push(base, url)
        assert content(url) == NEW
        sent = sum(asked.size for asked in [*first, *second] if asked.what in ("put", "part"))
        whole = whole or sent
        assert sent == whole, at  # nothing twice
        if ended:
            break
    assert 10 < at < 99 and whole > 20_000


def test_parts_of_an_earlier_state_are_sent_anew(store: ObjectStore, base: Path) -> None:
    url = f"{store.url}/c"

    def cut(key: str) -> None:
        if [asked[0] for asked in store.requests if asked.what == "part"].count("c.data") > 2:
            raise Cut

    store.failing = cut
    with pytest.raises(Cut):
        winkfs.push(base, url)
    store.failing = _nothing
    assert any(found for _, found in store.pending.values())
    change(base)
    winkfs.push(base, url)
    assert content(url) == NEW and not winkfs.verify(url).problems and not store.pending


def test_another_push_was_faster(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = pushed(store, base)
    other = next(iter(store.objects["c.data"]))

    def overtake(key: str) -> None:
        if key == "c.data" and store.requests[-1].what == "part":
            store.put("c.data", other[:-1] + b"!")

    store.failing = overtake
    with pytest.raises(StalePlan, match="another program"):
        winkfs.push(base, url)
    assert store.objects["c.data"][0] == other[:-1] + b"!"


def test_other_containers_are_refused(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = f"{store.url}/c"
    winkfs.push(base, url)
    with winkfs.create(tmp_path / "other") as c:
        c.put("x", b"1")
    with pytest.raises(FileExists, match="another container"):
        winkfs.push(tmp_path / "other", url)
    assert content(url) == OLD
    assert winkfs.push(tmp_path / "other", url, force=True).replaces
    assert content(url) == {"x": b"1"}
    store.put("d/c.data", b"what is this")
    with pytest.raises(FileExists, match="no container"):
        winkfs.push(base, f"{store.url}/d/c")
    store.put("e/c/_winkfs/00000000000000000000.json", b"{}")
    with pytest.raises(FileExists, match="data set"):
        winkfs.push(base, f"{store.url}/e/c")


def test_an_earlier_state_is_refused(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = f"{store.url}/c"
    winkfs.backup(base, tmp_path / "copy")
    change(base)
    winkfs.push(base, url)
    with pytest.raises(FileExists, match="a later state"):
        winkfs.push(tmp_path / "copy", url)
    with winkfs.open(tmp_path / "copy", "a") as c:
        c.put("elsewhere", b"e" * 5000)  # longer, but not what follows
    with pytest.raises(FileExists, match="has other files"):
        winkfs.push(tmp_path / "copy", url)
    assert content(url) == NEW
    winkfs.push(tmp_path / "copy", url, force=True)
    assert content(url) == OLD | {"elsewhere": b"e" * 5000}


def test_damage_is_not_sent(store: ObjectStore, base: Path) -> None:
    with Path(f"{base}.data").open("r+b") as file:
        file.seek(12_000)
        file.write(b"damage")
    with pytest.raises(Refusal, match="is damaged"):
        winkfs.push(base, f"{store.url}/c")
    assert not store.objects
    assert winkfs.push(base, f"{store.url}/c", force=True).problems


@pytest.mark.parametrize("mode", [{"classic": True}, {"ao": True}, {"compress": "zstd"}])
def test_all_variants_are_pushed_and_pulled(
    store: ObjectStore, tmp_path: Path, mode: dict[str, bool | str]
) -> None:
    if "compress" in mode:
        pytest.importorskip("zstandard")
    with winkfs.create(tmp_path / "v", **mode) as c:
        c.put_many(OLD.items())
    url = f"{store.url}/v"
    winkfs.push(tmp_path / "v", url)
    assert winkfs.push(tmp_path / "v", url).same
    with winkfs.open(url) as there:
        assert dict(there.items()) == OLD
    winkfs.pull(url, tmp_path / "p")
    with winkfs.open(tmp_path / "p") as pulled:
        assert dict(pulled.items()) == OLD
    assert not winkfs.verify(tmp_path / "p").problems


# --- pull ---


def test_a_container_is_pulled(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = f"{store.url}/c"
    winkfs.push(base, url)
    done = winkfs.pull(url, tmp_path / "new/p")
    assert done.fetched == done.size - 8192
    assert content(str(tmp_path / "new/p")) == OLD
    assert not winkfs.verify(tmp_path / "new/p").problems
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "p.data", "p.idx", "p.cat", "p.lock"
    }  # fmt: skip
    with winkfs.open(tmp_path / "new/p") as pulled:
        assert isinstance(pulled, winkfs.Container) and "PUSHED" not in pulled.superblock
    assert winkfs.pull(url, tmp_path / "new/p").same


def test_what_is_new_is_pulled(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = pushed(store, base)
    winkfs.pull(url, tmp_path / "p")
    winkfs.push(base, url)
    store.transport.recent.clear()
    with winkfs.open(tmp_path / "p") as reader:
        done = winkfs.pull(url, tmp_path / "p")
        assert done.replaces and 0 < done.fetched < 3000
        seen = dict(reader.items())  # it may notice the new state between names and contents
        assert seen.keys() in (OLD.keys(), NEW.keys())
        assert all(seen[name] in (OLD.get(name), NEW[name]) for name in seen)
    assert content(str(tmp_path / "p")) == NEW
    assert not winkfs.verify(tmp_path / "p").problems


def test_a_pull_that_was_killed_goes_on(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request is the last one in turn; BASE is there only when it is whole."""
    url, files = f"{store.url}/c", {f"{i:02}": bytes([i]) * 8000 for i in range(40)}
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(files.items())
    winkfs.push(tmp_path / "c", url)
    for name, value in (("HEAD_BYTES", 8192), ("AHEAD_BYTES", 20_000), ("AHEAD", 1)):
        monkeypatch.setattr(f"winkformats.disk.objects.{name}", value)
    monkeypatch.setattr("winkfs.archive.copying.COPY_BYTES", 20_000)
    for at in range(100):
        target, ended = tmp_path / f"p{at}", True
        store.failing = Fault(at, Cut(), later=True)
        with store.counted() as asked:
            try:
                winkfs.pull(url, target)
            except Cut:
                ended = False
                assert not Path(f"{target}.data").exists()
            store.failing = _nothing
            store.transport.recent.clear()
            done = winkfs.pull(url, target)
        assert content(str(target)) == files
        assert not list(tmp_path.glob("*.partial*"))
        assert sum(request.size for request in asked) < done.size + 2 * 20_000 + 4 * 8192
        if ended:
            break
    assert 10 < at < 99


def test_what_is_on_this_machine_is_kept(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    url = pushed(store, base)
    winkfs.pull(url, tmp_path / "p")
    with winkfs.open(tmp_path / "p", "a") as c:
        c.put("mine", b"m")
    with winkfs.create(tmp_path / "other") as c:
        c.put("x", b"1")
    (tmp_path / "folder").mkdir()
    for name in ("p", "other", "folder"):
        with pytest.raises(FileExists):
            winkfs.pull(url, tmp_path / name)
    assert content(str(tmp_path / "p")) == OLD | {"mine": b"m"}
    assert winkfs.pull(url, tmp_path / "p", force=True, dry_run=True).fetched > 20_000
    assert winkfs.pull(url, tmp_path / "p", force=True).replaces
    assert content(str(tmp_path / "p")) == OLD
    with winkfs.open(tmp_path / "other", "a"), pytest.raises(winkfs.Locked):
        winkfs.pull(url, tmp_path / "other", force=True)


def test_damage_there_is_reported(store: ObjectStore, base: Path, tmp_path: Path) -> None:
    winkfs.push(base, f"{store.url}/c")
    data, _ = store.objects["c.data"]
    store.put("c.data", data[:12_000] + b"damage" + data[12_006:])
    done = winkfs.pull(f"{store.url}/c", tmp_path / "p")
    assert len(done.problems) == 1
    store.put("c.data", data[:-1000])
    with pytest.raises(Refusal, match="cut short"):
        winkfs.pull(f"{store.url}/c", tmp_path / "q")


def test_one_line_for_what_cannot_be(store: ObjectStore, base: Path, run: Run) -> None:
    url = f"{store.url}/c"
    assert "no such container" in one_line(run("push", base.parent / "none", url))
    assert "winkfs backup" in one_line(run("push", base, base.parent / "x"))
    assert "names no container" in one_line(run("push", base, store.url))
    assert "s3://BUCKET/NAME does" in one_line(run("push", base, "s3://"))
    refused = "nothing can be written there" if find_spec("urllib3") else "winkfs[cloud]"
    assert refused in one_line(run("push", base, "https://127.0.0.1/c"))
    assert "no such" in one_line(run("pull", url, base.parent / "x"))
    assert "winkfs backup" in one_line(run("pull", base, base.parent / "x"))
    assert "can only be read" in one_line(run("pull", url, f"{store.url}/d"))


# --- sign ---


def fetched(store: ObjectStore, link: Link) -> bytes:
    """-> what the ranges of a link have."""
    data = store.objects["c.data"][0]
    found = [data[first : last + 1] for first, last in link.ranges]
    if not link.compressed:
        return b"".join(found)
    import zstandard

    words = None
    if link.dictionary is not None:
        first, last = link.dictionary
        words = zstandard.ZstdCompressionDict(data[first : last + 1])
    reader = zstandard.ZstdDecompressor(dict_data=words)
    return b"".join(map(reader.decompress, found))


@pytest.mark.parametrize("compress", [None, "zstd"])
def test_a_link_has_the_ranges_of_a_file(
    store: ObjectStore, tmp_path: Path, compress: str | None
) -> None:
    if compress:
        pytest.importorskip("zstandard")
    files = {f"page-{i}": b"the same words in each page, and a number: %d" % i * 9
             for i in range(200)}  # fmt: skip
    files |= {"large": os.urandom(3 << 20), "empty": b"", "words": b"word " * 200_000}
    with winkfs.create(tmp_path / "c", compress=compress) as c:
        c.put_many(files.items())
        c.append("page-0", b" and more")
        c.put("hole", b"")
        c.truncate("hole", 1 << 20)
    files["page-0"] += b" and more"
    winkfs.push(tmp_path / "c", f"{store.url}/c")
    if compress:
        with pytest.raises(NotAllowed, match="a part of its content is compressed"):
            winkfs.sign(f"{store.url}/c", "page-0")
        del files["page-0"]
    for name in files.keys() & {"page-0", "page-7", "large", "empty", "words"}:
        link = winkfs.sign(f"{store.url}/c", name, seconds=60)
        assert fetched(store, link) == files[name]
        assert link.size == len(files[name]) and "?seconds=60" in link.url
    with pytest.raises(NotAllowed, match="holes"):
        winkfs.sign(f"{store.url}/c", "hole")
    with pytest.raises(FileNotFoundError):
        winkfs.sign(f"{store.url}/c", "none")
    with pytest.raises(ValueError, match="604800"):
        winkfs.sign(f"{store.url}/c", "large", seconds=604_801)


def test_a_link_to_a_file_of_a_data_set(store: ObjectStore) -> None:
    url = store.trusted("set")
    for part in (OLD, {"d/03": NEW["d/03"]}):
        with winkfs.dataset.create(url) as files:
            files.put_many(part.items())
    for name, expected in (("d/03", NEW["d/03"]), ("d/04", OLD["d/04"])):
        link = winkfs.sign(url, name, seconds=60)
        key = link.url.removeprefix(f"{store.url}/").partition("?")[0]
        ((first, last),) = link.ranges
        assert store.objects[key][0][first : last + 1] == expected
        assert store.objects[key][1].etag == link.etag
    assert "/set.files/" in winkfs.sign(url, "d/03", copy=True).url
    assert not winkfs.verify(url).problems


def test_a_link_for_a_browser_is_to_a_copy(store: ObjectStore, base: Path) -> None:
    url = f"{store.url}/c"
    winkfs.push(base, url)
    link = winkfs.sign(url, "d/03", seconds=60, copy=True)
    (key,) = [key for key in store.objects if key.startswith("c.files/")]
    assert link.url == f"{store.url}/{key}?seconds=60" and key.endswith("/03") and link.copied
    assert store.objects[key][0] == OLD["d/03"] and link.etag == store.objects[key][1].etag
    with store.counted() as asked:
        assert winkfs.sign(url, "d/03", seconds=60, copy=True) == link
    assert not _writes(asked)
    winkfs.push(base, url, force=True)
    assert key in store.objects


def test_a_reader_of_no_state_reads_no_other(store: ObjectStore, base: Path) -> None:
    """A copy by hand of the data file alone finds the catalog of its own name."""
    url = f"{store.url}/c"
    winkfs.push(base, url)
    store.put("copy.data", store.objects["c.data"][0])
    with Store(f"{store.url}/copy", writable=False) as found:
        assert any("no valid catalog" in line for line in found.remarks)
    (cat,) = [data for key, (data, _) in store.objects.items() if key.endswith(".cat")]
    store.put("copy.cat", cat)
    assert content(f"{store.url}/copy") == OLD
