"""Bring the checkout's `.venv` up to date: torch, build tools, LMDeploy, triton, the project itself. Standard library only.

Every step has a key (the pinned versions, or a hash of the sources) that is written down once the step has
succeeded; a step whose key has not changed is skipped, so that `make` costs nothing when nothing changed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMPS = VENV / "stamps"
SOURCES = ("pyproject.toml", "CMakeLists.txt", "cmake", "csrc", "include", "src", "vendors")
CXX_PROBE = "#include <optional>\nint main() { return std::optional<int>{0}.value(); }\n"


class Failure(Exception):
    """Something the user has to mend: what was wrong, what was expected, what to do."""

    def __init__(self, wrong: str, expected: str, remedy: str) -> None:
        super().__init__(f"error: {wrong}\n  expected: {expected}\n  do: {remedy}")


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def check_venv_module() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise Failure(
            f"{sys.executable} has no module {' and no module '.join(missing)}",
            "a Python that can create virtual environments",
            f"install it (on Debian or Ubuntu: apt install python{version}-venv)",
        )


def check_compiler() -> str:
    """Return the C++ compiler, once it has compiled a C++17 program: its name alone proves nothing."""
    name = os.environ.get("CXX", "g++")
    compiler = shutil.which(name.split()[0])
    if compiler and stamped("compiler") == compiler:
        return compiler
    if compiler is None:
        raise Failure(
            f"the C++ compiler {name!r} was not found",
            "a compiler for C++17 (g++ 9 or newer)",
            "install it (on Debian or Ubuntu: apt install g++), or name another one with CXX=...",
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cpp"
        source.write_text(CXX_PROBE)
        command = [*name.split(), "-std=c++17", str(source), "-o", str(Path(folder) / "probe")]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Failure(
            f"{compiler} did not compile a small C++17 program:\n{result.stderr.strip()}",
            "a working compiler for C++17 (g++ 9 or newer), with its standard library",
            "install a newer one (on Debian or Ubuntu: apt install g++), or name another one with CXX=...",
        )
    return compiler


def run(command: list[str], log: Path, remedy: str) -> None:
    """Run a command quietly: everything goes to the log, progress of the compiler to the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    live = sys.stdout.isatty()
    with (
        log.open("w") as out,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            progress = re.search(r"\[(\d+)/(\d+)\]", line)
            if live and progress:
                print(f"\r    compiled {progress[1]} of {progress[2]} ", end="", flush=True)
    if live:
        print("\r" + " " * 40 + "\r", end="", flush=True)
    if process.returncode:
        cause = first_error(log.read_text(errors="replace").splitlines())
        where = log.relative_to(ROOT)
        raise Failure(
            f"this command failed: {' '.join(command)}\n{cause}", "exit status 0", f"{remedy}; log: {where}"
        )


def first_error(lines: list[str], shown: int = 20) -> str:
    """The first error and what follows it; later ones are mostly its consequences. Without any, the end."""
    errors = (i for i, line in enumerate(lines) if re.search(r"\berror\b\s*:|CMake Error", line, re.I))
    start = next(errors, max(0, len(lines) - shown))
    return "\n".join(lines[start : start + shown])


def stamped(step: str) -> str | None:
    path = STAMPS / step
    return path.read_text() if path.exists() else None


def stamp(step: str, key: str) -> None:
    STAMPS.mkdir(parents=True, exist_ok=True)
    (STAMPS / step).write_text(key)


def venv_python() -> str:
    return str(VENV / "bin" / "python")


def pip_install(step: str, key: str, arguments: list[str]) -> None:
    """Install once per key. A failure leaves no stamp, so the next run tries again."""
    if stamped(step) == key:
        return
    say(f"{step}: pip install {' '.join(arguments)}")
    command = [venv_python(), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    remedy = "check the network and pip's settings (pip config list), then run the same command again"
    run(command, ROOT / "build" / f"{step}.log", remedy)
    stamp(step, key)


def make_venv() -> None:
    version = ".".join(map(str, sys.version_info[:3]))
    if stamped("python") == version and Path(venv_python()).exists():
        return
    say(f"python: create .venv with Python {version} ({sys.executable})")
    shutil.rmtree(VENV, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(VENV)], ROOT / "build" / "venv.log", "see the message above")
    stamp("python", version)


def requirement_files(path: Path) -> Iterator[Path]:
    """The file and those it includes with `-r`, so that an edit of any of them is noticed."""
    yield path
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            yield from requirement_files(path.parent / line[3:].strip())


def install_torch(wanted: str | None) -> str:
    """Install the pinned torch, or the version asked for, before anything that could pull in another one."""
    lines = (ROOT / "requirements" / "torch.txt").read_text().splitlines()
    pinned = next(line for line in lines if line.startswith("torch=="))
    requirement = f"torch=={wanted}" if wanted else pinned
    pip_install("torch", requirement, [requirement])
    return requirement


def install_requirements(torch: str) -> None:
    """Install the tools; naming torch again keeps a library that depends on it from bringing another one."""
    files = list(requirement_files(ROOT / "requirements" / "dev.txt"))
    key = hashlib.sha256("".join(f.read_text() for f in files).encode()).hexdigest()
    pip_install("tools", key + (stamped("torch") or ""), [torch, "-r", "requirements/dev.txt"])


def install_lmdeploy(torch: str) -> None:
    """Install LMDeploy beside this torch: its own list of dependencies would bring another one, and CUDA."""
    common, alone = "requirements/lmdeploy.txt", "requirements/lmdeploy-alone.txt"
    keys = [hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in (common, alone)]
    pip_install("lmdeploy", keys[0] + (stamped("tools") or ""), [torch, "-r", common])
    pip_install("lmdeploy-alone", keys[1] + (stamped("lmdeploy") or ""), ["--no-deps", "-r", alone])


def install_triton() -> None:
    """Install triton where only those look who name the folder: its kernels are compiled and interpreted without a GPU."""
    name = "requirements/triton.txt"
    key = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    pip_install("triton", key, ["--no-deps", "--upgrade", "--target", ".venv/triton", "-r", name])


def source_files() -> Iterator[Path]:
    for name in SOURCES:
        path = ROOT / name
        if path.is_file():
            yield path
        elif path.is_dir():
            files = (f for f in path.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
            yield from sorted(files)


def source_hash() -> str:
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build_project(torch: str, compiler: str) -> None:
    """Compile and install when a source changed; ninja recompiles only what depends on the change."""
    key = f"{source_hash()} {torch} {compiler}"
    if stamped("project") == key:
        return
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-{torch.replace('==', '-')}"
    say(f"project: compile and install (C++ with {compiler}, log in build/project.log)")
    os.environ.update(
        TORCH_DEVICE_BACKEND_AUTOLOAD="0", PATH=f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"
    )
    if shutil.which("ccache"):
        os.environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
    started = time.monotonic()
    command = [venv_python(), "-m", "pip", "install", "--disable-pip-version-check", "--verbose", "--no-deps"]
    command += ["--no-build-isolation", "--force-reinstall", f"--config-settings=build-dir=build/{tag}", "."]
    run(command, ROOT / "build" / "project.log", "mend the first error above and run the same command again")
    stamp("project", key)
    say(f"project: done in {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", default=None, help="torch version to use instead of the pinned one")
    options = parser.parse_args()
    try:
        check_venv_module()
        compiler = check_compiler()
        make_venv()
        stamp("compiler", compiler)
        torch = install_torch(options.torch)
        install_requirements(torch)
        install_lmdeploy(torch)
        install_triton()
        build_project(torch, compiler)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the next run goes on where this one stopped", file=sys.stderr)
        return 130
    say(f"environment: .venv is up to date (Python {sys.version.split()[0]}, {torch})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
