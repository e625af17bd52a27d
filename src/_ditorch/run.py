"""`ditorch run`: a script or a module, unchanged, with the mapping and the operator tools on.

The words are read by hand: what follows the script is the script's, whatever it looks like, and a run without tools must not
import a command-line library into the user's process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from _ditorch.ranks import LocalRanks, launched_rank
from _ditorch.run_tools import RunConfig, RunningTools, UsageError, follow_forked, follow_spawned
from dicore.main_module import (
    CannotRun,
    Program,
    expect_module,
    prepare_module,
    prepare_script,
    without_our_frames,
)
from dicore.suggestions import did_you_mean

if TYPE_CHECKING:
    from _ditorch.gates import Gate, GateChecker

__all__ = ["USAGE", "RunArguments", "main", "parse"]

USAGE = """\
Usage: ditorch run [OPTIONS] SCRIPT [ARGUMENTS]...
       ditorch run [OPTIONS] -m MODULE [ARGUMENTS]...

Run a program unchanged: the names of cuda lead to the chosen device, and operator tools look on.

Options:
{tools}
{gates}
  --always-on               --tool sentinel, for jobs in production: judge a few calls all the time
  --strict                  the gates autocompare and sentinel also fail on labels, such as lower_precision
  --allow NAME[:ARITHMETIC] with --strict: a label that is allowed, for operators (names or
                            patterns); may be repeated
  --profile FILE            with --strict: a device profile, which declares a device's arithmetic
  --results DIR             folder for all results (default: op_tools_results)
  --set TOOL.SETTING=VALUE  a setting of a tool that is on: time.top=20; see `ditorch config`
  --no-ditorch              do not map the names of cuda
  -m MODULE                 run a module, as `python -m` does
  --help                    show this

--tool, --gate, --results and --set may also stand directly after the script, up to the first word
that is none of them; behind a gate so may --strict, --allow and --profile. Put -- before the
arguments of a script that has such an option itself:
    ditorch run train.py --tool time -- --tool hammer
The exit code is the program's; 2 if it could not be started; of a gate, 1 if it fails and 5 if
nothing is known."""

_VALUES = ("--tool", "--gate", "--results", "--set")
_OF_GATES = ("--strict", "--allow", "--profile")
_FLAGS = ("--always-on", "--no-ditorch", "--help", "-h")
_USAGE_ERROR = 2


@dataclass
class RunArguments:
    """What the command line asks for."""

    tools: list[str] = field(default_factory=list)
    gates: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)
    strict: bool = False
    allow: list[str] = field(default_factory=list)
    profiles: list[str] = field(default_factory=list)
    results: str | None = None
    mapping: bool = True
    help: bool = False
    module: bool = False
    target: str = ""
    arguments: list[str] = field(default_factory=list)

    def take(self, option: str, value: str) -> None:
        """Note an option that has a value."""
        if not value:
            raise UsageError(f"{option} needs a value.")
        if option == "--results":
            self.results = value
        elif option == "--set":
            self.settings.append(value)
        elif option == "--profile":
            self.profiles.append(value)
        else:
            names = [word.strip() for word in value.split(",") if word.strip()]
            if not names:
                raise UsageError(f"{option} {value}: there is no name in it.")
            {"--tool": self.tools, "--gate": self.gates, "--allow": self.allow}[option].extend(names)


def parse(words: Sequence[str]) -> RunArguments:
    """Read the words after `ditorch run`. Raises UsageError."""
    given = RunArguments()
    rest = list(words)
    closed = False  # by --, which makes everything after the script the script's
    while rest and not given.target:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--strict":
            given.strict = True
        elif name in (*_VALUES, *_OF_GATES):
            given.take(name, value if equals else _value_of(name, rest))
        elif word == "--always-on":
            given.tools.append("sentinel")
        elif word == "--no-ditorch":
            given.mapping = False
        elif word in ("--help", "-h"):
            given.help = True
            return given
        elif word == "-m":
            given.module, given.target = True, _value_of("-m", rest)
        elif word == "--" and not closed:
            closed = True
        elif word.startswith("-") and word != "-" and not closed:
            hint = did_you_mean(name, (*_VALUES, *_OF_GATES, *_FLAGS, "-m"))
            raise UsageError(f"unknown option {word}.{hint} Options of the script stand after the script.")
        else:
            given.target = word
    if not given.target:
        raise UsageError("there is no script to run. Give a Python script, or -m and a module.")
    given.arguments = rest if closed else _after_the_script(given, rest)
    return given


def _after_the_script(given: RunArguments, words: list[str]) -> list[str]:
    """Take our options from the front; what remains is the script's."""
    rest = list(words)
    while rest:
        name, equals, value = rest[0].partition("=")
        if rest[0] == "--":
            return rest[1:]
        # What only means something beside a gate is the script's where there is none.
        if name not in (*_VALUES, *(_OF_GATES if given.gates else ())):
            break
        del rest[0]
        if name == "--strict":
            given.strict = True
            continue
        given.take(name, value if equals else _value_of(name, rest))
    return rest


