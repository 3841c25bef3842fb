"""A RabbitMQ node of Debian's package, in a folder of its own and on 127.0.0.1 alone."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

BIN = Path("/usr/lib/rabbitmq/bin")
LIMIT = 2 << 20  # bytes of a segment, so that a few messages make several
CONFIG = f"""[
 {{rabbit, [{{msg_store_file_size_limit, {LIMIT}}}, {{loopback_users, []}},
           {{disk_free_limit, 1000000}}]}},
 {{kernel, [{{inet_dist_use_interface, {{127,0,0,1}}}}]}}
].
"""
STARTING = 120  # seconds


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Node:
    """A node whose data are below `base`; the same base can be started again."""

    def __init__(self, base: Path) -> None:
        self.base, self.process, self.mapper = base, None, None  # type: ignore[var-annotated]
        base.mkdir(parents=True, exist_ok=True)
        (base / "advanced.config").write_text(CONFIG)
        (base / "plugins").write_text("[].\n")
        self.port, mapper, distribution = free_port(), free_port(), free_port()
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(base), "LC_ALL": "C.UTF-8",
            "RABBITMQ_MNESIA_BASE": str(base / "data"), "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_NODENAME": "winkfs@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_CONFIG_FILE": str(base / "none"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(mapper),
        }  # fmt: skip

    @property
    def store(self) -> Path:
        """The folder of its messages."""
        found = (self.base / "data").glob("*/msg_stores/vhosts/*/msg_store_persistent")
        return next(iter(found))

    def start(self) -> None:
        def run(*command: str | Path) -> subprocess.Popen[bytes]:
            with (self.base / "out").open("ab") as out:
                return subprocess.Popen(
                    command, env=self.environment, stdin=subprocess.DEVNULL, stdout=out,
                    stderr=out, start_new_session=True,
                )  # fmt: skip

        if self.mapper is None:
            self.mapper = run("epmd")
        self.process = run(BIN / "rabbitmq-server")
        deadline = time.monotonic() + STARTING
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with self.channel():
                    return
            except Exception:  # of which kind depends on how far it has come
                time.sleep(0.3)
        raise RuntimeError(f"no broker: see {self.base}/out and {self.base}/log")

    @contextmanager
    def channel(self) -> Iterator[Any]:
        import pika

        logging.getLogger("pika").setLevel(logging.CRITICAL)  # it is asked until it is there
        where = pika.ConnectionParameters("127.0.0.1", self.port, socket_timeout=20)
        with closing(pika.BlockingConnection(where)) as connection:
            yield connection.channel()

    def stop(self) -> None:
        """A clean shutdown: messages of its store are in `clean.dot` and the tables beside it."""
        subprocess.run(
            [BIN / "rabbitmqctl", "-n", "winkfs@localhost", "stop", str(self.base / "pid")],
            env=self.environment, check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        self._wait()

    def kill(self) -> None:
        """As a power cut of the process."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> None:
        if self.process is not None:
            self.process.wait(timeout=60)
            self.process = None

    def close(self) -> None:
        self.kill()
        if self.mapper is not None:
            self.mapper.kill()
            self.mapper.wait()
            self.mapper = None

    def copy(self, base: Path) -> Node:
        """Another node with the data of this one, which is stopped."""
        shutil.copytree(self.base / "data", base / "data")
        shutil.copy(self.base / ".erlang.cookie", base / ".erlang.cookie")
        return Node(base)
