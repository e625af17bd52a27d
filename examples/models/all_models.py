"""Several models of this folder in one process: `all_models.py llama3 vit`, or all of them without a name."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import training

MODELS = (
    "llama2",
    "llama3",
    "internlm2",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "internvl",
    "deepseek_v3",
    "bert",
    "vit",
    "resnet50",
    "mobilenet_v2",
    "diffusion_unet",
)


def load(name: str) -> training.Build:
    """How a model is built. Raises ImportError where the installed transformers does not have it."""
    build: training.Build = importlib.import_module(name).build
    return build


def main(arguments: Sequence[str] | None = None) -> None:
    options = training.options_for(__doc__, arguments, "models")
    unknown = sorted(set(options.models) - set(MODELS))
    if unknown:
        print(f"no such model: {', '.join(unknown)}. Known: {', '.join(MODELS)}.", file=sys.stderr)
        sys.exit(2)
    if options.reproducible:
        training.make_reproducible()
    results: dict[str, dict[str, Any]] = {}
    for name in options.models or MODELS:
        try:
            build = load(name)
        except ImportError as error:
            results[name] = {"missing": str(error).splitlines()[0]}
            print(f"{name}: not in this transformers: {results[name]['missing']}")
            continue
        try:
            results[name] = training.run(build, options)
        except Exception as error:  # the other models shall run all the same
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
            continue
        training.show(name, results[name])
    if options.json:
        training.write(options.json, results)
    sys.exit(1 if any("error" in result for result in results.values()) else 0)


if __name__ == "__main__":
    main()
