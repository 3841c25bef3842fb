"""Trials with servers that people use: those that ignore conditions are refused, Azurite is read
and passes.

    make test-stores        # python -m pytest tests/remote/store_trials.py

CONTRIBUTING.md has how to get the servers; one that is missing is skipped. All listen on 127.0.0.1.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from commands import PROGRAM, Run, one_line
from commands import run as run  # a fixture

import winkfs
import winkfs.dataset
from winkformats.disk import parts
from winkfs.remote import control, find
from winkfs.remote.check import proven
from winkfs.remote.uploads import AzureParts

urllib3 = pytest.importorskip("urllib3")
pytest.importorskip("obstore")
ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT / "build/stores/node_modules/.bin", Path(sys.executable).parent]
ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"of an Azurite of these trials, only").decode()
FILES = {f"d/{i // 100:03}/{i:05}": b"%d" % i * 30 for i in range(20_000)}


def program(name: str) -> str:
    """Return the path of a server, or skip the test."""
    path = os.pathsep.join([*map(str, PLACES), os.environ["PATH"]])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"needs {name}: see CONTRIBUTING.md")
    return found


@contextlib.contextmanager
def running(port: int, *command: str, **env: str) -> Iterator[None]:
    """Run a server until the end of the block, from the moment that it listens."""
    server = subprocess.Popen(
        command, env=os.environ | env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while True:
            assert server.poll() is None and time.monotonic() < until, command
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield
    finally:
        server.terminate()
        server.wait(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    return port


def forget() -> None:
    control.store_of.cache_clear()
    find.transport_of.cache_clear()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    forget()
    yield
    forget()


# --- servers that ignore conditions ---


@contextlib.contextmanager
def liar(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Run one -> its endpoint, and its key and secret, which are equal."""
    port = free_port()
    host = f"127.0.0.1:{port}"
    if name == "rclone":
        (folder / "bucket").mkdir()
        key = "testing1"
        command = [program("rclone"), "serve", "s3", "--addr", host, "--auth-key", f"{key},{key}"]
        command.append(str(folder))
    elif name == "s3rver":
        key = "S3RVER"
        command = [program("s3rver"), "-d", str(folder), "-a", "127.0.0.1", "-p", str(port),
                   "--configure-bucket", "bucket"]  # fmt: skip
    else:
        key, base = "testing1", f"sqlite3://{folder}/jfs.db"
        juicefs = program("juicefs")
        subprocess.run(
            [juicefs, "format", base, "--storage", "file", "--bucket", f"{folder}/", "bucket"],
            check=True, capture_output=True,
        )  # fmt: skip
        command = [juicefs, "gateway", base, host, "--no-usage-report"]
    with running(port, *command, MINIO_ROOT_USER=key, MINIO_ROOT_PASSWORD=key):
        time.sleep(1)  # they listen before they answer
        yield f"http://{host}", key


@pytest.mark.parametrize("name", ["rclone", "s3rver", "juicefs"])
def test_a_server_that_ignores_conditions_is_refused(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "served").mkdir()
    with liar(name, tmp_path / "served") as (endpoint, key):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
        line = one_line(run("remote", "check", "s3://bucket/set"))
        assert "no data set can be committed there: put if absent: ignored in silence" in line
        transport = find.transport_of("s3://bucket", os.getpid())
        assert not proven(transport, "set") and not [*transport.list("set/")]


