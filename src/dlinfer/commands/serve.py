"""`dlinfer serve`: LMDeploy's server, started so that it starts."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dlinfer.commands.doctor import setting_problems
from dlinfer.framework.lmdeploy.devices import DEVICE_TYPE

_DEFAULTS = {"--backend": "pytorch", "--device": DEVICE_TYPE}
# LMDeploy's own.
_ADDRESS, _PORT = "0.0.0.0", "23333"


def serve_command(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="A model: a folder of Hugging Face.")],
) -> None:
    """Serve a model with LMDeploy on dlinfer's operators, by OpenAI's interface.

    All further options are those of `lmdeploy serve api_server`, which this is, without a race between its processes;
    `lmdeploy serve api_server --help` lists them.
    """
    if find_spec("lmdeploy") is None:
        _refuse("LMDeploy is not installed; docs/lmdeploy.md says how")
    given = context.args
    for problem in setting_problems():  # the engine's process would find them, and LMDeploy wait for it
        _refuse(problem)
    _require_model(folder)
    _require_port(_option(given, "--server-name", _ADDRESS), _option(given, "--server-port", _PORT))
    from dlinfer.framework.lmdeploy.server import serve

    added = [
        word
        for option, value in _DEFAULTS.items()
        if _option(given, option, "") == ""
        for word in (option, value)
    ]
    serve([folder, *added, *given])


def _refuse(text: str) -> NoReturn:
    print(f"dlinfer serve: {text}", file=sys.stderr)
    raise typer.Exit(2)


def _option(words: list[str], name: str, default: str) -> str:
    """The value of an option, written as two words or as one with `=`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == name:
            return following
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return default


def _require_model(folder: str) -> None:
    """LMDeploy takes what is no folder for a name on a model hub, and says so in pages of tracebacks."""
    path = Path(folder)
    name_on_a_hub = not path.exists() and folder.count("/") == 1 and not folder.startswith(("/", ".", "~"))
    if not name_on_a_hub and not (path / "config.json").is_file():
        reason = "it has no config.json" if path.is_dir() else "there is no such folder"
        _refuse(
            f"{folder} is not a folder with a model: {reason}. Give one as transformers' save_pretrained writes it."
        )


def _require_port(address: str, port: str) -> None:
    """Before minutes of loading: LMDeploy asks for the port last, and hangs when it does not get it."""
    if not port.isdecimal() or not 0 < int(port) < 65536:
        _refuse(f"--server-port {port} is no port. Give a number from 1 to 65535.")
    try:
        family, kind, _, _, endpoint = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind(endpoint)
    except OSError as error:
        reason = error.strerror or error
        _refuse(
            f"cannot listen on port {port} of {address}: {reason}. Choose others with --server-port and --server-name."
        )
