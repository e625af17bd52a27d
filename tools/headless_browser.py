"""A headless Chromium driven over its debugging pipe: to test, measure and photograph the report's page.

The pipe (two file descriptors, JSON records that end with a zero byte) needs neither a port nor a library.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

__all__ = ["Browser", "BrowserError", "chromium_path"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps",
    "--disable-dev-shm-usage", "--disable-extensions", "--hide-scrollbars", "--mute-audio", "--lang=en-US",
    "--force-color-profile=srgb", "--remote-debugging-pipe",
)  # fmt: skip
_KEYS = {
    "Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, ""), "PageDown": ("PageDown", 34, ""),
    "PageUp": ("PageUp", 33, ""), "ArrowDown": ("ArrowDown", 40, ""), "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowRight": ("ArrowRight", 39, ""), "/": ("Slash", 191, "/"),
}  # fmt: skip


class BrowserError(Exception):
    """The browser did not start, did not answer, or an expression raised."""


def chromium_path() -> str | None:
    """The browser of this machine, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page. Notes what the page says on its console and what it asks of the network."""

    def __init__(
        self, width: int = 1280, height: int = 900, *, dark: bool = False, patience: float = 60
    ) -> None:
        self.patience = patience
        self.problems: list[str] = []  # errors on the console and exceptions
        self.requests: list[str] = []  # addresses the page asked for
        self._size = (width, height)
        self._dark = dark
        self._number = 0
        self._session = ""
        self._unread = b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        program = chromium_path()
        if program is None:
            raise BrowserError(f"no browser: none of {', '.join(_NAMES)} is on the PATH")
        self._home = tempfile.mkdtemp(prefix="headless-browser-")
        theirs_in, self._write = (_high(end) for end in os.pipe())
        self._read, theirs_out = (_high(end) for end in os.pipe())
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_DUP2, 1, 2),
        ]  # fmt: skip
        arguments = [program, *_OPTIONS, f"--user-data-dir={self._home}", "about:blank"]
        self._process = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._write, self._read):
            os.close(end)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        shutil.rmtree(self._home, ignore_errors=True)

    def _attach(self) -> None:
        target = self._send("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._send("Target.attachToTarget", {"targetId": target, "flatten": True})[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")
        self.resize(*self._size)
        self.colours(dark=self._dark)

    # -- what a person does ----------------------------------------------------------------------------------

    def open(self, path: str | Path) -> None:
        """Open a file and wait until the report says that its rows are ready."""
        self._send("Page.navigate", {"url": Path(path).resolve().as_uri()})
        self.wait("document.documentElement?.dataset.ready")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        """The size of the window in CSS pixels."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
        )

    def colours(self, *, dark: bool, media: str = "") -> None:
        """What the system prefers, and whether the page is shown on a screen or in `print`."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", {"media": media, "features": scheme})

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        for key in keys:
            code, number, text = _KEYS.get(key, (key, ord(key[0].upper()), key))
            about = {"key": key, "code": code, "windowsVirtualKeyCode": number, "text": text}
            self._send("Input.dispatchKeyEvent", {"type": "keyDown", **about})
            self._send("Input.dispatchKeyEvent", {"type": "keyUp", **about})

    def type(self, text: str) -> None:
        """Put text where the focus is."""
        self._send("Input.insertText", {"text": text})

    # -- what is seen ----------------------------------------------------------------------------------------

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self._send(
            "Runtime.evaluate", {"expression": expression, "returnByValue": True, "awaitPromise": True}
        )
        if "exceptionDetails" in answer:
            raise BrowserError(json.dumps(answer["exceptionDetails"])[:1000])
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true."""
        deadline = time.monotonic() + self.patience
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise BrowserError(f"{expression} did not become true; problems: {self.problems}")
            time.sleep(0.02)
        return value

    def screenshot(self, path: str | Path, height: int | None = None) -> None:
        """A picture of the window, or of the page's first `height` pixels."""
        options: dict[str, Any] = {"format": "png"}
        if height is not None:
            clip = {"x": 0, "y": 0, "width": self._width(), "height": height, "scale": 1}
            options |= {"clip": clip, "captureBeyondViewport": True}
        Path(path).write_bytes(base64.b64decode(self._send("Page.captureScreenshot", options)["data"]))

    def _width(self) -> int:
        return int(self.evaluate("innerWidth"))

    # -- the pipe --------------------------------------------------------------------------------------------

    def _send(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": dict(parameters or {})}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if not select.select([self._read], [], [], self.patience)[0]:
                raise BrowserError(f"no answer within {self.patience} s")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise BrowserError("the browser has ended")
            self._unread += piece
        record, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(record))

    def _note(self, event: Mapping[str, Any]) -> None:
        about = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(about["request"]["url"])
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(about["exceptionDetails"])[:1000])
            case "Runtime.consoleAPICalled" if about["type"] in {"error", "warning", "assert"}:
                self.problems.append(json.dumps(about["args"])[:1000])
            case "Log.entryAdded" if about["entry"]["level"] in {"error", "warning"}:
                self.problems.append(about["entry"]["text"])


def _high(descriptor: int) -> int:
    """The same file under a number that is not one of those the browser expects."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy
