"""`dicp explain`: what a backend makes of a function of the user's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dicp.errors import CommandLineError

if TYPE_CHECKING:
    import torch

__all__ = ["explain_command", "function_named", "value_of"]

_TENSOR = re.compile(r"(?P<dtype>[a-z]+\d*)\[(?P<sizes>[\d,\s]*)\](?:@(?P<device>\S+))?")


def explain_command(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function or module, as `models:block` or `models.py:block`; of a class"
            " of modules an object is made.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ARGUMENT]...",
            help="Tensors as `float32[2,8]` or `int64[3]@dipu`, of random values; numbers"
            " and texts as in Python.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="The backend's name.")] = "hostgraph",
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Compile for any sizes.")] = False,
    gradients: Annotated[
        bool,
        typer.Option("--gradients", help="Floating-point tensors require gradients: show the backward too."),
    ] = False,
    freezing: Annotated[bool, typer.Option("--freezing", help="Weights are constants.")] = False,
    show: Annotated[
        str, typer.Option(help="What is printed: graph, passes, steps, artifacts, executor; or all.")
    ] = "steps,artifacts",
    page: Annotated[Path | None, typer.Option(help="Also write an HTML page with a drawing.")] = None,
) -> None:
    """Compile a function for these arguments, run it once, and show graphs, fall-backs with reasons, kernels and code.

    Exit code 0: all operators are compiled; 1: some run eagerly; 2: wrong usage.
    """
    import torch

    from dicp.explanation import SECTIONS, explained

    sections = SECTIONS if show == "all" else tuple(part.strip() for part in show.split(",") if part.strip())
    unknown = [section for section in sections if section not in SECTIONS]
    if unknown:
        raise CommandLineError(f"--show {unknown[0]}: expected some of {', '.join(SECTIONS)}, or all.")
    target = function_named(function)
    values = [value_of(text, gradients=gradients) for text in arguments or ()]
    with torch.set_grad_enabled(gradients):
        found = explained(
            target, values, {}, backend, dynamic=dynamic or None, gradients=gradients,
            options={"freezing": True} if freezing else None,
        )  # fmt: skip
    print(found.text(sections), end="")
    if page is not None:
        try:
            found.write_page(page)
        except OSError as error:
            raise CommandLineError(f"--page {page}: {error.strerror or error}.") from error
        print(f"page: {page}")
    graphs = found.graphs
    raise typer.Exit(0 if graphs and all(g.compiled_operators == g.operators for g in graphs) else 1)


def function_named(text: str) -> Callable[..., Any]:
    """The object that `module:name` or `file.py:name` names. Raises CommandLineError."""
    import torch

    where, colon, name = text.rpartition(":")
    if not (where and colon and name):
        raise CommandLineError(
            f"{text!r} names no function. Give MODULE:FUNCTION, such as models:block or models.py:block."
        )
    path = Path(where)
    folder, module = (
        (str(path.resolve().parent), path.stem) if path.suffix == ".py" else (str(Path.cwd()), where)
    )
    sys.path.insert(0, folder)
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise CommandLineError(f"there is no module {where!r}; it was looked for in {folder} too.") from error
    except AttributeError as error:
        raise CommandLineError(f"{where} has no {name!r}.") from error
    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        found = found()
    if not callable(found):
        raise CommandLineError(f"{text} is a {type(found).__name__}, expected a function or module.")
    return found  # type: ignore[no-any-return]


def value_of(text: str, *, gradients: bool = False) -> Any:
    """An argument of the command line. Raises CommandLineError."""
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    return _tensor(text, found, gradients)


def _tensor(text: str, found: re.Match[str], gradients: bool) -> torch.Tensor:
    import torch

    dtype = getattr(torch, found["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise CommandLineError(
            f"{text!r}: there is no dtype {found['dtype']!r}. Give one of torch's, such as float32."
        )
    sizes = [int(size) for size in found["sizes"].split(",") if size.strip()]
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        value = torch.randn(sizes, generator=generator).to(dtype)
    else:
        value = torch.randint(0, 2, sizes, generator=generator).to(dtype)
    try:
        value = value.to(found["device"] or "cpu")
    except RuntimeError as error:
        raise CommandLineError(f"{text!r}: {str(error).splitlines()[0]}") from error
    return value.requires_grad_(gradients and dtype.is_floating_point)
