"""LMDeploy in a process of its own, which does one batch whenever it is asked to.

The adaptor gives torch's names for cuda another meaning, so LMDeploy and plain transformers do not share a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any

BATCH = 8
TOKENS = 48
_PROMPT = "The keeper of the lighthouse looked out over the water, and number {} of the ships was"


class EngineError(RuntimeError):
    """LMDeploy cannot be measured; says why."""


class Engine:
    """The other process, as seen from here."""

    def __init__(self) -> None:
        if find_spec("lmdeploy") is None:
            raise EngineError("it is not installed")
        # A file, not a pipe: nobody reads along.
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Engine:
        self._answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def seconds_per_token(self) -> float:
        """CPU seconds of a whole batch, prompts and scheduling included, for each token that was written."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        found = self._answer()
        return float(found["seconds"] / found["tokens"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        self._process.wait()
        self._said.seek(0)
        raise EngineError((self._said.read().strip().splitlines() or ["its process ended"])[-1])


def serve() -> None:
    """What the other process does: a line for 'ready', then one for each line it reads."""
    # LMDeploy prints what it likes; the answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**content: float) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    import lmdeploy  # type: ignore[import-untyped]

    from dlinfer.checkpoints import smollm2

    config = lmdeploy.PytorchEngineConfig(
        device_type="ascend", num_gpu_blocks=64, session_len=256, max_batch_size=BATCH, eager_mode=True
    )
    settings = lmdeploy.GenerationConfig(max_new_tokens=TOKENS, ignore_eos=True, do_sample=False)
    prompts = [_PROMPT.format(number) for number in range(BATCH)]
    with lmdeploy.pipeline(str(smollm2.folder()), backend_config=config, log_level="ERROR") as pipe:
        answer(ready=1)
        for _ in sys.stdin:
            started = time.process_time()
            found = pipe(prompts, gen_config=settings, do_preprocess=False)
            answer(seconds=time.process_time() - started, tokens=sum(len(a.token_ids) for a in found))


if __name__ == "__main__":
    serve()
