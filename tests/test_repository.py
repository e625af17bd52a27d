"""The repository as a whole: one version, pinned requirements, commands that exist and explain themselves, the demo."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("_ditorch", "op_tools", "diopi", "torch_dipu", "dicp", "dlinfer")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.null
class TestSources:
    def test_one_version(self) -> None:
        project = tomllib.loads(text("pyproject.toml"))["project"]
        for package in PACKAGES:
            found = re.search(r'^__version__ = "(.+)"', text(f"src/{package}/__init__.py"), re.M)
            assert found is not None and found[1] == project["version"], package
            assert (ROOT / "src" / package / "py.typed").exists()

    def test_requirements_are_pinned_and_complete(self) -> None:
        pins: dict[str, str] = {}
        for path in (ROOT / "requirements").glob("*.txt"):
            for line in path.read_text().splitlines():
                if line and not line.startswith(("#", "-r ")):
                    name, pinned, version = line.partition("==")
                    assert pinned and version, f"{path.name}: {line} is not pinned"
                    assert pins.setdefault(name, version) == version, f"{name} is pinned twice"
        project = tomllib.loads(text("pyproject.toml"))
        wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
        assert {re.split(r"[<>=]", requirement)[0] for requirement in wanted} <= set(pins)


def load(name: str) -> ModuleType:
    """A script of the repository as a module; scripts are in folders that are no packages."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    environment.pop("MAKEFLAGS", None)
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


@pytest.mark.null
class TestCommands:
    @pytest.mark.parametrize("target", ["help", "env", "demo", "test", "lint", "bench", "clean"])
    def test_make_targets_exist(self, target: str) -> None:
        result = run("make", "-n", target)
        assert result.returncode == 0, result.stderr
        assert f"make {target} " in run("make").stdout, "listed by `make` alone"

    def test_ci_runs_tests_and_demo(self) -> None:
        assert os.access(ROOT / ".ci" / "run", os.X_OK)
        commands = [line for line in text(".ci/run").splitlines() if line.startswith("make")]
        # The tests come last: their summary ends the log.
        assert commands[0].startswith("make demo DEMO_STEPS=") and commands[1:] == ["make test"]

    def test_make_test_runs_the_sweep_both_ways(self) -> None:
        planned = run("make", "-n", "test").stdout
        sweeps = ("DIPU_HOST_ALIAS=1", "DIPU_HOST_ALIAS=0")
        for step in ("ruff check", "mypy", "diopi.generate --check", "pytest", *sweeps):
            assert step in planned

    def test_unsuitable_python_is_explained(self) -> None:
        result = run("tools/bootstrap.sh", PYTHON="no-such-python")
        assert result.returncode == 2
        assert "Python 3.11 or 3.12" in result.stderr and "no-such-python" in result.stderr

    def test_missing_compiler_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = load("tools/environment.py")
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(environment.Failure, match="no-such-compiler") as failure:
            environment.check_compiler()
        assert "expected:" in str(failure.value) and "do: install it" in str(failure.value)

    def test_broken_compiler_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = load("tools/environment.py")
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(environment.Failure, match="did not compile a small C\\+\\+17 program"):
            environment.check_compiler()

    def test_first_error_of_a_log_is_shown(self) -> None:
        environment = load("tools/environment.py")
        log = ["[1/9] ok", "a.cpp:3:1: error: no type", "  int x", "[2/9] ok", "b.cpp:1:1: error: another"]
        assert environment.first_error(log, shown=2).splitlines() == log[1:3]
        assert environment.first_error(["one", "two", "three"], shown=2).splitlines() == ["two", "three"]

    def test_build_key_follows_the_sources(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        environment = load("tools/environment.py")
        monkeypatch.setattr(environment, "ROOT", tmp_path)
        source = tmp_path / "csrc" / "a.cpp"
        source.parent.mkdir()
        source.write_text("int a;")
        first = environment.source_hash()
        (tmp_path / "README.md").write_text("not a source")
        assert environment.source_hash() == first
        source.write_text("int b;")
        changed = environment.source_hash()
        source.rename(source.with_name("b.cpp"))
        assert len({first, changed, environment.source_hash()}) == 3


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    small = ["--layers", "1", "--width", "32", "--characters", "20", "--steps", "12"]
    return run(sys.executable, "examples/train_gpt.py", *small, *arguments)


class TestDemo:
    @pytest.mark.unit
    def test_trains_on_the_cpu_alone(self) -> None:
        result = train("--device", "cpu")
        assert result.returncode == 0, result.stderr
        losses = [float(loss) for loss in re.findall(r"│ +\d+ │ +(\d+\.\d{6}) │", result.stdout)]
        assert len(losses) == 12
        assert sum(losses[-3:]) < 0.9 * sum(losses[:3]), "it learns"
        for part in ("Text written by the model on cpu", "The keeper", "tokens per second", "aten::addmm"):
            assert part in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 100

    @pytest.mark.device
    def test_trains_on_the_device_as_on_the_cpu(self) -> None:
        result = train("--device", "dipu")
        assert result.returncode == 0, result.stderr
        rows = re.findall(r"│ +\d+ │ +(\d+\.\d{6}) │ +(\d+\.\d{6}) │", result.stdout)
        assert len(rows) == 12
        assert all(float(device) == pytest.approx(float(cpu), abs=1e-4) for device, cpu in rows)
        assert "DIOPI" in result.stdout, "operators went through the vendor's C interface"
        assert re.search(r"dipu.*MiB", result.stdout), "memory was counted on the device"

    @pytest.mark.unit
    def test_ways_of_running_are_added_up_by_operator(self) -> None:
        profile_report = load("examples/profile_report.py")
        counts = {"add.Tensor": {"diopi": 3, "alias": 0, "copy": 0}, "aten::add.out": {"alias": 1}}
        ways = profile_report.ways_by_operator(counts)
        assert ways == {"aten::add": {"diopi": 3, "alias": 1}}
        assert profile_report.describe(ways["aten::add"]) == "DIOPI 75 %, alias 25 %"
        assert profile_report.describe(profile_report.Counter(copy=2)) == "copy"
        assert profile_report.describe(None) == ""

    @pytest.mark.unit
    def test_unknown_device_is_explained(self) -> None:
        result = train("--device", "toaster")
        assert result.returncode == 2
        assert "'toaster' cannot be used" in result.stderr and "make demo" in result.stderr