def _value_of(option: str, rest: list[str]) -> str:
    if not rest:
        raise UsageError(f"{option} needs a value.")
    return rest.pop(0)


def main(words: Sequence[str]) -> NoReturn:
    """Run the program and leave as it leaves."""
    try:
        given = parse(words)
        if given.help:
            print(_usage())
            sys.exit(0)
        gates: list[Gate] = []
        if given.gates:  # which import the storage of the tools
            from _ditorch.gates import parse_gate

            gates = [parse_gate(text) for text in given.gates]
        if given.strict:
            from _ditorch.gates import strict_gates

            gates = strict_gates(gates, given.allow, given.profiles)
        elif given.allow or given.profiles:
            raise UsageError(
                "--allow and --profile say which labels a strict gate allows: give --strict too."
            )
        tools = [*given.tools, *(gate.tool for gate in gates)]
        config = RunConfig.of(tools, given.results, given.settings, given.mapping)
        prepare = _prepare(given)
        _start_mapping(config.mapping)
        run = _Run(prepare, config, gates)
        ended = run.run(given.arguments)
    except (UsageError, CannotRun) as error:
        print(f"ditorch run: {error}", file=sys.stderr)
        sys.exit(_USAGE_ERROR)
    _leave(ended, run.prepared)


def _usage() -> str:
    from _ditorch.gates import gate_names
    from _ditorch.run_tools import offered

    names = ", ".join(tool.command_name for tool in offered())
    gates = ", ".join(gate_names())
    tools = _option("--tool NAME", f"turn a tool on: {names}; may be repeated")
    text = (
        f"fail with exit code 1 if the tool finds something: {gates} (such as memory=8G); turns the tool on"
    )
    return USAGE.format(tools=tools, gates=_option("--gate NAME", text))


def _option(name: str, text: str) -> str:
    """An option in the two columns of USAGE."""
    return textwrap.fill(text, 100, initial_indent=f"  {name:<26}", subsequent_indent=" " * 28)


def _prepare(given: RunArguments) -> Callable[[], Program]:
    """A script is read now. A module is only looked for: its packages are part of the program and need the tools."""
    if given.module:
        expect_module(given.target, given.arguments)
        return functools.partial(prepare_module, given.target)
    try:
        prepared = prepare_script(given.target)
        return lambda: prepared
    except SyntaxError as error:
        error.__traceback__ = None  # Python shows the place in the script, and no frames
        sys.excepthook(SyntaxError, error, None)
        sys.exit(1)


def _start_mapping(wanted: bool) -> None:
    from _ditorch.session import of_process

    session = of_process()
    session.held = not wanted
    try:
        session.start(quiet=True)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{error} To run without the mapping, give --no-ditorch.") from error


