"""Three questions to a language model, through LMDeploy's pipeline on dlinfer's operators.

    python examples/lmdeploy_pipeline.py              SmolLM2-135M, out of a wheel of PyPI
    python examples/lmdeploy_pipeline.py FOLDER       another model in a folder, as LMDeploy loads it

LMDeploy is the published one. All that it is told is `device_type="ascend"`; the tensors live where DLINFER_DEVICE says.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

QUESTIONS = ["Shanghai is", "Please introduce China", "How are you?"]


def main(
    model: Annotated[
        Path | None, typer.Argument(help="A folder with a model. Default: SmolLM2-135M.")
    ] = None,
    length: Annotated[int, typer.Option(min=1, help="How many tokens an answer has at most.")] = 256,
    cache: Annotated[
        float,
        typer.Option(min=0.001, max=0.999, help="The share of free memory for caches of keys and values."),
    ] = 0.4,
    chat: Annotated[bool, typer.Option(help="Put questions into the model's chat template.")] = False,
) -> None:
    """Print three questions and the model's answers."""
    folder = _folder(model)
    import lmdeploy
    from lmdeploy import PytorchEngineConfig

    config = PytorchEngineConfig(tp=1, cache_max_entry_count=cache, device_type="ascend")
    with lmdeploy.pipeline(str(folder), backend_config=config) as pipe:
        # `request_output_len` is a keyword of earlier releases, which dlinfer keeps alive.
        response = pipe(QUESTIONS, request_output_len=length, do_preprocess=chat)
    for question, answer in zip(QUESTIONS, response, strict=True):
        print(f"Q: {question}")
        print(f"A: {answer.text}")
        print()


def _folder(model: Path | None) -> Path:
    """The model's folder; what is missing is said before anything is loaded."""
    from dlinfer.checkpoints import smollm2

    if find_spec("lmdeploy") is None:
        raise typer.BadParameter("LMDeploy is not installed. docs/serving.md says how to install it.")
    if model is None:
        try:
            return smollm2.folder()
        except smollm2.CheckpointError as error:
            raise typer.BadParameter(str(error)) from None
    if not (model / "config.json").is_file():
        raise typer.BadParameter(f"{model} is not a folder with a model: it has no config.json.")
    return model


if __name__ == "__main__":
    typer.run(main)