# --- Azurite ---


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """-> the endpoint of an Azurite with the container `box`."""
    port, folder = free_port(), tmp_path_factory.mktemp("azurite")
    command = [program("azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port),
               "--location", str(folder), "--silent", "--disableTelemetry"]  # fmt: skip
    with running(port, *command, AZURITE_ACCOUNTS=f"{ACCOUNT}:{KEY}"):
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        version, date = "2021-08-06", formatdate(usegmt=True)
        text = (f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n"
                f"/{ACCOUNT}/{ACCOUNT}/box\nrestype:container")  # fmt: skip
        mac = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256)
        signature = base64.b64encode(mac.digest()).decode()
        made = urllib3.request("PUT", f"{endpoint}/box?restype=container", headers={
            "x-ms-date": date, "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        })  # fmt: skip
        assert made.status == 201, made.data
        yield endpoint


@pytest.fixture
def box(azurite: str, fresh: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the transport of the container."""
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    return find.transport_of("az://box", os.getpid())


def test_azurite_passes(box: Any, run: Run) -> None:
    record = json.loads(run("remote", "check", "az://box/set", "--json").out)
    assert [name for name, one in record["conditions"].items() if not one["kept"]] == []
    assert [key for key, _ in box.list("set/")] == ["set/_winkfs/"]
    assert proven(box, "set") and not proven(box, "other")
    assert "no such" in one_line(run("remote", "check", "az://none/set"))


@pytest.mark.parametrize("key", ["plain/c", "a folder/c", "Bücher/c", "50%/c", "a+b&c=d/c"])
def test_azurite_is_read_in_place(box: Any, run: Run, tmp_path: Path, key: str) -> None:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(FILES.items())
    for suffix in (".data", ".cat"):
        box.put_file(f"{key}{suffix}", str(tmp_path / f"c{suffix}"))
    url = f"az://box/{key}"
    with winkfs.open(url) as there:
        assert there.read("d/000/00007") == FILES["d/000/00007"]
        assert dict(there.items()) == FILES
    if key == "plain/c":
        assert run("ls", url).out.decode().split() == sorted(FILES)
        assert run("cat", url, "d/001/00107").out == FILES["d/001/00107"]
        for command in ("info", "verify"):
            assert run(command, url).status == 0
        assert "no such container" in one_line(run("ls", "az://box/nothing"))
        assert "no such bucket" in one_line(run("ls", "az://none/nothing"))
        before = box.head(f"{key}.data")
        box.put_file(f"{key}.data", str(tmp_path / "c.cat"))
        with pytest.raises(winkfs.StalePlan):
            box.get(f"{key}.data", 0, 10, before)


def test_a_data_set_in_azurite_is_read(box: Any, tmp_path: Path) -> None:
    with winkfs.dataset.create(tmp_path / "set") as made:
        made.put_many(FILES.items())
    for path in tmp_path.glob("set/**/*"):
        if path.is_file():
            box.put_file(f"read/{path.relative_to(tmp_path)}", str(path))
    with winkfs.open("az://box/read/set") as there:
        assert dict(there.items()) == FILES


def _reads(key: str, answer: Any) -> None:
    answer.put(find.transport_of("az://box", os.getpid()).get(key, 0, 5)[1])


def test_a_forked_child_reads_azurite(box: Any) -> None:
    box.put("a folder/one", b"12345")
    assert box.get("a folder/one", 0, 5)[1] == b"12345"
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_reads, args=("a folder/one", answer))
    child.start()
    assert answer.get(timeout=20) == b"12345"
    child.join(20)


@pytest.mark.parametrize("key", ["pushed/c", "50% Bücher/c"])
def test_a_container_is_pushed_to_azurite(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    url, sent, put_part = f"az://box/{key}", list[int](), AzureParts.put_part

    def put(self: AzureParts, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        sent.append(number)
        if len(sent) == 3:
            raise KeyboardInterrupt
        return put_part(self, key, upload, number, data, md5)

    monkeypatch.setattr(AzureParts, "put_part", put)
    with winkfs.create(tmp_path / "c") as c:
        c.put_many((f"d/{i:03}", os.urandom(100_000)) for i in range(48))
    with pytest.raises(KeyboardInterrupt):
        winkfs.push(tmp_path / "c", url)
    with pytest.raises(FileNotFoundError):
        winkfs.open(url)
    winkfs.push(tmp_path / "c", url)
    assert sent == [1, 2, 3, 3, 4, 5]  # each part once
    with winkfs.open(tmp_path / "c", "a") as c:
        c.put("new", b"new")
        expected = dict(c.items())
    del sent[:]
    assert winkfs.push(tmp_path / "c", url).replaces and sent == [1, 5]
    assert winkfs.push(tmp_path / "c", url).same
    with winkfs.open(url) as there:
        assert dict(there.items()) == expected
    assert len([*box.list(f"{key.rpartition('/')[0]}/")]) == 2
    winkfs.pull(url, tmp_path / "pulled")
    assert not winkfs.verify(tmp_path / "pulled").problems
    link = winkfs.sign(url, "new", seconds=60)
    first, last = link.ranges[0]
    headers = {"Range": f"bytes={first}-{last}", "If-Match": link.etag}
    assert urllib3.request("GET", link.url, headers=headers).data == b"new"


@pytest.mark.parametrize("seconds", [0.6, 0.9, 1.2, 1.6, 2.0, 2.5])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_stopped_leaves_nothing(box: Any, seconds: float, number: int) -> None:
    check = subprocess.Popen([*PROGRAM, "remote", "check", "az://box/stopped"], cwd=ROOT)
    time.sleep(seconds)
    check.send_signal(number)
    assert check.wait(15) in (0, 128 + number)
    assert {key for key, _ in box.list("stopped/")} <= {"stopped/_winkfs/"}


def test_programs_commit_to_azurite_at_the_same_time(box: Any, run: Run, tmp_path: Path) -> None:
    assert "remote check" in one_line(run("dataset", "create", "az://box/written"))
    assert run("remote", "check", "az://box/written").status == 0
    assert run("dataset", "create", "az://box/written").status == 0
    (tmp_path / "file").write_bytes(b"content")
    names = [f"{i}" for i in range(12)]
    for part in (names[:6], names[6:]):
        writers = [
            subprocess.Popen(
                [*PROGRAM, "put", "az://box/written", name, tmp_path / "file"], cwd=ROOT
            )
            for name in part
        ]
        assert [writer.wait(60) for writer in writers] == [0] * 6
    with winkfs.open("az://box/written") as there:
        assert dict(there.items()) == dict.fromkeys(names, b"content")
    assert run("verify", "az://box/written").status == 0
    assert len(run("dataset", "history", "az://box/written").out.splitlines()) >= 13
