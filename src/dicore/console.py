"""What programs print and how they end: one console, one form of tables, one progress bar.

rich and prettytable load with the first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

__all__ = [
    "WIDTH",
    "ProgressBar",
    "counted",
    "facts_table",
    "make_console",
    "make_table",
    "plain_table",
    "progress_bar",
    "run_program",
]

WIDTH = 100
"""Columns of what goes to a file or a pipe, where rich would take 80."""


def make_console(stream: TextIO | None = None, *, markup: bool = True) -> Console:
    """A terminal's own width; 100 columns in a file or a pipe."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    return Console(file=stream, width=None if stream.isatty() else WIDTH, highlight=False, markup=markup)


def run_program(
    name: str,
    program: Callable[..., object],
    arguments: Sequence[str] | None,
    usage_errors: tuple[type[Exception], ...],
) -> None:
    """A console script: `usage_errors` are one line and exit code 2, Ctrl-C is 130, a reader that went away is no error."""
    try:
        program(args=list(sys.argv[1:] if arguments is None else arguments))
    except usage_errors as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def make_table(*columns: str, title: str | None = None, **options: Any) -> Table:
    """A table with its title on the left; columns with options of their own are added afterwards."""
    from rich.table import Table

    return Table(*columns, title=title, title_justify="left", **options)


def facts_table(title: str, facts: dict[str, str]) -> Table:
    """Two columns, name and value."""
    from rich.markup import escape

    table = make_table(title=title, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(escape(name), escape(value))
    return table


def counted(count: int, noun: str, thousands: str = "") -> str:
    """`1 case`, `2 cases`: nouns that take an s."""
    return f"{count:{thousands}} {noun}{'' if count == 1 else 's'}"


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A bordered table with centred cells, as text."""
    from prettytable import PrettyTable

    table = PrettyTable(list(columns))
    # A line break inside a cell would make two rows of one.
    table.add_rows([[str(cell).replace("\r", " ").replace("\n", " ") for cell in row] for row in rows])
    return str(table.get_string())


class ProgressBar:
    """A bar on standard error, so that a pipe gets the output alone; nothing where no terminal is there."""

    def __init__(self, progress: Progress | None, label: str, total: int | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task(label, total=total, note="")

    def advance(self) -> None:
        """One more is done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task)

    def update(self, done: int, total: int, *, label: str | None = None, note: str = "") -> None:
        """So many of so many are done; the note stands behind the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=total, description=label, note=note)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While something else is printed."""
        if self._progress is None:
            yield
            return
        self._progress.stop()
        yield
        self._progress.start()


@contextmanager
def progress_bar(label: str, total: int | None = None, *, quiet: bool = False) -> Iterator[ProgressBar]:
    """A progress bar for the time of the block, unless `quiet`; it disappears at the end."""
    if quiet or not sys.stderr.isatty():
        yield ProgressBar(None, label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    # Not redirecting: rich would fold the lines of our tables.
    progress = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar = ProgressBar(progress, label, total)
    with progress:
        yield bar
