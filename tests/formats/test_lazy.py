"""Attributes that are computed at their first use, while a process is forked."""

from __future__ import annotations

import os
import signal
import threading

from winkformats.lazy import cached_property


class Slow:
    """Has an attribute whose computation lasts until `go`."""

    def __init__(self, go: threading.Event, begun: threading.Event) -> None:
        self.go, self.begun = go, begun

    @cached_property
    def value(self) -> int:
        self.begun.set()
        self.go.wait(60)
        return os.getpid()


def test_an_attribute_is_computed_once() -> None:
    go = threading.Event()
    go.set()
    slow = Slow(go, threading.Event())
    assert slow.value == os.getpid()
    slow.begun.clear()
    assert slow.value == os.getpid() and not slow.begun.is_set()


def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    go, begun = threading.Event(), threading.Event()
    slow = Slow(go, begun)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)  # a child that hangs is killed
        free = threading.Event()
        free.set()
        os._exit(Slow(free, threading.Event()).value != os.getpid())
    status = os.waitpid(child, 0)[1]
    go.set()
    thread.join()
    assert status == 0
