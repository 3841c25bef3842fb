"""`winkfs remote check`: stores that keep what commits need pass, and those that lie do not."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from commands import Run, one_line
from commands import run as run  # a fixture
from simulated.objectstore import ObjectStore, SimulatedTransport

import winkfs
from winkformats.disk.objects import ObjectInfo
from winkfs.errors import FileExists, NotAllowed, Refusal
from winkfs.remote.check import check, proven

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
RECORD = "set/_winkfs/store.json"


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store


def checked(store: ObjectStore) -> Any:
    return check(f"{store.url}/set")


def test_a_good_store_passes(store: ObjectStore, run: Run) -> None:
    found = checked(store)
    assert found.passed and not any(one.fault for one in found.findings)
    assert len(found.findings) == 11 and found.requests <= len(store.requests)
    assert found.latency > 0 and found.upload > 0 and found.download > 0
    assert found.clock < -1e6  # that of the store stands still
    assert [*store.objects] == [RECORD]  # all else was removed
    record = json.loads(store.objects[RECORD][0])
    assert record["passed"] and record["bucket"] == store.url and record["prefix"] == "set"
    assert record["date"].endswith("Z") and record["version"] == winkfs.__version__
    done = run("remote", "check", f"{store.url}/set")
    assert done.status == 0 and done.out.endswith(b"/set: data sets can be committed there\n")
    assert b"put if absent:" in done.out and b"yes" in done.out and b"MB/s" in done.out
    assert json.loads(run("remote", "check", f"{store.url}/set", "--json").out)["passed"]


def test_the_record_counts_for_its_place_alone(store: ObjectStore) -> None:
    assert not proven(store.transport, "set")
    checked(store)
    assert proven(store.transport, "set") and proven(store.transport, "set/")
    data = store.objects[RECORD][0]
    store.put("other/_winkfs/store.json", data)
    assert not proven(store.transport, "other")
    with ObjectStore() as elsewhere:
        elsewhere.put(RECORD, data)
        assert not proven(elsewhere.transport, "set")
    for wrong in (
        data[:-9],
        b"[]",
        b"{}",
        b"\xff",
        data.replace(b'"passed": true', b'"passed": 1.5'),
    ):
        store.put(RECORD, wrong)
        assert not proven(store.transport, "set")
    check(store.url)
    assert proven(store.transport, "") and "_winkfs/store.json" in store.objects


# --- stores that lie ---


class Ignores(ObjectStore):
    """Writes whatever is there, as four servers do that people use."""

    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        return super().write(key, data, absent=False, etag=etag)


class Pretends(ObjectStore):
    """Answers with success where it has written nothing."""

    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        try:
            return super().write(key, data, absent=absent, etag=etag)
        except FileExistsError:
            return self.objects[key][1]


class RefusesAndWrites(ObjectStore):
    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        there = key in self.objects
        made = super().write(key, data, absent=False, etag=etag)
        if absent and there:
            raise FileExists("is there already", key)
        return made


class NotAtOnce(ObjectStore):
    """Looks first, and writes then: right for one writer."""

    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        if absent and key in self.objects:
            raise FileExists("is there already", key)
        time.sleep(0.0005)
        return super().write(key, data, absent=False, etag=etag)


class Refuses(ObjectStore):
    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        if absent:
            raise FileExists("is there already", key)
        return super().write(key, data, absent=absent, etag=etag)


class KnowsNoCondition(ObjectStore):
    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        if absent:
            raise Refusal("HTTP 501: NotImplemented", key)
        return super().write(key, data, absent=absent, etag=etag)


class Remembers(ObjectStore):
    """A cache before it keeps the first answer for each key: also that there is none."""

    def __init__(self, *, missing: bool) -> None:
        super().__init__()
        self.answers: dict[str, tuple[bytes, ObjectInfo] | None] = {}
        self.missing = missing

    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        if self.missing or key in self.objects:
            self.answers.setdefault(key, self.objects.get(key))
        now = self.objects.pop(key, None)
        if (kept := self.answers.get(key, now)) is not None:
            self.objects[key] = kept
        try:
            return super().get(key, start, length, etag)
        finally:
            if now is not None:
                self.objects[key] = now


class ReadsOn(ObjectStore):
    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        return super().get(key, start, length, None)


class WrongRange(ObjectStore):
    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        return super().get(key, start - (start >= 16), length, etag)


class WrongEnd(ObjectStore):
    """As s3rver: the last bytes but one."""

    def get(
        self, key: str, start: int, length: int, etag: str | None
    ) -> tuple[int, bytes, ObjectInfo]:
        at, data, info = super().get(key, start, length + (start < 0), etag)
        return at, data[:length], info


class NoEtags(ObjectStore):
    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data, ObjectInfo(len(data))


class Cuts(ObjectStore):
    def put(self, key: str, data: bytes) -> None:
        super().put(key, data[: 16 << 20])


class ReplacesChanged(ObjectStore):
    def write(self, key: str, data: bytes, *, absent: bool, etag: str | None) -> ObjectInfo:
        return super().write(key, data, absent=absent, etag=None)


class Keeps(ObjectStore):
    def remove(self, keys: Sequence[str]) -> None:
        """Remove nothing, and answer with success."""


class Listing(SimulatedTransport):
    def list(self, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
        yield from [*super().list(prefix)][:0:-1]


def listing() -> ObjectStore:
    store = ObjectStore()
    store.transport = Listing(store)
    return store


LIARS: list[tuple[Callable[[], ObjectStore], str, str]] = [
    (Ignores, "put if absent", "ignored in silence: an object that was there was replaced"),
    (Pretends, "put if absent", "success was answered, and nothing was written"),
    (RefusesAndWrites, "put if absent", "refused, but the object was replaced"),
    (Refuses, "put if absent", "refused, although there is no such object"),
    (KnowsNoCondition, "put if absent", "HTTP 501"),
    (NotAtOnce, "put if absent at once", "objects had several winners"),
    (lambda: Remembers(missing=True), "read before and after a put", "do"),
    (lambda: Remembers(missing=False), "read before and after a put", "was old after"),
    (ReadsOn, "reads of a replaced object", "that was replaced was read on"),
    (NoEtags, "reads of a replaced object", "no ETag"),
    (WrongRange, "ranges", "the answer has others"),
    (WrongEnd, "last bytes", "the answer has others"),
    (Cuts, "put in parts", "is not what was put"),
]
HARMLESS: list[tuple[Callable[[], ObjectStore], list[str]]] = [
    (ReplacesChanged, ["put if unchanged"]),
    (Keeps, ["delete"]),
    (listing, ["listing after puts", "listing in order"]),
]


@pytest.mark.few(6)
@pytest.mark.parametrize("liar", range(len(LIARS)))
def test_a_store_that_lies_is_refused(liar: int, run: Run) -> None:
    make, name, line = LIARS[liar]
    with make() as store:
        store.put(RECORD, b"{}")  # of a day when it was good
        refusal = one_line(run("remote", "check", f"{store.url}/set"))
        assert f"no data set can be committed there: {name}: " in refusal, refusal
        assert line in refusal
        assert not proven(store.transport, "set")
        assert [*store.objects] == [RECORD]
        assert (store.objects[RECORD][0] == b"{}") == (make is KnowsNoCondition)


@pytest.mark.few(2)
@pytest.mark.parametrize("case", range(len(HARMLESS)))
def test_what_commits_do_not_need_is_reported(case: int, run: Run) -> None:
    make, names = HARMLESS[case]
    with make() as store:
        found = checked(store)
        assert found.passed and [one.name for one in found.findings if one.fault] == names
        done = run("remote", "check", f"{store.url}/set", "--json")
        record = json.loads(done.out)
        assert done.status == 0 and record["passed"] and record["problems"] == []
        wrong = [name for name, one in record["conditions"].items() if not one["kept"]]
        assert wrong == [name.replace(" ", "_") for name in names]


# --- errors and interruptions ---


@pytest.mark.parametrize("at", [0, 3, 250, 520])
def test_ctrl_c_leaves_nothing(store: ObjectStore, at: int) -> None:
    def interrupt(key: str) -> None:
        if len(store.requests) >= at:
            store.failing = lambda key: None  # once
            raise KeyboardInterrupt

    store.failing = interrupt
    with pytest.raises(KeyboardInterrupt):
        checked(store)
    assert [*store.objects] == []


@pytest.mark.parametrize("part, problem", [
    ("/large", "put in parts: HTTP 503"),
    ("/raced/", "put if absent at once: only 0 of 50 objects had a winner: check it again"),
])  # fmt: skip
def test_a_failing_request_is_no_verdict(store: ObjectStore, part: str, problem: str) -> None:
    checked(store)

    def fail(key: str) -> None:
        if part in key:
            raise Refusal("HTTP 503", key)

    store.failing = fail
    found = checked(store)
    assert found.problems == [problem] and not found.passed
    assert proven(store.transport, "set")


def test_a_store_that_is_gone_ends_the_check(store: ObjectStore, run: Run) -> None:
    checked(store)

    def fail(key: str) -> None:
        if len(store.requests) > 800:
            raise Refusal("connection refused", key)

    store.failing = fail
    line = one_line(run("remote", "check", f"{store.url}/set"))
    assert line.endswith("/plain: connection refused\n")
    store.failing = lambda key: None
    assert proven(store.transport, "set")


def test_no_permission_is_one_line(store: ObjectStore, run: Run) -> None:
    def refuse(key: str) -> None:
        raise NotAllowed("HTTP 403", key, number=errno.EACCES)

    store.failing = refuse
    assert "HTTP 403" in one_line(run("remote", "check", f"{store.url}/set"))


def test_no_permission_to_list_is_reported(store: ObjectStore) -> None:
    def refuse(key: str) -> None:
        if key.endswith("/listed/"):
            raise NotAllowed("HTTP 403", key, number=errno.EACCES)

    store.failing = refuse
    found = checked(store)
    assert found.passed
    wrong = {one.name: one.fault for one in found.findings if one.fault}
    assert wrong == dict.fromkeys(["listing after puts", "listing in order"], "no permission")


def test_objects_that_cannot_be_removed_are_named(store: ObjectStore) -> None:
    def keep(key: str) -> None:
        if store.requests[-1].what == "delete":
            raise NotAllowed("no permission", key, number=errno.EACCES)

    store.lost = keep
    found = checked(store)
    assert found.passed
    assert [one.name for one in found.findings if one.fault] == ["delete", "removal"]
    assert "remain" in found.findings[-1].fault


def test_what_cannot_be_checked_is_refused(run: Run) -> None:
    assert "is on this machine" in one_line(run("remote", "check", "folder"))
    assert "can only be read" in one_line(run("remote", "check", "https://example.org/set"))
    one_line(run("remote", "check"), 2)
