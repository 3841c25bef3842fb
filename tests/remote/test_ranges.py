"""Requests over HTTP: an answer counts only if it is what was asked for; hostile servers get one
line."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import data_sets
import pytest
from simulated.objectstore import ObjectStore, web_server

import winkfs

pytest.importorskip("urllib3")
from winkfs.remote import find, ranges

pytestmark = [pytest.mark.in_memory, pytest.mark.slow]
Behave = Callable[[Any, str], bool]
CONTENT = {f"d/{i:04}": b"%d" % i * 50 for i in range(2000)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(CONTENT.items())
    with ObjectStore() as store:
        store.put_container(tmp_path / "c", "a folder/c")
        yield store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    find.transport_of.cache_clear()
    monkeypatch.setattr(ranges, "PAUSE", 0.001)
    monkeypatch.setattr(ranges.RangeTransport.__init__, "__defaults__", (2.0,))


def reads_all(url: str) -> None:
    with winkfs.open(f"{url}/a%20folder/c") as there:
        assert dict(there.items()) == CONTENT


def test_a_container_of_a_web_server(store: ObjectStore) -> None:
    with web_server(store) as url:
        reads_all(url)


@pytest.mark.parametrize("name", ["my corpus", "my%20corpus", "Bücher", "B%C3%BCcher", "a+b"])
def test_a_name_of_a_url_may_be_encoded(store: ObjectStore, name: str) -> None:
    for suffix in (".data", ".cat"):
        key = f"{unquote(name)}{suffix}"
        store.put(key, store.objects[f"a folder/c{suffix}"][0])
    with web_server(store) as url, winkfs.open(f"{url}/{name}") as there:
        assert dict(there.items()) == CONTENT


def test_a_proxy_of_the_environment_is_used(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(store) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        reads_all("http://no-such-host.invalid")
        monkeypatch.setenv("no_proxy", "no-such-host.invalid")
        find.transport_of.cache_clear()
        with pytest.raises(OSError):
            reads_all("http://no-such-host.invalid")


def test_a_small_object_may_come_whole(store: ObjectStore) -> None:
    """Some servers answer with 200 where all bytes are asked for."""

    def whole(handler: Any, key: str) -> bool:
        handler.answer(200, b"small", {"ETag": '"1"'})
        return True

    with web_server(store, whole) as url:
        transport = ranges.WebTransport(url)
        for start, length in ((0, 5), (0, 100), (-1, 100)):
            at, data, known = transport.get("key", start, length)
            assert (at, data, known.size) == (0, b"small", 5)
        with pytest.raises(winkfs.Refusal, match="ignores Range"):
            transport.get("key", 1, 3)
        with pytest.raises(winkfs.StalePlan):
            transport.get("key", 0, 100, known._replace(etag='"2"'))


# --- what passes is asked for again ---


def first(times: int, act: Callable[[Any], object]) -> Behave:
    """Return a behaviour: of each key the first answers are this one."""
    seen = dict[str, int]()

    def behave(handler: Any, key: str) -> bool:
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > times:
            return False
        act(handler)
        return True

    return behave


def cut(handler: Any) -> None:
    """Answer with a body that ends too early."""
    handler.send_response(206)
    handler.send_header("Content-Range", "bytes 0-16383/200000")
    handler.send_header("Content-Length", "16384")
    handler.end_headers()
    handler.wfile.write(bytes(500))
    handler.close_connection = True


def hang_up(handler: Any) -> None:
    handler.close_connection = True


@pytest.mark.few(4)
@pytest.mark.parametrize("act", [
    *(lambda handler, code=code: handler.answer(code, b"") for code in sorted(ranges.LATER)),
    lambda handler: handler.answer(503, b"busy", {"Retry-After": "0"}),
    cut,
    hang_up,
])  # fmt: skip
def test_what_may_pass_is_asked_for_again(store: ObjectStore, act: Callable[[Any], object]) -> None:
    with web_server(store, first(3, act)) as url:
        reads_all(url)


def test_it_ends_after_ten_tries(store: ObjectStore) -> None:
    with (
        web_server(store, first(1 << 30, lambda handler: handler.answer(503, b""))) as url,
        pytest.raises(winkfs.Refusal, match=r"/a%20folder/c.data: HTTP 503, 10 times in \d s$"),
    ):
        reads_all(url)


@pytest.mark.parametrize("drip", [False, True])
def test_a_silent_server_is_given_up(store: ObjectStore, drip: bool) -> None:
    def behave(handler: Any, key: str) -> bool:
        if drip:
            handler.send_response(206)
            handler.send_header("Content-Range", "bytes 0-16383/200000")
            handler.send_header("Content-Length", "16384")
            handler.end_headers()
        for _ in range(60):
            time.sleep(0.1)
            if drip:
                handler.wfile.write(b"x")
        return True

    began = time.monotonic()
    with web_server(store, behave) as url, pytest.raises(winkfs.Refusal, match="time"):
        reads_all(url)
    assert time.monotonic() - began < 10


def test_long_trying_is_reported_once(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ranges, "REPORTED", 0.0)
    with web_server(store, first(4, lambda handler: handler.answer(503, b""))) as url:
        reads_all(url)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all("HTTP 503: still trying" in line for line in lines)


def test_forked_children_use_what_is_open(store: ObjectStore) -> None:
    """Each has connections of its own: those of the parent would mix up their answers."""
    data_sets.put(store.trusted("set"), CONTENT)

    def asks(there: winkfs.Reader, part: int) -> None:
        name = f"d/{part:04}"
        os._exit(int(any(there.refresh() or there.read(name) != CONTENT[name] for _ in range(50))))

    with web_server(store) as url, winkfs.open(f"{url}/set") as there:
        assert there.read("d/0000") == CONTENT["d/0000"]
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=asks, args=(there, part)) for part in range(5)]
        for child in children:
            child.start()
        assert not any(there.refresh() for _ in range(50))
        for child in children:
            child.join(20)
            assert child.exitcode == 0


# --- what is wrong is refused ---


def partial(
    content_range: str, body: bytes = bytes(16384), **headers: str
) -> Callable[[Any], object]:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.answer(206, body, {"Content-Range": content_range, **more})


WRONG = {
    "the whole file": (lambda h: h.answer(200, bytes(100_000)), "ignores Range"),
    "other bytes": (partial("bytes 5-16388/200000"), "asked for 16384 bytes from 0"),
    "too few bytes": (partial("bytes 0-9/200000", bytes(10)), "asked for 16384 bytes"),
    "more bytes": (partial("bytes 0-99999/200000", bytes(100_000)), "asked for 16384 bytes"),
    "no range": (lambda h: h.answer(206, bytes(16384)), "without a Content-Range"),
    "no number": (partial("bytes 0-x/*"), "without a Content-Range"),
    "a bomb": (partial("bytes 0-16383/200000", Content_Encoding="gzip"), "is encoded: gzip"),
    "no such object": (lambda h: h.answer(404, b""), "no such container"),
    "no permission": (lambda h: h.answer(403, b"<Error>secret</Error>"), "HTTP 403: no permission"),
    "a teapot": (lambda h: h.answer(418, b""), "HTTP 418"),
    "a redirect to a file": (
        lambda h: h.answer(302, b"", {"Location": "file:///etc/passwd"}), "redirects to"),
    "a circle": (lambda h: h.answer(302, b"", {"Location": h.path}), "too many redirects"),
    "no HTTP": (lambda h: h.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n"), "times in"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_answer_is_one_line(store: ObjectStore, what: str) -> None:
    act, line = WRONG[what]
    with web_server(store, first(1 << 30, act)) as url, pytest.raises(OSError) as raised:
        reads_all(url)
    text = str(raised.value)
    assert re.search(line, text) and "\n" not in text and "secret" not in text


def test_an_endless_body_is_not_read(store: ObjectStore) -> None:
    sent = 0

    def endless(handler: Any) -> None:
        nonlocal sent
        handler.send_response(206)
        handler.send_header("Content-Range", "bytes 0-16383/200000")
        handler.end_headers()
        for _ in range(10_000):
            handler.wfile.write(bytes(1 << 16))
            sent += 1 << 16

    with web_server(store, first(1 << 30, endless)) as url, pytest.raises(winkfs.WinkError):
        reads_all(url)
    assert sent < 100 << 20


def test_a_redirect_of_a_web_server_is_followed(store: ObjectStore) -> None:
    with web_server(store) as there:

        def away(handler: Any, key: str) -> bool:
            handler.answer(302, b"", {"Location": f"{there}{handler.path}"})
            return True

        with web_server(store, away) as url:
            reads_all(url)


def test_signed_requests_follow_no_redirect(store: ObjectStore) -> None:
    """They carry a signature: it must not go elsewhere."""

    class Signed(ranges.SignedTransport):
        def address(self, key: str) -> str:
            return f"{self.url}/{key}?X-Amz-Signature=secret"

    away = first(
        1 << 30, lambda handler: handler.answer(302, b"", {"Location": "http://127.0.0.1:1/"})
    )
    with web_server(store, away) as url, pytest.raises(winkfs.Refusal) as raised:
        Signed(url).get("a folder/c.data", 0, 100)
    assert "redirects to 127.0.0.1:1" in str(raised.value) and "secret" not in str(raised.value)


def test_a_replaced_object_is_stale(store: ObjectStore) -> None:
    with web_server(store) as url, winkfs.open(f"{url}/a%20folder/c") as there:
        assert there.read("d/0001") == CONTENT["d/0001"]
        store.put("a folder/c.data", bytes(store.objects["a folder/c.data"][1].size))
        with pytest.raises(winkfs.StalePlan, match="replaced"):
            there.read("d/1999")


@pytest.mark.parametrize(("url", "line"), [
    ("http://127.0.0.1:1/c", "refused"),
    ("http://no-such-host.invalid/c", "resolve|times in"),
    ("https:///c", "needs a host"),
    ("s3:///c", "needs a bucket"),
    ("http://user:secret@127.0.0.1/c", "password"),
    ("http://127.0.0.1:1/c?X-Amz-Signature=secret", r"no \?"),
])  # fmt: skip
def test_a_url_that_cannot_be_read_is_one_line(url: str, line: str) -> None:
    with pytest.raises(OSError) as raised:
        winkfs.open(url)
    text = str(raised.value)
    assert re.search(line, text) and "secret" not in text and "\n" not in text


def test_a_server_without_tls_is_one_line(store: ObjectStore) -> None:
    with web_server(store) as url, pytest.raises(OSError) as raised:
        winkfs.open(url.replace("http:", "https:") + "/c")
    assert "\n" not in str(raised.value)
