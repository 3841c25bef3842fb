"""The protocol of S3, as moto speaks it: commands, processes, credentials."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from buckets import make_atomic
from commands import Run, one_line
from commands import run as run  # a fixture
from marks import only_with
from simulated.objectstore import ObjectStore

import winkfs
import winkfs.dataset

pytestmark = pytest.mark.slow
pytest.importorskip("obstore")
only_with("moto")
only_with("boto3")
from winkformats.disk import parts  # noqa: E402
from winkfs.remote import check, control, find  # noqa: E402
from winkfs.remote.ranges import SignedTransport  # noqa: E402
from winkfs.remote.uploads import S3Parts  # noqa: E402

FILES = {f"dir/{i:04}": b"%d" % i * 30 for i in range(500)}


@pytest.fixture(autouse=True)
def fresh(s3: str) -> Iterator[None]:
    """Settings of the environment are read anew before and after each test."""
    for forget in (control.store_of.cache_clear, find.transport_of.cache_clear):
        forget()
    yield
    for forget in (control.store_of.cache_clear, find.transport_of.cache_clear):
        forget()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """-> the URL of a container in a bucket."""
    import boto3
    from moto import server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    base = tmp_path_factory.mktemp("s3") / "c"
    with winkfs.create(base) as c:
        c.put_many(FILES.items())
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        make_atomic(patch)
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        for suffix in (".data", ".cat"):
            key, public = f"a folder/c{suffix}", {"ACL": "public-read"}
            client.upload_file(f"{base}{suffix}", "bucket", key, ExtraArgs=public)
        with winkfs.dataset.create(base.parent / "set") as made:
            made.put_many(FILES.items())
        for path in base.parent.glob("set/**/*"):
            if path.is_file():
                client.upload_file(str(path), "bucket", str(path.relative_to(base.parent)))
        yield "s3://bucket/a folder/c"
    running.stop()


def test_python_reads_it(s3: str) -> None:
    with winkfs.open(s3) as there:
        assert dict(there.items()) == FILES


def test_commands_read_it(s3: str, run: Run, tmp_path: Path) -> None:
    assert run("ls", s3).out.decode().split() == sorted(FILES)
    assert run("cat", s3, "dir/0007").out == b"7" * 30
    assert b"files" in run("info", s3).out
    assert b"size" in run("stat", s3, "dir/0007").out
    assert run("verify", s3).status == 0
    assert run("unpack", s3, tmp_path / "out").status == 0
    assert (tmp_path / "out/dir/0100").read_bytes() == FILES["dir/0100"]


def test_the_endpoint_is_an_option(s3: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["AWS_ENDPOINT_URL"]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert run("--endpoint-url", url, "cat", s3, "dir/0007").out == b"7" * 30
    assert "begins with http" in one_line(run("--endpoint-url", "host", "ls", s3), 2)


def test_commands_read_a_data_set(s3: str, run: Run, tmp_path: Path) -> None:
    url = "s3://bucket/set"
    assert run("ls", url).out.decode().split() == sorted(FILES)
    assert run("cat", url, "dir/0007").out == b"7" * 30
    assert run("verify", url).status == 0
    assert run("dataset", "history", url).status == 0
    assert run("backup", url, tmp_path / "copy").status == 0
    with winkfs.open(tmp_path / "copy") as copied:
        assert dict(copied.items()) == FILES
    assert "winkfs remote check" in one_line(run("put", url, "new", __file__))
    assert "winkfs push" in one_line(run("--single-writer", "put", url, "new", __file__))


def test_public_objects_are_read_without_a_signature(
    s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with winkfs.open(s3) as there:
        assert dict(there.items()) == FILES
        context = multiprocessing.get_context("fork")
        answer = context.Queue()
        child = context.Process(target=_reads, args=(s3, answer))
        child.start()
        assert answer.get(timeout=20) == FILES["dir/0033"]
        child.join(20)


def _reads(url: str, answer: Any) -> None:
    with winkfs.open(url) as there:
        answer.put(there.read("dir/0033"))


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_read_it_after_the_parent_did(s3: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    with winkfs.open(s3) as there:
        there.read("dir/0001")
        answer = context.Queue()
        child = context.Process(target=_reads, args=(s3, answer))
        child.start()
        assert answer.get(timeout=20) == FILES["dir/0033"]
        child.join(20)
        assert child.exitcode == 0


def test_a_bucket_or_container_that_is_not_there(s3: str, run: Run) -> None:
    assert "no such container" in one_line(run("ls", "s3://bucket/nothing"))
    assert "no such" in one_line(run("ls", "s3://no-such-bucket/c"))


def test_keys_come_from_a_profile(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = no\n"
        "[work]\naws_access_key_id = from-profile\naws_secret_access_key = x\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert "from-profile" in control.call("sign", "s3://bucket", "key", 60)


def written(transport: Any, prefix: str, tmp_path: Path) -> None:
    """Write, replace and remove objects, and check what is refused."""
    key = f"{prefix}/one"
    first = transport.put(key, b"1" * 20, absent=True)
    with pytest.raises(FileExistsError):
        transport.put(key, b"2" * 20, absent=True)
    assert transport.head(key).etag == first.etag
    second = transport.put(key, b"3" * 20, like=first)
    with pytest.raises(OSError, match="replaced"):
        transport.put(key, b"4" * 20, like=first)
    assert transport.get(key, 0, 20, second)[1] == b"3" * 20
    path = tmp_path / "file"
    path.write_bytes(os.urandom((9 << 20) + 5))
    sizes = list[int]()
    made = transport.put_file(f"{prefix}/two", str(path), sizes.append)
    assert made.size == sum(sizes) == path.stat().st_size
    assert transport.get(f"{prefix}/two", made.size - 5, 5, made)[1] == path.read_bytes()[-5:]
    assert [found for found, _ in transport.list(f"{prefix}/")] == [key, f"{prefix}/two"]
    transport.delete([key, f"{prefix}/two", f"{prefix}/three"])
    assert transport.head(key) is None
    assert not list(transport.list(f"{prefix}/"))


def test_objects_are_written_under_conditions(s3: str, tmp_path: Path) -> None:
    written(find.transport_of("s3://bucket", os.getpid()), "written", tmp_path)


def test_a_forked_child_writes(s3: str, tmp_path: Path) -> None:
    transport = find.transport_of("s3://bucket", os.getpid())
    assert transport.head("nothing") is None  # obstore is in use
    child = multiprocessing.get_context("fork").Process(
        target=written, args=(transport, "forked", tmp_path)
    )
    child.start()
    child.join(20)
    assert child.exitcode == 0


def test_the_simulated_store_behaves_alike(tmp_path: Path) -> None:
    with ObjectStore() as store:
        written(store.transport, "written", tmp_path)


def test_the_store_is_checked(s3: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "RACES", 5)  # moto takes milliseconds a request
    done = run("remote", "check", "s3://bucket/new")
    assert done.status == 0 and b"no" not in done.out.split() and done.err == "", done
    transport = find.transport_of("s3://bucket", os.getpid())
    assert [key for key, _ in transport.list("new/")] == ["new/_winkfs/"]
    assert check.proven(transport, "new") and not check.proven(transport, "set")
    assert "no such" in one_line(run("remote", "check", "s3://no-such-bucket/new"))


def test_the_place_of_a_check_has_the_endpoint(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["AWS_ENDPOINT_URL"]
    assert control.endpoint("s3://bucket") == url
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://other")
    assert control.endpoint("s3://bucket") == "http://other"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    assert control.endpoint("az://c") == "https://mine.blob.core.windows.net"


# --- push, pull, sign ---


class Cut(BaseException):
    """What ends a program."""


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """-> a container of three parts."""
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(parts, "AT_ONCE", 1)
    with winkfs.create(tmp_path / "large") as c:
        c.put_many([("a", os.urandom(6 << 20)), ("dir/b c", os.urandom(5 << 20))])
    return tmp_path / "large"


def test_a_push_in_parts_goes_on_after_a_kill(
    s3: str, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, sent, put_part = "s3://bucket/pushed+to here/c", list[int](), S3Parts.put_part

    def put(self: S3Parts, key: str, upload: str, number: int, data: bytes, md5: bytes) -> str:
        sent.append(number)
        if len(sent) == 2:
            raise Cut
        return put_part(self, key, upload, number, data, md5)

    monkeypatch.setattr(S3Parts, "put_part", put)
    with pytest.raises(Cut):
        winkfs.push(large, url)
    with pytest.raises(FileNotFoundError):
        winkfs.open(url)
    winkfs.push(large, url)
    assert sent == [1, 2, 2, 3]
    transport = find.transport_of("s3://bucket", os.getpid())
    assert isinstance(transport, SignedTransport)
    assert S3Parts(transport, "pushed+to here/c.data", 60).uploads("pushed+to here/c.data") == []
    assert not winkfs.verify(url).problems and winkfs.push(large, url).same
    winkfs.pull(url, tmp_path / "pulled")
    with winkfs.open(large) as one, winkfs.open(tmp_path / "pulled") as other:
        assert dict(one.items()) == dict(other.items())


def test_of_two_pushes_one_changes_nothing(
    s3: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete, url = S3Parts.complete, "s3://bucket/twice"
    transport = find.transport_of("s3://bucket", os.getpid())

    def late(self: S3Parts, key: str, *given: Any, **options: Any) -> Any:
        transport.put(key, b"of another program")
        return complete(self, key, *given, **options)

    monkeypatch.setattr(S3Parts, "complete", late)
    with pytest.raises(winkfs.StalePlan, match="another program"):
        winkfs.push(large, url)
    assert transport.get("twice.data", 0, 100)[1] == b"of another program"


def test_a_link_is_fetched_with_curl(s3: str, run: Run, tmp_path: Path) -> None:
    with winkfs.create(tmp_path / "c", compress="zstd") as c:
        c.put_many((f"p/{i}", b"the same words %d" % i * 50) for i in range(200))
        c.put("plain $(x).txt", os.urandom(3000))
    assert run("push", tmp_path / "c", "s3://bucket/signed").status == 0
    for name, out in (("p/7", "7"), ("plain $(x).txt", "plain___x_.txt")):
        lines = run("sign", "s3://bucket/signed", name).out.decode()
        if shutil.which("curl") is None or shutil.which("zstd") is None:
            pytest.skip("needs curl and zstd")
        done = subprocess.run(["sh", "-c", lines], cwd=tmp_path, capture_output=True, check=True)
        assert done.stdout.decode() == f"{out}: OK\n"
        assert (tmp_path / out).read_bytes() == run("cat", "s3://bucket/signed", name).out
    assert "no such file" in one_line(run("sign", "s3://bucket/signed", "none"))
    url = run("sign", "--copy", "s3://bucket/signed", "plain $(x).txt").out.decode().strip()
    answer = urllib.request.urlopen(url)
    assert answer.headers["Content-Type"] == "text/plain"
    assert answer.read() == run("cat", "s3://bucket/signed", "plain $(x).txt").out


@pytest.mark.long
def test_a_forked_child_pushes(s3: str, large: Path) -> None:
    transport = find.transport_of("s3://bucket", os.getpid())
    assert transport.head("nothing") is None  # obstore is in use
    child = multiprocessing.get_context("fork").Process(
        target=winkfs.push, args=(large, "s3://bucket/by-a-child")
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    with winkfs.open("s3://bucket/by-a-child") as there:
        assert len(there.read("a")) == 6 << 20
