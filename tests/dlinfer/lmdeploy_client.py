"""A server of LMDeploy in a process of its own, and a client of its OpenAI interface with nothing but the standard library."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import psutil

NAME = "smollm2"
CHAT = "/v1/chat/completions"
LMDEPLOY = (str(Path(sys.executable).with_name("lmdeploy")), "serve", "api_server")
DLINFER = (sys.executable, "-m", "dlinfer", "serve")
_OPENER = build_opener(ProxyHandler({}))  # the server is on this machine, whatever the proxy settings are


@dataclass
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def get(self, path: str) -> Any:
        """The JSON that a path answers, or its text where it is none."""
        with _OPENER.open(self.address + path, timeout=60) as response:
            text = response.read().decode()
        with suppress(json.JSONDecodeError):
            return json.loads(text)
        return text

    def post(self, body: Any, timeout: float = 150, path: str = CHAT) -> tuple[int, Any]:
        """The status and the JSON of a completion; errors of HTTP are answers too. A string is sent as it is."""
        try:
            with self._open(body, timeout, path) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def ask(self, question: str, tokens: int) -> str:
        """The greedy answer, in one piece."""
        status, answer = self.post(chat(question, tokens))
        assert status == 200, answer
        text: str = answer["choices"][0]["message"]["content"]
        return text

    @contextmanager
    def stream(self, question: str, tokens: int, **settings: Any) -> Iterator[Iterator[tuple[float, str]]]:
        """The pieces of the greedy answer and when each came. Leaving the context closes the connection."""
        with self._open(chat(question, tokens) | settings | {"stream": True}, timeout=150) as response:
            yield _pieces(response)

    def metric(self, name: str) -> float:
        """One of the server's own counters."""
        for line in self.get("/metrics").splitlines():
            if line.startswith(f"lmdeploy:{name}{{"):
                return float(line.split()[-1])
        raise AssertionError(f"the server has no counter {name}")

    def tree(self) -> list[psutil.Process]:
        """The server's process and those that it started."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def peak_memory(self) -> int:
        """The largest resident memory of each process so far, added up, in MiB."""
        peaks = 0
        for process in self.tree():
            status = Path(f"/proc/{process.pid}/status").read_text()
            peaks += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return peaks // 1024

    def stop(self, number: signal.Signals = signal.SIGINT) -> dict[str, Any]:
        """Ask the server to end, as Ctrl+C does or by another signal, and tell how it did."""
        tree, start = self.tree(), time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        _, alive = psutil.wait_procs(tree[1:], timeout=10)
        return {"code": code, "seconds": time.monotonic() - start, "left": [p.pid for p in alive]}

    def _open(self, body: Any, timeout: float, path: str = CHAT) -> Any:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        request = Request(self.address + path, data, {"Content-Type": "application/json"})
        return _OPENER.open(request, timeout=timeout)


def chat(question: str, tokens: int) -> dict[str, Any]:
    """The body of a request for a greedy answer."""
    messages = [{"role": "user", "content": question}]
    return {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": tokens}


def _pieces(response: Any) -> Iterator[tuple[float, str]]:
    for line in response:
        data = line.decode().strip().removeprefix("data:").strip()
        if data == "[DONE]":
            return
        if data:
            text = json.loads(data)["choices"][0]["delta"].get("content")
            if text:
                yield time.monotonic(), text


class _LostRace(Exception):
    """LMDeploy ended a helper process of its own while the engine's process was still talking to it."""


@contextmanager
def serving(folder: Path, log: Path, *options: str, program: Sequence[str] = LMDEPLOY) -> Iterator[Server]:
    """A server of a model's folder on a free port; whatever happens, none of its processes is left."""
    server = _started(program, folder, log, options)
    try:
        yield server
    finally:
        _kill(server)


def _started(
    program: Sequence[str], folder: Path, log: Path, options: Sequence[str], attempts: int = 4
) -> Server:
    """A server that answers. LMDeploy 0.18 loses a race while starting on a busy machine; then it is started again."""
    for attempt in range(attempts):
        server = _start(program, folder, log, options)
        try:
            _wait(server, seconds=150)
        except BaseException as error:
            _kill(server)
            if not isinstance(error, _LostRace) or attempt == attempts - 1:
                raise
        else:
            return server
    raise AssertionError("unreachable")


def _start(program: Sequence[str], folder: Path, log: Path, options: Sequence[str]) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*program, str(folder), "--backend", "pytorch", "--device", "ascend"]
    command += ["--server-name", "127.0.0.1", "--server-port", str(port), "--model-name", NAME, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    return Server(process, f"http://127.0.0.1:{port}", log)


def _wait(server: Server, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.process.poll() is not None:
            log = server.log.read_text()
            lost = "mp_engine_proc" in log and "EOFError" in log
            raise (_LostRace if lost else AssertionError)(f"the server ended:\n{log[-6000:]}")
        with suppress(URLError, ConnectionError, TimeoutError):
            server.get("/health")
            return
        time.sleep(0.2)
    raise AssertionError(f"the server did not come up in {seconds} s:\n{server.log.read_text()[-6000:]}")


def _kill(server: Server) -> None:
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family = server.tree()
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    server.process.wait()
