"""Chromium without a window, for pages of the product: asked over a pipe, without a port."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import pytest

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars=false", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE: Final = 60  # seconds for an answer


def program() -> str:
    """-> the browser; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("no chromium: apt-get install chromium")
    return found


class Browser:
    """A browser with one page. Its log has what the page asked for and complained about.

    requests  URLs
    """

    def __init__(self, profile: Path) -> None:
        ours, theirs = os.pipe(), os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (ours[0], theirs[1])]
        for fd in (ours[0], theirs[1]):
            os.close(fd)
        self._out, self._in = ours[1], theirs[0]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{high[0]} 4>&{high[1]}', "-", program(), *FLAGS,
             f"--user-data-dir={profile}", "about:blank"],
            pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in high:
            os.close(fd)
        self._last, self._buffer = 0, b""
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def ask(self, method: str, **params: Any) -> Any:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._last:
                assert "error" not in found, found["error"]
                return found["result"]

    def wait(self, event: str) -> None:
        while self._receive().get("method") != event:
            pass

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(end - time.monotonic(), 0))[0]
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser has ended, or does not answer"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        params = found.get("params", {})
        if found.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif found.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif found.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        return found

    def look(self, width: int, height: int, scheme: str) -> None:
        """Set the size of the window, and whether it is light or dark."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                 deviceScaleFactor=1, mobile=False)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def open(self, path: Path) -> None:
        self.ask("Page.navigate", url=path.as_uri())
        self.wait("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """-> the value of JavaScript, which no policy of the page stops."""
        found = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Click on the middle of the first element."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({find}"
                         ".getBoundingClientRect())")  # fmt: skip
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, **where)

    def shot(self, path: Path) -> bytes:
        """Save the whole page as PNG -> its bytes."""
        size = self.value("[document.documentElement.scrollWidth, "
                          "document.documentElement.scrollHeight]")  # fmt: skip
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        found = self.ask("Page.captureScreenshot", format="png", clip=clip,
                         captureBeyondViewport=True)  # fmt: skip
        data = base64.b64decode(found["data"])
        path.write_bytes(data)
        return data
