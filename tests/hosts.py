"""Several hosts on one machine: network namespaces, joined by a bridge.

    with hosts(3) as (home, left, right):
        subprocess.Popen([*left.prefix, "program"])    # runs there, in the same filesystem
        left.unplug()                                  # nobody reaches it, and it nobody

Needs root and `ip`; where that is missing every host is 127.0.0.1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PRIVATE = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    "for each in /tmp /var/tmp /dev/shm; do mount -t tmpfs none $each || exit 1; done; "
    'cd /; exec "$@"', "sh",
)  # fmt: skip
_NAME = "wkt"  # wkt<pid>: the bridge; wkt<pid>n1: a namespace and the end of its cable here


@dataclass(frozen=True)
class Host:
    """Where a process can run. prefix: what comes before its command line.

    private  whether its temporary folders are its own, so that it shares no file that is written
    """

    address: str
    name: str = ""
    private: bool = False

    @property
    def prefix(self) -> list[str]:
        there = ["ip", "netns", "exec", self.name] if self.name else []
        return [*there, *(PRIVATE if self.private else ())]

    def unplug(self) -> None:
        """Packets are lost from now on, both ways, as if the cable were pulled."""
        _ip("link", "set", self.name, "down")

    def plug(self) -> None:
        _ip("link", "set", self.name, "up")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """The first is this machine, the others are namespaces with an address each."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        yield [Host("127.0.0.1")] * count
        return
    _sweep()
    bridge = f"{_NAME}{os.getpid()}"
    try:
        try:
            made = _make(bridge, count)
        except subprocess.CalledProcessError:  # in a container without the rights
            made = [Host("127.0.0.1")] * count
        yield made
    finally:
        _remove(bridge)


def _make(bridge: str, count: int) -> list[Host]:
    net = _free_net()
    _ip("link", "add", bridge, "type", "bridge")
    _ip("addr", "add", f"{net}.1/24", "dev", bridge)
    _ip("link", "set", bridge, "up")
    found = [Host(f"{net}.1")]
    for number in range(1, count):
        host = Host(f"{net}.{number + 1}", f"{bridge}n{number}")
        _ip("netns", "add", host.name)
        _ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("link", "set", host.name, "master", bridge, "up")
        for words in (
            ["addr", "add", f"{host.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],  # Spark speaks with its Python over it
        ):
            _ip("-n", host.name, *words)
        found.append(host)
    return found


def _free_net() -> str:
    """The first three numbers of an address range that nothing here uses."""
    used = _ip("-o", "-4", "addr")
    return next(net for net in map("10.213.{}".format, range(255)) if f"{net}." not in used)


def _remove(bridge: str) -> None:
    for name in _namespaces():
        if name.startswith(f"{bridge}n"):
            _ip("netns", "del", name)  # its cable goes with it
    subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _sweep() -> None:
    """What runs left behind that were killed."""
    for name in _namespaces():
        pid = name.removeprefix(_NAME).partition("n")[0]
        if name.startswith(_NAME) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            _remove(f"{_NAME}{pid}")


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout
