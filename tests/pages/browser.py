"""A headless Chromium that a test drives: opens a file, runs scripts, moves the mouse, looks at pixels.

It speaks the browser's DevTools protocol over two pipes, so that no package is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
PIXELS = """(async (png, points) => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const canvas = new OffscreenCanvas(image.width, image.height), ink = canvas.getContext("2d");
  ink.drawImage(image, 0, 0);
  return points.map(([x, y]) => [...ink.getImageData(x, y, 1, 1).data].slice(0, 3));
})"""


def chromium() -> str | None:
    """The browser's path, None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Connection:
    """The two pipes. heard: events of pages that nobody asked for, by the page's session."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, os.fdopen(from_browser, "rb", buffering=1 << 20)
        self._number, self._rest = 0, b""
        self.heard: list[tuple[str, str, Any]] = []

    def call(self, session: str, method: str, **params: Any) -> Any:
        """A command of the protocol, and what it answers."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        sent = json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0"
        while sent:
            sent = sent[os.write(self._to, sent) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            if "method" in answer:
                self.heard.append((answer.get("sessionId", ""), answer["method"], answer["params"]))

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            read = self._from.read1(1 << 20)
            assert read, "the browser ended"
            self._rest += read
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


class Page:
    """A page of the browser."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.target: str = connection.call("", "Target.createTarget", url="about:blank")["targetId"]
        attached = connection.call("", "Target.attachToTarget", targetId=self.target, flatten=True)
        self.session: str = attached["sessionId"]
        for name in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{name}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command to this page."""
        return self.connection.call(self.session, method, **params)

    def events(self, method: str) -> list[Any]:
        """What was heard of the page."""
        return [
            params
            for session, name, params in self.connection.heard
            if (session, name) == (self.session, method)
        ]

    @property
    def errors(self) -> list[str]:
        """Exceptions of its scripts, and what the browser refused."""
        thrown = [json.dumps(each) for each in self.events("Runtime.exceptionThrown")]
        entries = [each["entry"] for each in self.events("Log.entryAdded")]
        return thrown + [entry["text"] for entry in entries if entry["level"] == "error"]

    @property
    def asked(self) -> list[str]:
        """Every address that it asked for."""
        return [each["request"]["url"] for each in self.events("Network.requestWillBeSent")]

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """A file, in a window of this size, until it is drawn."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        self.run("new Promise(done => document.readyState === 'complete' ? done() : onload = done)")
        self.settle()

    def settle(self) -> None:
        """Until what was asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)
        self.settle()

    def drag(self, x: float, y: float, by_x: float, by_y: float) -> None:
        """From a point on, with the left button."""
        self.mouse("Pressed", x, y, button="left", buttons=1, clickCount=1)
        self.mouse("Moved", x + by_x, y + by_y, button="left", buttons=1)
        self.mouse("Released", x + by_x, y + by_y, button="left", clickCount=1)

    def press(self, key: str, shift: bool = False) -> None:
        """A key, down and up."""
        text = {"text": key} if len(key) == 1 else {}
        for kind, more in (("keyDown", text), ("keyUp", {})):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=8 * shift, **more)
        self.settle()

    def picture(self) -> bytes:
        """What is seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def pixels(self, points: Sequence[tuple[float, float]]) -> list[tuple[int, ...]]:
        """Red, green and blue of what is seen at points of the window; another page unpacks the picture."""
        picture = base64.b64encode(self.picture()).decode()
        whole = [[int(x), int(y)] for x, y in points]
        other = Page(self.connection)
        found = other.run(f"{PIXELS}({json.dumps(picture)}, {json.dumps(whole)})")
        other.close()
        self.call("Page.bringToFront")  # a page behind another draws nothing
        return [tuple(each) for each in found]

    def close(self) -> None:
        """Away with it."""
        self.connection.call("", "Target.closeTarget", targetId=self.target)


@contextmanager
def browser(folder: Path) -> Iterator[Connection]:
    """A browser with an empty profile in a folder; it ends with the block."""
    path = chromium()
    assert path is not None
    from_browser, theirs_out = _pipe()
    theirs_in, to_browser = _pipe()
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    started = subprocess.Popen(
        ["bash", "-c", script, path, *FLAGS, f"--user-data-dir={folder}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    connection = Connection(to_browser, from_browser)
    try:
        yield connection
        with suppress(AssertionError, OSError):
            connection.call("", "Browser.close")
    finally:
        os.close(to_browser)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _pipe() -> tuple[int, int]:
    """Where to read and where to write, at numbers that are not 3 or 4."""
    low_read, low_write = os.pipe()
    ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (low_read, low_write))
    os.close(low_read)
    os.close(low_write)
    return ends[0], ends[1]
