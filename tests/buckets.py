"""A real server of the protocol of S3 for tests: moto, with a bucket, found through a file.

with s3() as url:                          # "s3://bucket"
    root = f"{url}/set"; trust(root)       # as if `winkfs remote check` had passed
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from winkfs.dataset.folder import far_files
from winkfs.remote import control, find

# Read by each process that asks a store: so a JVM can reach a server that is started later.
CONFIG = Path(tempfile.gettempdir()) / f"winkfs-tests-{os.getpid()}.aws"


def forget() -> None:
    """Have settings read anew."""
    control.store_of.cache_clear()
    find.transport_of.cache_clear()


def make_atomic(patch: pytest.MonkeyPatch) -> None:
    """Let moto look and put in one step, as S3 does: two writers could both be the first."""
    from moto.s3.responses import S3Response

    plain, turn = S3Response.put_object, threading.Lock()

    def put_object(self: Any) -> Any:
        with turn:
            return plain(self)

    patch.setattr(S3Response, "put_object", put_object)


@contextmanager
def s3(address: str = "127.0.0.1") -> Iterator[str]:
    """Start a server -> the URL of an empty bucket. Its keys are in CONFIG while it runs."""
    server = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("obstore")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    CONFIG.write_text(
        f"[default]\nendpoint_url = http://{host}:{port}\nregion = us-east-1\n"
        "aws_access_key_id = testing\naws_secret_access_key = testing\n"
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                patch.delenv(name)
            for name in ("http_proxy", "https_proxy", "all_proxy"):
                patch.delenv(name, raising=False)
                patch.delenv(name.upper(), raising=False)
            patch.setenv("AWS_CONFIG_FILE", str(CONFIG))
            forget()
            make_atomic(patch)
            boto3.client(
                "s3", region_name="us-east-1", endpoint_url=f"http://{host}:{port}",
                aws_access_key_id="testing", aws_secret_access_key="testing",
            ).create_bucket(Bucket="bucket")  # fmt: skip
            yield "s3://bucket"
    finally:
        forget()
        CONFIG.unlink()
        running.stop()


def trust(root: str) -> str:
    """Have `winkfs remote check` passed for a data set -> its URL."""
    files = far_files(root)
    transport, prefix = files.place
    place = {"endpoint": transport.endpoint, "bucket": transport.url, "prefix": prefix}
    files.put("_winkfs/store.json", json.dumps(place | {"passed": True}).encode())
    return root
