"""Mounts of containers on object storage."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mounting import WINKFS, mounted, not_by_libfuse, serving
from simulated.objectstore import ObjectStore, web_server

import winkfs

pytest.importorskip("urllib3")
pytestmark = [pytest.mark.mount, pytest.mark.in_memory]
FILES = {f"d{i % 5}/{i:04}": b"%d" % i * (i % 900) for i in range(3000)}


class Server:
    """A web server that can fall silent, or refuse."""

    def __init__(self) -> None:
        self.url, self.silent, self.status, self.asked = "", False, 0, 0

    def behave(self, handler: Any, key: str) -> bool:
        self.asked += 1
        for _ in range(600):
            if self.silent:
                time.sleep(0.05)
        if self.status:
            handler.answer(self.status, b"")
        return bool(self.status)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with winkfs.create(tmp_path / "c") as c:
        c.put_many(FILES.items())
        c.put("large", os.urandom(5 << 20))
    server = Server()
    with ObjectStore() as store:
        store.put_container(tmp_path / "c", "c")
        with web_server(store, server.behave) as url:
            server.url = f"{url}/c"
            yield server


@pytest.fixture
def there(server: Server) -> Iterator[Path]:
    with mounted(server.url, "--ro") as there:
        yield there
        server.silent, server.status = False, 0


def test_files_are_those_of_the_container(there: Path, tmp_path: Path) -> None:
    assert sorted(os.listdir(there)) == ["d0", "d1", "d2", "d3", "d4", "large"]
    found = {str(path.relative_to(there)): path.read_bytes() for path in there.glob("d*/*")}
    assert found == FILES
    with winkfs.open(tmp_path / "c") as here:
        assert (there / "large").read_bytes() == here.read("large")
    with (there / "large").open("rb") as file:
        file.seek(3 << 20)
        assert file.read(10) == (there / "large").read_bytes()[3 << 20 :][:10]


def test_a_second_mount_reads_from_the_cache(server: Server) -> None:
    wanted = sorted(FILES)[::40]
    for mount in range(2):
        with mounted(server.url, "--ro") as there:
            server.asked = 0
            assert [(there / name).read_bytes() for name in wanted] == [FILES[n] for n in wanted]
            assert len((there / "large").read_bytes()) == 5 << 20
            assert server.asked > 2 if mount == 0 else server.asked == 0


def test_nothing_can_be_written(there: Path) -> None:
    with pytest.raises(OSError) as raised:
        (there / "new").write_bytes(b"")
    assert raised.value.errno == errno.EROFS


def test_what_cannot_be_read_is_an_error_and_passes(there: Path, server: Server) -> None:
    assert (there / "d1/0001").read_bytes() == FILES["d1/0001"]
    server.status = 403
    with pytest.raises(OSError) as raised:
        (there / "large").read_bytes()
    assert raised.value.errno in (errno.EIO, errno.EACCES)
    server.status = 0
    assert len((there / "large").read_bytes()) == 5 << 20


@not_by_libfuse("keeps a killed reader until its answer")
def test_a_killed_reader_of_a_silent_server_is_gone(there: Path, server: Server) -> None:
    assert (there / "d1/0001").read_bytes() == FILES["d1/0001"]
    server.silent = True
    reader = subprocess.Popen(
        [sys.executable, "-c", f"open({str(there / 'large')!r}, 'rb').read()"]
    )
    time.sleep(1)
    assert reader.poll() is None
    reader.kill()
    began = time.monotonic()
    reader.wait(10)
    assert time.monotonic() - began < 1
    server.silent = False


# --- a store that does not answer ---

SECONDS = 1


def read(path: Path) -> tuple[float, int]:
    """Read a file -> how long it took, and the errno."""
    began, number = time.monotonic(), 0
    try:
        with path.open("rb", 0) as file:
            os.pread(file.fileno(), 1000, 0)
    except OSError as error:
        number = error.errno or -1
    return time.monotonic() - began, number


@not_by_libfuse("answers one request after the other")
def test_each_request_of_a_silent_server_ends_in_time(server: Server, tmp_path: Path) -> None:
    """However many there are; then the mount goes on."""
    directory = tmp_path / "mnt"
    directory.mkdir()
    names = [*list(FILES)[900:908], "large"]
    command = [*WINKFS, "--no-cache", "mount", "-f", "-o", f"ro,read_timeout={SECONDS}",
               server.url, str(directory)]  # fmt: skip
    with serving(command, directory) as process:
        assert (directory / "d1/0001").read_bytes() == FILES["d1/0001"]
        server.silent = True
        with ThreadPoolExecutor(len(names)) as pool:
            found = list(pool.map(lambda name: read(directory / name), names))
        server.silent = False
        assert {number for _, number in found} == {errno.EIO}, found
        # three rounds of waiting threads; one after the other: len(names) * SECONDS
        assert max(seconds for seconds, _ in found) < SECONDS + 4, found
        for name in names[:-1]:
            assert (directory / name).read_bytes() == FILES[name]
        server.status = 403
        assert read(directory / "d2/2997")[1] == errno.EIO
        server.status = 0
        os.kill(process.pid, signal.SIGTERM)
        lines = process.communicate(timeout=20)[1].splitlines()
        process.stderr = None
    silent = [line for line in lines if not re.search(r"\b403\b", line)]  # a time has digits, too
    assert len(names) <= len(silent) and all(server.url in line for line in lines), lines
    assert len(lines) - len(silent) == 1 and "HTTP 403: no permission" in "".join(lines)