class _Run:
    """One program with its tools and gates."""

    def __init__(self, prepare: Callable[[], Program], config: RunConfig, gates: Sequence[Gate]) -> None:
        self.prepare = prepare
        self.prepared: Program | None = None
        self.config = config
        self.gates = gates
        self.launched = launched_rank()
        self.speaks = self.launched.rank == 0
        self.pid = os.getpid()

    def run(self, arguments: Sequence[str]) -> BaseException | None:
        """Run the program between the start and the end of the tools; how it ended."""
        tools = RunningTools(self.config, quiet=not self.speaks)
        tools.start()
        checker = self._checker(tools)
        if self.config.mapping or self.config.tools:
            follow_spawned(self.config)
        if tools.started:
            follow_forked(tools)
        try:
            ended = self._outcome(arguments)
        except CannotRun:
            tools.stop_silently()
            raise
        if not tools.started:
            return ended
        ended = _wait_for_threads() or ended
        if checker is not None:
            checker.hold_logs()
        tools.stop()
        if os.getpid() != self.pid:
            return ended  # a child that the program forked: the rest is its parent's
        try:
            code = 0 if _failed(ended) or checker is None else self._gate(checker)
            if self.speaks:
                _say_where(tools.folders)
            if code:
                self.local_ranks.wait()
        except KeyboardInterrupt as error:
            return error
        return SystemExit(code) if code else ended

    def _checker(self, tools: RunningTools) -> GateChecker | None:
        if not self.gates:
            return None
        from _ditorch.gates import GateChecker

        checker = GateChecker(self.gates, tools.started, self.launched)
        self.local_ranks = LocalRanks(self.launched, checker.results)
        self.local_ranks.begin()
        return checker

    def _outcome(self, arguments: Sequence[str]) -> BaseException | None:
        try:
            self.prepared = self.prepare()
        except CannotRun:
            raise
        except BaseException as error:  # of a package that the module is in
            return error
        try:
            self.prepared.run(arguments)
        except BaseException as error:  # also SystemExit and KeyboardInterrupt: the tools end first
            return error
        return None

    def _gate(self, checker: GateChecker) -> int:
        try:
            code, lines = checker.verdict()
        except Exception as error:  # of ours; a gate that was not looked at is not passed
            code, lines = 5, [f"nothing is known: the gates cannot be read: {type(error).__name__}: {error}"]
        who = "" if self.launched.is_single else f" rank {self.launched.rank}:"
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                print(line if line.startswith(" ") else f"ditorch:{who} {line}", file=sys.stderr)
        return code


def _failed(ended: BaseException | None) -> bool:
    if not isinstance(ended, SystemExit):
        return ended is not None
    # A program may leave with any object, such as a tensor: none of its own methods is asked.
    return not (ended.code is None or (isinstance(ended.code, int) and ended.code == 0))


def _wait_for_threads() -> BaseException | None:
    """The program's threads still compute; Python would wait for them too, but after us. In the same order."""
    try:
        for name in ("concurrent.futures.process", "concurrent.futures.thread"):
            # What a pool has been given it computes; its threads wait for the end of the interpreter.
            end_of_pools: Any = getattr(sys.modules.get(name), "_python_exit", None)
            if end_of_pools is not None:
                end_of_pools()
        own = threading.current_thread()
        while waiting := [each for each in threading.enumerate() if not each.daemon and each is not own]:
            for thread in waiting:
                thread.join()
    except BaseException as error:
        return error
    return None


def _say_where(folders: Sequence[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed standard output is no reason to fail
        for folder in map(_short, folders):
            print(
                f"ditorch: results are in {folder}; to read them: op-tools report {shlex.quote(folder)}",
                flush=True,
            )


def _short(folder: str) -> str:
    """As one would write it from here."""
    try:
        relative = os.path.relpath(folder)
    except OSError:  # the working folder is gone
        return folder
    return folder if relative.startswith(os.pardir) else relative


def _leave(ended: BaseException | None, prepared: Program | None) -> NoReturn:
    """Leave as the program did. The interpreter itself prints, runs exit handlers and finds the exit code."""
    if ended is None:
        sys.exit(0)
    hook = sys.excepthook
    beginning = prepare_module.__code__ if prepared is None else prepared.code

    def show(kind: Any, error: BaseException, trace: Any) -> None:
        without_our_frames(error, beginning)
        hook(kind, error, error.__traceback__)

    sys.excepthook = show
    raise ended
