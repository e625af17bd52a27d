"""`dlinfer serve`: LMDeploy's server, started so that it starts."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from dlinfer.vendor.device_type import DEVICE_TYPE

_DEFAULTS = {"--backend": "pytorch", "--device": DEVICE_TYPE}


def serve_command(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A model: a folder of Hugging Face.")],
) -> None:
    """Serve a model with LMDeploy on dlinfer's operators, by OpenAI's interface.

    All further options are those of `lmdeploy serve api_server`, which this is, without a race between its processes.
    """
    if find_spec("lmdeploy") is None:
        print("dlinfer: LMDeploy is not installed; docs/lmdeploy.md says how", file=sys.stderr)
        raise typer.Exit(2)
    from dlinfer.framework.lmdeploy_server import serve

    given = context.args
    added = [
        word
        for option, value in _DEFAULTS.items()
        if not any(word.partition("=")[0] == option for word in given)
        for word in (option, value)
    ]
    serve([folder, *added, *given])
