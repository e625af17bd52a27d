"""Rules that a reviewer would otherwise have to remember: import directions, sizes, names, one of everything."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.null

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("dicore", "_ditorch", "op_tools", "diopi", "torch_dipu", "dicp", "dlinfer")
SWITCHES = ("ditorch", "dipu")  # modules of one file
HAND_WRITTEN = (
    "src",
    "csrc",
    "vendors",
    "include",
    "tests",
    "tools",
    "examples",
    "benchmarks",
    "conformance",
)
LANGUAGES = (".py", ".cpp", ".cc", ".c", ".h", ".hpp")

# dicore is the ground under all packages: each may import it, and it imports none of them.
MAY_IMPORT = {
    "dicore": set(),
    "ditorch": {"_ditorch"},
    "dipu": {"_ditorch", "torch_dipu"},
    "op_tools": {"dicore"},
    "_ditorch": {"dicore", "op_tools"},  # `ditorch run` starts the tools; `import ditorch` does not load them
    "diopi": {"dicore", "op_tools"},
    "torch_dipu": {"dicore", "diopi", "ditorch", "_ditorch", "op_tools"},
    "dicp": {"dicore", "diopi", "torch_dipu", "op_tools"},
    # ditorch: names of CUDA for serving frameworks
    "dlinfer": {"dicore", "diopi", "ditorch", "_ditorch", "torch_dipu", "op_tools"},
}
EXCEPTIONS = {("_ditorch/adapters/dipu.py", "torch_dipu")}

VENDORS = re.compile(
    r"\b(ascend\w*|huawei|torch_npu|npu|cambricon|camb|torch_mlu|mlu|torch_musa|musa|mthreads|biren|torch_br|supa"
    r"|metax|iluvatar|hygon|ppu|enflame|topsgraph|kunlun\w*|nvidia|droplet|libdiopi_host|dipu_host_(?!to_)\w+)\b",
    re.IGNORECASE,
)
# lmdeploy: an adaptor, which names the chips that LMDeploy knows; lmdeploy_ext: module names that LMDeploy imports, fixed by it.
VENDOR_FOLDERS = {"adapters", "adaptors", "vendor", "vendors", "lmdeploy", "lmdeploy_ext"}


def _sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in LANGUAGES and not _is_generated(path):
                yield path


def _is_generated(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return (
        (parts[0] in ("csrc", "vendors") and "generated" in parts)
        or parts[:2] == ("include", "diopi")
        or parts == ("src", "diopi", "library", "signatures.py")
    )


def _modules_of(package: str) -> Iterator[Path]:
    if package in SWITCHES:
        return iter([ROOT / "src" / f"{package}.py"])
    return (path for path in _sources(f"src/{package}") if path.suffix == ".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(tree: ast.AST) -> set[str]:
    """Top-level names of everything a module imports, also inside functions and by a name in a string."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.partition(".")[0])
        elif (
            isinstance(node, ast.Call) and _callee(node.func) in ("import_module", "__import__") and node.args
        ):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(name.value.partition(".")[0])
    return found


def _callee(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _imports_at_load(tree: ast.Module) -> set[str]:
    """What importing the module imports: functions run later, and type checkers never run."""
    lazy = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If)
    return imports_of(ast.Module([node for node in tree.body if not isinstance(node, lazy)], []))


@pytest.mark.parametrize("package", [*PACKAGES, *SWITCHES])
def test_imports_point_one_way(package: str) -> None:
    wrong = []
    for path in _modules_of(package):
        name = path.relative_to(ROOT / "src").as_posix()
        strangers = imports_of(tree_of(path)) & {*PACKAGES, *SWITCHES}
        strangers -= MAY_IMPORT[package] | {package}
        wrong += [f"{name} imports {other}" for other in sorted(strangers) if (name, other) not in EXCEPTIONS]
    assert wrong == []


def test_every_package_has_its_imports_declared() -> None:
    assert {path.name for path in (ROOT / "src").iterdir() if (path / "__init__.py").exists()} == set(
        PACKAGES
    )


def test_dicore_imports_no_torch() -> None:
    wrong = [path.name for path in _modules_of("dicore") if "torch" in imports_of(tree_of(path))]
    assert wrong == []


def test_ditorch_imports_torch_dipu_lazily() -> None:
    tree = ast.parse((ROOT / "src/_ditorch/adapters/dipu.py").read_text(encoding="utf-8"))
    assert "torch_dipu" in imports_of(tree)
    assert "torch_dipu" not in _imports_at_load(tree)


@pytest.mark.parametrize("package", ["_ditorch", "op_tools"])
def test_importing_a_library_loads_no_console_library(package: str) -> None:
    """Modules that print tables may import rich at load; the package itself must not import them."""
    init = ast.parse((ROOT / "src" / package / "__init__.py").read_text(encoding="utf-8"))
    loaded = {node.module for node in ast.walk(init) if isinstance(node, ast.ImportFrom) and node.module}
    for path in _modules_of(package):
        if imports_of(tree_of(path)) & {"rich", "typer"}:
            assert f"{package}.{path.stem}" not in loaded


def test_no_vendor_is_named_outside_its_folder() -> None:
    wrong = []
    for path in _sources("src", "csrc"):
        if VENDOR_FOLDERS & set(path.relative_to(ROOT).parts):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found = VENDORS.search(line)
            if found:
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {found[0]}")
    assert wrong == []


def test_files_stay_short() -> None:
    lengths = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n")
        for path in _sources(*HAND_WRITTEN)
    }
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length >= 500} == {}


