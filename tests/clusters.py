"""Real Spark clusters for tests: a master and workers, each a process, if possible on hosts of
their own.

    with standalone() as cluster, driver(cluster.url, cluster.settings) as spark:
        cluster.lose(cluster.workers[0])   # as if its machine lost power
        cluster.complete()

Where the kernel lets us, a worker has a network namespace of its own: an address, a loopback and a
cable that can be pulled. Else all are on 127.0.0.1. Every process is in a session (setsid) of its
host, by which it is found and killed, with what it has started; and dies with the test run.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import jvm
import pytest
from hosts import Host, hosts
from sparking import MODULES, environment, need_spark

LOCAL_CLUSTER = "local-cluster[2,1,1024]"  # two executors of a core and 1,024 MiB, on this machine
CORES = 2  # of each worker of a standalone cluster
STARTING = 90.0  # seconds
PATIENCE = 3600.0  # seconds one cluster may live before it counts as hung: a soak takes half
_JAVA = f"{jvm.options()} -Xss512k"
_PR_SET_PDEATHSIG = 1


@dataclass
class Daemon:
    """A master or a worker, and all it has started."""

    host: Host
    process: subprocess.Popen[bytes]
    log: Path

    def processes(self) -> list[int]:
        """Process ids of its session: executors and their Python workers, too."""
        return in_session(self.process.pid)

    def executors(self) -> list[int]:
        return [pid for pid in self.processes() if "ExecutorBackend" in command_line(pid)]

    def pythons(self) -> list[int]:
        """Python workers of its executors, and the daemon that forks them."""
        return [pid for pid in self.processes() if "pyspark.daemon" in command_line(pid)]

    def kill(self) -> None:
        """kill -9 of all at once. The daemon goes first: it would start an executor again."""
        pids = self.processes()
        for pid in [self.process.pid, *pids, *self.processes()]:
            kill(pid)
        self.process.wait(30)
        wait_for(lambda: not self.processes(), f"{self.log.name}: what it started lives on")

    def waits_for(self, line: str, count: int = 1) -> None:
        """Wait until its log holds `count` lines with such a text."""
        wait_for(
            lambda: len(re.findall(line, self.output())) >= count,
            f"{self.log.name}: no {line!r}",
            STARTING,
            alive=self.process,
        )

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


@dataclass
class Cluster:
    """A master with its workers.

    url         spark://ADDRESS:PORT
    settings    what a driver on this machine needs to be reached, beside `sparking.SETTINGS`
    separate    whether each worker has a network of its own
    """

    place: Path
    master: Daemon
    url: str
    hosts: list[Host]  # of the workers
    workers: list[Daemon] = field(default_factory=list)
    _launched: int = 0

    @property
    def separate(self) -> bool:
        return self.master.host.address != "127.0.0.1"

    @property
    def settings(self) -> dict[str, str]:
        driver = self.master.host.address
        return {
            "spark.driver.host": driver,
            "spark.driver.bindAddress": driver,
            "spark.executor.memory": "800m",
            "spark.executor.extraJavaOptions": _JAVA,
            # a pulled cable is noticed after seconds, not minutes
            "spark.executor.heartbeatInterval": "1s",
            "spark.network.timeout": "12s",
            "spark.network.timeoutInterval": "4s",
        }

    def lose(self, worker: Daemon) -> None:
        """kill -9 of it and of all that runs there; `complete` puts another in its place."""
        worker.kill()
        self.workers.remove(worker)

    def complete(self) -> None:
        """Start the workers that were lost; returns when the master knows them."""
        there = [worker.host for worker in self.workers]
        lost = self.hosts[:]
        for host in there:
            lost.remove(host)  # without networks of their own, all are one
        for host in lost:
            self._launch(host)
        self.master.waits_for("Registering worker", self._launched)

    def _launch(self, host: Host) -> Daemon:
        number, self._launched = self._launched, self._launched + 1
        words = ["worker.Worker", "--host", host.address, "--port", "0", "--webui-port", "0"]
        words += ["--cores", str(CORES), "--memory", "2g"]
        words += ["--work-dir", str(self.place / f"work{number}"), self.url]
        self.workers.append(launch(host, words, self.place / f"worker{number}.log"))
        return self.workers[-1]

    def worker_of(self, pid: int) -> Daemon:
        """The worker that a process (of a task, say) belongs to."""
        return next(worker for worker in self.workers if pid in worker.processes())

    def worker_at(self, host: Host) -> Daemon:
        return next(worker for worker in self.workers if worker.host == host)

    def stop(self) -> None:
        for daemon in [*self.workers, self.master]:
            daemon.kill()


@contextmanager
def standalone(
    workers: int = 2, patience: float = PATIENCE, *, private: bool = False
) -> Iterator[Cluster]:
    """A standalone cluster; 8 to 12 s until it is up. private: see `Host`."""
    need_spark()
    place = Path(tempfile.mkdtemp(prefix="winkfs-cluster-"))
    with hosts(workers + 1) as pool:
        home, *others = pool
        others = [replace(host, private=private) for host in others]
        port = free_port(home.address)
        words = ["master.Master", "--host", home.address, "--port", str(port), "--webui-port", "0"]
        master = launch(home, words, place / "master.log")
        cluster = Cluster(place, master, f"spark://{home.address}:{port}", others)
        bitten = threading.Event()

        def bite() -> None:
            bitten.set()
            cluster.stop()

        watchdog = threading.Timer(patience, bite)
        watchdog.daemon = True
        watchdog.start()
        try:
            master.waits_for("Starting Spark master")
            cluster.complete()
            yield cluster
            assert not bitten.is_set(), "the cluster hung"
        except BaseException:
            for log in sorted(place.glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}", file=sys.stderr)
            raise
        finally:
            watchdog.cancel()
            cluster.stop()
            shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One for all tests; those that kill workers complete it first."""
    with standalone() as it:
        yield it


def launch(host: Host, words: list[str], log: Path) -> Daemon:
    """Start a class of org.apache.spark.deploy on a host."""
    import pyspark

    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    name, *arguments = words
    command = [*host.prefix, str(spark_class), f"org.apache.spark.deploy.{name}", *arguments]
    env = environment(
        PYTHONPATH=MODULES, SPARK_LOCAL_IP=host.address,
        SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=_JAVA,
    )  # fmt: skip
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            cwd=log.parent, start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
    return Daemon(host, process, log)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


# --- processes ---


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on: state, parent, group, session ...; [] if gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def in_session(session: int) -> list[int]:
    """Living processes of a session."""
    states = {int(p.name): _stat(int(p.name)) for p in Path("/proc").iterdir() if p.name.isdigit()}
    return [pid for pid, s in states.items() if s and int(s[3]) == session and s[0] != "Z"]


def parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def executor_of(pid: int) -> int:
    """The executor JVM above a Python worker."""
    while pid > 1 and "ExecutorBackend" not in command_line(pid):
        pid = parent(pid)
    assert pid > 1, "no executor above it"
    return pid


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def kill(pid: int, how: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, how)


def wait_for(
    condition: Callable[[], object],
    what: str,
    seconds: float = 60.0,
    alive: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
) -> None:
    """Wait for a condition; `alive`: there is no sense in waiting when this process has ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} after {seconds:.0f} s"
        assert alive is None or alive.poll() is None or condition(), (
            f"{what}, and the process ended"
        )
        time.sleep(0.05)
