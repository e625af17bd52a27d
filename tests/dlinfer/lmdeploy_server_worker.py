"""Serves SmolLM2 with `lmdeploy serve api_server --device ascend`, does what clients do, and writes down what came of it.

python tests/dlinfer/lmdeploy_server_worker.py OUT.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lmdeploy_client import NAME, Server, chat, serving

from dlinfer.checkpoints import smollm2

#: None is answered with a character that takes several tokens: LMDeploy drops text when an answer ends inside one.
QUESTIONS = (
    "What is the capital of France?",
    "Name a colour.",
    "How many days has a week?",
    "Which animal barks?",
    "What do cows eat?",
)
CLIENTS = 50
SHORT = 8
#: Blocks of 64 tokens. The long question takes eight of them, so blocks that three leavers keep would be missed.
BLOCKS = 20
LONG_QUESTION = "Continue: " + "one two three " * 140
WRONG: dict[str, Any] = {
    "no JSON": "{not json",
    "no messages": {"model": NAME},
    "empty messages": {"model": NAME, "messages": []},
    "another model": {**chat("Hi", 4), "model": "another"},
    "temperature": {**chat("Hi", 4), "temperature": -3},
    "length": {**chat("Hi", 4), "max_tokens": -1},
    "too long": chat("word " * 2000, 4),
}


def streaming(server: Server) -> dict[str, Any]:
    """One answer in one piece, and the same in a stream."""
    question, tokens = "Tell me about the sea.", 24
    whole = server.ask(question, tokens)
    start = time.monotonic()
    with server.stream(question, tokens) as pieces:
        came = list(pieces)
    return {
        "whole": whole,
        "pieces": [text for _, text in came],
        "first": came[0][0] - start,
        "last": came[-1][0] - start,
        "tokens": tokens,
    }


def crowd(server: Server) -> dict[str, Any]:
    """Many clients at once; every other one streams. Each answer beside the one that a lone client gets."""
    alone = {question: server.ask(question, SHORT) for question in QUESTIONS}

    def one(number: int) -> tuple[str, str]:
        question = QUESTIONS[number % len(QUESTIONS)]
        if number % 2:
            return question, server.ask(question, SHORT)
        with server.stream(question, SHORT) as pieces:
            return question, "".join(text for _, text in pieces)

    start = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(one, range(CLIENTS)))
    return {"alone": alone, "answers": answers, "seconds": time.monotonic() - start}


def leaving(server: Server) -> dict[str, Any]:
    """Clients that read two pieces of a long answer and go away; then one that needs the blocks they had."""
    limit = 400
    for _ in range(3):
        with server.stream(LONG_QUESTION, limit) as pieces:
            next(pieces), next(pieces)
    settled, written = False, server.metric("generation_tokens_total")
    for _ in range(40):
        time.sleep(0.5)
        now = server.metric("generation_tokens_total")
        settled, written = now == written, now
        if settled:
            break
    start = time.monotonic()
    status, answer = server.post(chat(LONG_QUESTION, 4))
    return {
        "limit": 3 * limit,
        "settled": settled,
        "written": written,
        "status": status,
        "prompt_tokens": answer["usage"]["prompt_tokens"],
        "seconds": time.monotonic() - start,
    }


def wrong(server: Server) -> dict[str, Any]:
    """Requests that no server should answer."""
    answers = {name: server.post(body) for name, body in WRONG.items()}
    # LMDeploy's engine ends at this one: all later requests would be told so.
    empty = {"model": NAME, "prompt": "", "max_tokens": 4}
    return answers | {"no tokens": server.post(empty, path="/v1/completions")}


def example(server: Server) -> dict[str, Any]:
    """The client among the examples, as a person starts it."""
    program = Path(__file__).parents[2] / "examples" / "ask_server.py"
    command = [sys.executable, str(program), QUESTIONS[0], "--address", server.address, "--length", "16"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return {"code": run.returncode, "output": run.stdout, "errors": run.stderr}


def main(out: Path) -> None:
    """One server, all of the above in turn, then its end."""
    # The server inherits this. Threads that wake then do not interrupt others, which is how LMDeploy's own processes lose a
    # race while they start on a busy machine: the engine is told of its port and its teller is ended in the middle of it.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    start = time.monotonic()
    options = ("--session-len", "1024", "--max-batch-size", "16", "--num-gpu-blocks", str(BLOCKS))
    with serving(smollm2.folder(), out.with_name("server.log"), *options) as server:
        results: dict[str, Any] = {"seconds_to_start": time.monotonic() - start}
        results["models"] = [model["id"] for model in server.get("/v1/models")["data"]]
        results["before"] = server.ask(QUESTIONS[0], 16)
        results["leaving"] = leaving(server)
        results["streaming"] = streaming(server)
        results["crowd"] = crowd(server)
        results["wrong"] = wrong(server)
        results["example"] = example(server)
        results["after"] = server.ask(QUESTIONS[0], 16)
        results["peak_memory"] = server.peak_memory()
        results["stopped"] = server.stop()
        results["log"] = server.log.read_text()[-4000:]
    results["seconds"] = time.monotonic() - start
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