STARTERS = {"Process", "Pool", "ProcessPoolExecutor", "get_context", "Popen", "fork", "forkpty"}
# Who may start processes beside dicore.workers, and what for.
STARTS_PROCESSES = {
    "src/_ditorch/torch_tests/source/worker.py": "gives each case of PyTorch's tests a fork of its own",
    "src/dlinfer/framework/lmdeploy/server.py": "gives LMDeploy the context with which it starts its engine",
    "src/op_tools/bisect/running.py": "runs the user's script and ends it when it hangs",
}


def starts_processes(tree: ast.AST) -> set[str]:
    """The names by which a module starts processes that live on; `subprocess.run` waits for its own."""
    modules = ("multiprocessing", "subprocess", "concurrent.futures", "os")
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(modules)
        for alias in node.names
    }
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {_callee(f) for f in called if isinstance(f, ast.Attribute) or _callee(f) in imported} & STARTERS


def test_there_is_one_process_pool() -> None:
    starting = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in _modules_of(package)
        if starts_processes(tree_of(path))
    }
    pool = {name for name in starting if name.startswith("src/dicore/workers/")}
    assert pool and starting - pool == set(STARTS_PROCESSES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import multiprocessing as m\nm.get_context('spawn').Process()", {"get_context", "Process"}),
        ("from subprocess import Popen\nPopen([])", {"Popen"}),
        ("import subprocess\nsubprocess.run([])", set()),
        ("class Pool: ...\nPool()", set()),
    ],
)
def test_the_reader_of_processes(source: str, expected: set[str]) -> None:
    assert starts_processes(ast.parse(source)) == expected


GIVEN_NAMES = {"src/dlinfer/utils"}  # serving frameworks import it by this name


def test_every_file_says_what_it_is_for() -> None:
    nameless = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [
        str(path.relative_to(ROOT))
        for path in _sources(*HAND_WRITTEN)
        if nameless & {path.stem, path.parent.name}
        and path.parent.relative_to(ROOT).as_posix() not in GIVEN_NAMES
    ] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b, c", {"a", "c"}),
        ("def f():\n    from a import b", {"a"}),
        ("import importlib\nimportlib.import_module('a.b')", {"a", "importlib"}),
        ("from . import b", set()),
    ],
)
def test_the_reader_of_imports(source: str, expected: set[str]) -> None:
    assert imports_of(ast.parse(source)) == expected


@pytest.mark.parametrize("text", ["class AscendGraph", "x.npu()", 'getenv("DIPU_HOST_ALIAS")'])
def test_the_reader_of_vendors(text: str) -> None:
    assert VENDORS.search(text)


@pytest.mark.parametrize("text", ["a descending sort", "inputs", "DIPU_HOST_TO_DEVICE", "the host reads it"])
def test_innocent_words(text: str) -> None:
    assert not VENDORS.search(text)


# Two classes of one name that are the same idea.
SAME_IDEA = {
    "Backend": "what compiles or runs a captured graph, chosen by name",
    "Case": "of a conformance suite: that of dlinfer extends that of the kit; a reproduction is a file without imports of ours",
    "DeviceError": "an error that the device raised, told apart from errors of our own",
    "Patches": "attributes of torch that are replaced, and put back at the end",
    "ReferenceRun": "the reference of a case of a conformance suite",
    "Tolerance": "atol and rtol",
    "Transfer": "tensors that go to another device, each once",
    "Vendor": "who brings kernels, chosen when the program runs",
    "UnknownBackendError": "no backend of that name",
    "VendorError": "no such vendor, or one that cannot be used",
}


def _classes() -> dict[str, set[str]]:
    """Public classes of all packages, and the files that define each."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in _modules_of(package):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, set()).add(path.relative_to(ROOT / "src").as_posix())
    return found


def test_one_name_is_one_class() -> None:
    shared = {name: sorted(files) for name, files in _classes().items() if len(files) > 1}
    assert {name: files for name, files in shared.items() if name not in SAME_IDEA} == {}


# Words of our own for what PyTorch, compilers or LLM serving have a term for.
OWN_WORDS = {
    "residence": "where the operands are: cpu_operands",
    "rooms": "packages",
    "placing": "device, index, slot or location, by meaning",
    "placed": "on a device; at an index or in a slot",
    "settled": "chosen, decided",
    "watching": "observing; instrumentation",
    "sights": "mask parameters",
    "wording": "messages",
}


def words_of(name: str) -> list[str]:
    """The words of an identifier: `query_ends`, `QueryEnds` and `QUERY_ENDS` have the same."""
    return [
        word.lower() for part in name.split("_") for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", part)
    ]


def identifiers_of(path: Path) -> set[str]:
    """The names in a source file; comments and texts are prose."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return {token.string for token in tokens if token.type == tokenize.NAME} | {path.stem}
    code = re.sub(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', "", source, flags=re.S)
    return {*re.findall(r"[A-Za-z_]\w*", code), path.stem}


def test_names_are_words_of_the_field() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name} ({OWN_WORDS[word]})"
        for path in _sources("src", "csrc", "vendors")
        for name in sorted(identifiers_of(path))
        for word in words_of(name)
        if word in OWN_WORDS
    ]
    assert wrong == []


def test_the_reader_of_words(tmp_path: Path) -> None:
    assert words_of("queryEnds") == words_of("QUERY_ENDS") == words_of("QueryEnds") == ["query", "ends"]
    (tmp_path / "a.py").write_text('def rooms(x):  # residence\n    return "wording"\n')
    assert identifiers_of(tmp_path / "a.py") == {"def", "rooms", "x", "return", "a"}
    (tmp_path / "b.cpp").write_text('int rooms; // residence\n/* wording */ char* c = "sights";\n')
    assert identifiers_of(tmp_path / "b.cpp") == {"int", "rooms", "char", "c", "b"}
