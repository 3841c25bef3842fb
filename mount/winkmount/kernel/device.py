"""A connection to the kernel: mounting without libfuse, and the loop that answers requests."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from winkmount.binding import MountError
from winkmount.kernel import protocol as p
from winkmount.kernel.callers import LOOK_EVERY, Callers
from winkmount.mounts import detach, mount_at

DEVICE: Final = "/dev/fuse"
HELPER: Final = "fusermount3"
ENDS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NAMES: Final = ("fsname", "subtype")
_FLAGS: Final = {"ro": 1, "noexec": 8, "sync": 16}  # MS_ of linux/mount.h
_ALWAYS: Final = 2 | 4  # MS_NOSUID, MS_NODEV
_KERNEL: Final = ("allow_other", "default_permissions")
WAITS_COUNTED: Final = 32  # waits between two looks at how many were in vain
FIRST_REST: Final = 16  # requests without a wait after the first look that finds too many
MOST_REST: Final = 512  # after many such looks
LATENCY: Final = "/dev/cpu_dma_latency"
DRIVER: Final = Path("/sys/devices/system/cpu/cpuidle/current_driver")
MOST_AWAKE: Final = 8  # processors
IDLE_AFTER: Final = 20  # milliseconds without a request
SLOW_REQUEST: Final = 0.25  # seconds after which another thread reads the requests behind one


def mount(point: str, options: Mapping[str, str | bool]) -> int:
    """Mount on a directory -> a descriptor of the device.

    options  fsname, subtype; ro, noexec, sync, allow_other, default_permissions
    raises   MountError
    """
    for name in options:
        if name not in (*_NAMES, *_FLAGS, *_KERNEL):
            raise MountError(f"cannot mount on {point}: unknown option {name!r}")
    if os.geteuid() == 0:
        device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
        code = _mount(device, point, options)
        if code == 0:
            return device
        os.close(device)
        if code != errno.EPERM:
            raise MountError(f"cannot mount on {point}: {os.strerror(code)}")
    return _mount_by_helper(point, options)


def _mount(device: int, point: str, options: Mapping[str, str | bool]) -> int:
    """Mount by mount(2) -> an errno, or 0."""
    data = [f"fd={device},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id={os.getgid()}"]
    data += [name for name in _KERNEL if options.get(name)]
    flags = _ALWAYS | sum(flag for name, flag in _FLAGS.items() if options.get(name))
    source, kind = str(options["fsname"]), f"fuse.{options['subtype']}"
    source = source.replace("\\,", ",").replace("\\\\", "\\")
    libc = ctypes.CDLL(None, use_errno=True)
    words = source.encode("latin-1"), os.fsencode(point), kind.encode()
    done = libc.mount(*words, ctypes.c_ulong(flags), ",".join(data).encode())
    return ctypes.get_errno() if done else 0


def _mount_by_helper(point: str, options: Mapping[str, str | bool]) -> int:
    """Have the helper mount, for a user without the right to, and pass on its descriptor."""
    helper = shutil.which(HELPER)
    if helper is None:
        raise MountError(f"{HELPER} is not installed: apt install fuse3")
    text = ",".join(name if value is True else f"{name}={value}" for name, value in options.items())
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, its:
        done = subprocess.run(
            [helper.encode(), b"-o", text.encode("latin-1"), b"--", os.fsencode(point)],
            pass_fds=(its.fileno(),), env={**os.environ, "_FUSE_COMMFD": str(its.fileno())},
            stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        its.close()
        _, found, _, _ = socket.recv_fds(ours, 1, 1)
    if done.returncode or not found:
        reason = done.stderr.decode(errors="replace").strip()
        raise MountError(reason or f"{HELPER} cannot mount on {point}")
    os.set_inheritable(found[0], False)
    return found[0]


def unmount(device: int, point: str) -> None:
    """Close the device, and take the mount away where it is still there."""
    poll = select.poll()
    poll.register(device, 0)
    gone = bool(poll.poll(0))  # POLLERR
    os.close(device)
    with suppress(MountError):
        if not gone and (mount := mount_at(point)):
            detach(mount, lazy=True)


class Server(Protocol):
    """The part that answers requests."""

    def request(self, opcode: int, unique: int, node: int, body: memoryview) -> bool:
        """Answer a request -> False: another thread will. The body is gone behind it."""

    def forget(self, opcode: int, node: int, body: memoryview) -> None:
        """Note which numbers the kernel no longer holds: FORGET or BATCH_FORGET."""

    def rest(self) -> None:
        """Give back what is not needed: no request has come for a while."""

    def idle(self) -> bool:
        """Return whether no other thread waits for the kernel to take something, which may need
        answers to further requests."""


class Pace(NamedTuple):
    """The times that a server waits for the kernel, and the kernel for it.

    spin        seconds behind a request in which the device is asked for the next one before the
                thread sleeps: to wake it takes as long
    timeout     seconds that a request may wait for its answer until the kernel, Linux 6.14 or
                later, ends the mount; it looks every 15 s; 0: for ever
    """

    spin: float
    timeout: int


class Awake:
    """Keeps processors from halting while one request follows the other.

    A caller sleeps until there is an answer, and its processor halts meanwhile. A virtual processor
    then has to be woken by its host, several times for a new file. Linux keeps the idle processors
    of a guest in a loop as long as a process holds LATENCY with 0, which root may do. It does so
    with all of them: so this is done only on a machine with few.
    """

    def __init__(self, latency: str = LATENCY, driver: Path = DRIVER) -> None:
        self._latency, self._held, self._may = latency, -1, False
        with suppress(OSError):
            guest = driver.read_bytes() == b"haltpoll\n"
            self._may = guest and (os.cpu_count() or 1) <= MOST_AWAKE

    def begin(self) -> None:
        if self._may and self._held < 0:
            try:
                self._held = os.open(self._latency, os.O_WRONLY | os.O_CLOEXEC)
                os.write(self._held, bytes(4))
            except OSError:
                self._may = False

    def end(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class Spinning:
    """When to go on asking. Where half of the waits are in vain it sleeps at once for a while, each
    time for twice as long: the callers have other things to do, or other processes want the
    processors, and then a wait takes them from those that would ask.

    seconds  of a wait; 0: never
    awake    begins where waits pay, ends where they are in vain
    """

    def __init__(self, seconds: float, awake: Awake) -> None:
        self._seconds, self._awake = seconds, awake
        self._waits = self._vain = 0  # since the last look
        # requests without a wait: still, and the next time
        self._resting, self._rest = 0 if seconds else math.inf, FIRST_REST

    def until(self) -> float:
        """Return until when to ask, by `time.perf_counter`, now that a request is answered; 0.0:
        not at all."""
        if self._waits == WAITS_COUNTED:
            self._look()
        if self._resting:
            self._resting -= 1
            return 0.0
        self._waits += 1
        return time.perf_counter() + self._seconds

    def in_vain(self) -> None:
        """Note that no request came within the wait."""
        self._vain += 1

    def _look(self) -> None:
        if 2 * self._vain >= self._waits:
            self._resting, self._rest = self._rest, min(2 * self._rest, MOST_REST)
            self._awake.end()
        else:
            self._rest = FIRST_REST
            self._awake.begin()
        self._waits = self._vain = 0


class Standby:
    """A thread that reads what the kernel asks while the one that answers waits for the disk: so
    that a caller that is killed meanwhile gets away. It keeps other requests for that one.

    watches  clear: it pauses, since no request comes: an idle mount takes no processor time
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.watches, self._ended = threading.Event(), threading.Event()
        self.watches.set()
        self._thread = threading.Thread(target=self._run, name="winkmount-standby", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self.watches.set()
        self._thread.join()

    def _run(self) -> None:
        before = 0
        while not self._ended.wait(SLOW_REQUEST):
            busy = self._connection.busy
            if busy and busy == before:
                self._stand_in(busy)
            before = busy
            self.watches.wait()

    def _stand_in(self, busy: int) -> None:
        """Read requests as long as that one takes."""
        poll, room = select.poll(), memoryview(bytearray(p.REQUEST))
        poll.register(self._connection.device, select.POLLIN)
        while self._connection.busy == busy:
            if poll.poll(LOOK_EVERY * 1000) and not self._connection.read_aside(room, busy):
                return


class Connection:
    """The requests on one device, until the mount is gone or a signal ends the server.

    arrived  when the request that `serve` has answered now came, by time.monotonic(), if it waited
             for another one; 0.0: just now
    busy     unique number of the request that `serve` has answered now, 0: of none
    callers  those that wait for an answer from another thread, or behind one that takes long
    """

    def __init__(self, device: int, pace: Pace) -> None:
        self.device, self._pace = device, pace
        self._room = memoryview(bytearray(p.REQUEST))
        self.busy, self.callers = 0, Callers(self.reply)
        self._backlog = deque[tuple[float, bytes]]()  # requests that the standby has read, and when
        self.arrived = 0.0
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # there is one
        os.set_blocking(device, False)

    def begin(self, wanted: int) -> bool:
        """Answer INIT -> False: the mount is gone. `wanted`: flags that the kernel may have."""
        poll = select.poll()
        poll.register(self.device, select.POLLIN)
        while not (length := self._receive()):
            poll.poll()
        if length < 0:
            return False
        _, opcode, unique, _ = p.IN.unpack_from(self._room)
        assert opcode == p.INIT
        self.reply(unique, 0, self._init(length, wanted | p.INIT_EXT | p.REQUEST_TIMEOUT))
        return True

    def _init(self, length: int, wanted: int) -> bytes:
        """Return the answer to an INIT of so many bytes."""
        _, minor, ahead, flags = p.INIT_IN.unpack_from(self._room, p.IN.size)
        if flags & p.INIT_EXT and length >= p.IN.size + p.INIT_MORE.size:
            flags |= p.INIT_MORE.unpack_from(self._room, p.IN.size)[0] << 32
        flags &= wanted
        most, pages, timeout = p.MOST, p.MOST >> 12, min(self._pace.timeout, p.UINT16)
        low, high, minor = flags & p.UINT32, flags >> 32, min(minor, p.MINOR)
        return p.INIT_OUT.pack(
            p.MAJOR, minor, ahead, low, 0, 0, most, 1, pages, 0, high, 0, timeout
        )

    def _receive(self) -> int:
        """Read the next request -> its bytes; 0: there is none now; -1: the mount is gone."""
        try:
            return os.readv(self.device, [self._room])
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # ENOENT: the caller has gone
                return 0
            if error.errno == errno.ENODEV:
                return -1
            raise

    def reply(self, unique: int, code: int, data: bytes) -> None:
        if self.callers.waiting:
            self.callers.waiting.pop(unique, None)
        try:
            os.writev(self.device, (p.OUT.pack(p.OUT.size + len(data), -code, unique), data))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the caller has gone
                raise

    def store(self, node: int, data: bytes | memoryview) -> bool:
        """Put the contents of a file in the page cache -> whether the kernel has the file.

        It waits as long as the file is being read: never from the thread that answers.
        """
        head = p.STORE_OUT.pack(node, 0, len(data))
        size = p.OUT.size + len(head) + len(data)
        try:
            os.writev(self.device, (p.OUT.pack(size, p.STORE, 0), head, data))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                return False
            raise
        return True

    def prune(self, nodes: Sequence[int]) -> bool:
        """Have the kernel forget those of these files that are not in use -> False: it is older,
        and cannot do that."""
        body = p.PRUNE_OUT.pack(len(nodes)) + struct.pack(f"={len(nodes)}Q", *nodes)
        try:
            os.writev(self.device, (p.OUT.pack(p.OUT.size + len(body), p.PRUNE, 0), body))
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
        return True

    def caller(self) -> tuple[int, int, int]:
        """Return uid, gid and pid of the caller, during a request."""
        uid, gid, pid = p.CALLER.unpack_from(self._room)
        return uid, gid, pid

    def hold(self, unique: int) -> None:
        """Note that another thread will answer this request."""
        self.callers.waiting[unique] = self.caller()[2]

    def _interrupt(self, unique: int) -> None:
        """Note that a signal came to a caller that waits for an answer."""
        if unique == self.busy:
            self.callers.waiting[unique] = self.caller()[2]
            if unique != self.busy:  # it has been answered meanwhile
                self.callers.waiting.pop(unique, None)
        self.callers.interrupt(unique)

    def read_aside(self, room: memoryview, busy: int) -> bool:
        """Keep the next request for `serve`, which takes long with another one: for the standby.
        False: the mount is gone."""
        try:
            length = os.readv(self.device, [room])
        except OSError as error:
            return error.errno != errno.ENODEV
        _, opcode, unique, _ = p.IN.unpack_from(room)
        if opcode == p.INTERRUPT:
            self._interrupt(p.LONG.unpack_from(room, p.IN.size)[0])
            return True
        if opcode not in p.SILENT:
            self.callers.waiting[unique] = p.CALLER.unpack_from(room)[2]
        self._backlog.append((time.monotonic(), bytes(room[:length])))
        if self.busy != busy:  # it may be asleep
            os.eventfd_write(self._bell, 1)
        return True

    def _next(self) -> int:
        """Read the next request as `_receive` does, first of those that the standby has read."""
        while self._backlog:
            self.arrived, data = self._backlog.popleft()
            _, opcode, unique, _ = p.IN.unpack_from(data)
            if opcode in p.SILENT or self.callers.waiting.pop(unique, None) is not None:
                self._room[: len(data)] = data
                return len(data)  # else: the caller was let go
        self.arrived = 0.0
        return self._receive()

    def serve(self, server: Server, ending: int) -> None:
        """Read requests and have them answered until the mount is gone, or `ending` can be read."""
        poll, room, receive, clock = select.poll(), self._room, self._next, time.perf_counter
        for file in (self.device, ending, self._bell):
            poll.register(file, select.POLLIN)
        unpack, head, request, until = p.IN.unpack_from, p.IN.size, server.request, 0.0
        callers, awake, standby = self.callers.waiting, Awake(), Standby(self)
        spinning = Spinning(self._pace.spin, awake)
        try:
            while (length := receive()) >= 0:
                if not length:
                    if clock() > until:
                        if until:
                            spinning.in_vain()
                            until = 0.0
                        ready = dict(poll.poll(IDLE_AFTER))
                        if not ready:
                            awake.end()
                            standby.watches.clear()
                            server.rest()
                            ready = dict(poll.poll())
                            standby.watches.set()
                        if self._bell in ready:
                            os.eventfd_read(self._bell)
                        if ending in ready and server.idle():
                            return
                    continue
                _, opcode, unique, node = unpack(room)
                body = room[head:length]
                if opcode in p.SILENT:
                    if opcode == p.INTERRUPT:
                        self._interrupt(p.LONG.unpack_from(body)[0])
                    else:
                        server.forget(opcode, node, body)
                    continue
                self.busy = unique
                answered = request(opcode, unique, node, body)
                self.busy, until = 0, spinning.until() if answered else 0.0
                if answered and callers:
                    callers.pop(unique, None)
        finally:
            awake.end()
            standby.end()
            os.close(self._bell)


@contextmanager
def handled(action: signal.Handlers | Callable[..., None]) -> Iterator[None]:
    """Handle the signals that end a server so."""
    before = {number: signal.signal(number, action) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals() -> Iterator[int]:
    """Yield a descriptor that can be read when a signal has come that ends a server."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with handled(lambda *_: None):
            yield reader
    finally:
        signal.set_wakeup_fd(woken)
        os.close(reader)
        os.close(writer)
