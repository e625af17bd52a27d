"""The documents: pages that render, links that lead somewhere, names and commands that exist, two languages that agree."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README.zh-CN.md")
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
        *ROOT.glob("conformance/*.md"),
    ]
)
SOURCE_FOLDERS = ("src", "csrc", "vendors", "include", "examples", "benchmarks", "tools", "tests")
GENERATED = ("include/diopi/", "csrc/aten/generated/", "vendors/host/generated/")
PROGRAMS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "scripts"
]
MARKDOWN = MarkdownIt("commonmark").enable("table")
ACTIVATE = "source .venv/bin/activate"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def headings(markdown: str) -> list[int]:
    """The level of every heading, in order; code blocks are not headings."""
    return [len(m[1]) for m in re.finditer(r"^(#+) ", re.sub(r"```.*?```", "", markdown, flags=re.S), re.M)]


def code_blocks(markdown: str) -> list[tuple[str, str]]:
    """Language and text of every block, without comments: those may be translated."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", markdown, re.M | re.S)
    return [(language, re.sub(r"\s+#.*", "", body)) for language, body in blocks]


def code(markdown: str) -> str:
    """Everything set as code: blocks and inline spans, one per line."""
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", markdown, flags=re.S))
    return "\n".join([body for _, body in code_blocks(markdown)] + inline)


def load(name: str) -> ModuleType:
    """A script of the repository as a module; scripts are in folders that are no packages."""
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))


def document_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def hand_written() -> Iterator[Path]:
    for folder in SOURCE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in {".py", ".cpp", ".h", ".c"} and not name.startswith(GENERATED):
                yield path


def raw_pipes(markdown: str) -> list[str]:
    """Lines of running text with a pipe: rows of a table that a blank line, or a missing head, has broken off."""
    return [
        f"line {token.map[0] + 1}: {child.content.strip()}"
        for token in MARKDOWN.parse(markdown)
        if token.type == "inline" and token.map and token.children
        for child in token.children
        if child.type == "text" and "|" in child.content
    ]


def odd_rows(markdown: str) -> list[str]:
    """Rows of tables with more or fewer cells than their head: a renderer drops the rest without a word."""
    lines, odd = markdown.splitlines(), []
    for token in MARKDOWN.parse(markdown):
        if token.type == "table_open" and token.map:
            rows = [re.sub(r"\\\\|\\\|", "", line).strip() for line in lines[slice(*token.map)]]
            cells = [row.removeprefix("|").removesuffix("|").count("|") + 1 for row in rows]
            odd += [f"line {token.map[0] + 1 + i}" for i, count in enumerate(cells) if count != cells[0]]
    return odd


def unclosed_fences(markdown: str) -> list[str]:
    lines = markdown.splitlines()
    return [
        f"line {token.map[0] + 1}"
        for token in MARKDOWN.parse(markdown)
        if token.type == "fence" and token.map and lines[token.map[1] - 1].strip() != token.markup
    ]


def anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    tokens = MARKDOWN.parse(markdown)
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            title = "".join(child.content for child in inline.children or [])
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{i}" if i else slug for slug, last in found.items() for i in range(last + 1)}


def links(markdown: str) -> list[str]:
    """Every link and picture of a page that leads to a file of the repository."""

    def walk(tokens: list[Token]) -> Iterator[str]:
        for token in tokens:
            target = token.attrGet("href") or token.attrGet("src")
            if isinstance(target, str) and "://" not in target and not target.startswith("mailto:"):
                yield unquote(target)
            yield from walk(token.children or [])

    return list(walk(MARKDOWN.parse(markdown)))


def broken_links(document: Path) -> list[str]:
    broken = []
    for target in links(document.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        page = document.parent / name if name else document
        if not page.exists() or (
            anchor and page.suffix == ".md" and anchor not in anchors(page.read_text(encoding="utf-8"))
        ):
            broken.append(target)
    return broken


def commands(markdown: str) -> list[str]:
    """The lines of every shell block, in order, continued lines joined, comments removed."""
    blocks = [token for token in MARKDOWN.parse(markdown) if token.type == "fence" and token.info == "sh"]
    joined = "".join(token.content for token in blocks).replace("\\\n", " ")
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines()) if line]


@pytest.mark.null
class TestRendering:
    """A Markdown library reads every page as a reader's browser would."""

    @pytest.mark.parametrize("document", DOCUMENTS, ids=document_id)
    def test_pages_render(self, document: Path) -> None:
        markdown = document.read_text(encoding="utf-8")
        assert (raw_pipes(markdown), odd_rows(markdown), unclosed_fences(markdown)) == ([], [], [])
        assert broken_links(document) == []

    def test_broken_pages_are_noticed(self, tmp_path: Path) -> None:
        table = "# A page, *of* `two` words\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
        assert raw_pipes(table + "| `x|y` | z |\n") == []
        assert raw_pipes(table + "\n| 3 | 4 |\n") == ["line 7: | 3 | 4 |"]
        assert odd_rows(table + "| 3 | 4 | 5 |\n") == ["line 6"]
        assert odd_rows(table + "| 3 \\| 4 | 5 |\n") == []
        assert unclosed_fences("```sh\nls\n```\n") == []
        assert unclosed_fences("```sh\nls\n") == ["line 1"]
        page = tmp_path / "page.md"
        page.write_text(
            table + "[1](#a-page-of-two-words) [2](#no) [3](page.md) [4](no.md) ![5](no.png) [6](https://no)"
        )
        assert broken_links(page) == ["#no", "no.md", "no.png"]


@pytest.mark.null
class TestReadme:
    """Read literally and in order, in both languages."""

    def test_one_form_of_commands(self) -> None:
        """Activated once, then bare: a path into .venv here and a bare name there leave a reader with 'command not found'."""
        for document in DOCUMENTS:
            found = re.findall(r"[^`\n]*\.venv/bin/[^`\n]*", document.read_text(encoding="utf-8"))
            assert set(found) <= {ACTIVATE}, document_id(document)

    @pytest.mark.parametrize("readme", READMES)
    def test_commands_can_be_typed_in_order(self, readme: str) -> None:
        """The programs of the environment are known to a shell only once it is activated; scripts are there from the start."""
        ours = {"python", *PROGRAMS}
        activated, seen = False, set()
        for line in commands(text(readme)):
            activated |= line == ACTIVATE
            program, *arguments = shlex.split(line)
            assert activated or program not in ours, f"{line!r} comes before {ACTIVATE!r}"
            assert program in ours | {"make", "pip", "source"} or os.access(ROOT / program, os.X_OK), line
            assert [
                word for word in arguments if word.endswith(".py") and not (ROOT / word).exists()
            ] == [], line
            seen.add(program)
        assert {"make", "ditorch", "op-tools", "diopi", "python", "examples/serve.sh"} <= seen

    @pytest.mark.parametrize("readme", READMES)
    def test_how_long_the_two_commands_take_is_said(self, readme: str) -> None:
        said = text(readme).partition("make demo\nmake test\n```")[2].partition("\n## ")[0]
        assert len(re.findall(r"\d+ (?:minutes|分钟)", said)) >= 3

    @pytest.mark.parametrize(
        ("readme", "missing"), [("README.md", "not there yet"), ("README.zh-CN.md", "尚未实现")]
    )
    def test_torch_compile_is_promised_only_when_it_is_there(self, readme: str, missing: str) -> None:
        vendors = text(readme).partition("\n## ")[0]
        modules = {path.name for path in (ROOT / "src" / "dicp").rglob("*.py")}
        assert ("torch.compile" in vendors and missing in vendors) == (modules == {"__init__.py"})

    def test_the_two_commands_come_first(self) -> None:
        assert commands(text("README.md"))[:2] == ["make demo", "make test"]

    def test_readmes_name_the_same_things(self) -> None:
        pattern = r"^\| (`[^|]+`) \|"
        english, chinese = (re.findall(pattern, text(name), re.M) for name in READMES)
        assert english == chinese
        english_links, chinese_links = (sorted(set(links(text(name))) - set(READMES)) for name in READMES)
        assert english_links == chinese_links


def without_reasons(blocks: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Reasons that a user gives in a file are in the user's language."""
    return [(language, re.sub(r'reason = ".*"', "reason", body)) for language, body in blocks]


def destinations(document: Path) -> set[str]:
    """What a page links to, whatever the language of the page it leads to."""
    found = {
        link.partition("#")[0].replace(".zh-CN", "") for link in links(document.read_text(encoding="utf-8"))
    }
    return found - {document.name.replace(".zh-CN", "")}


@pytest.mark.null
class TestLanguages:
    """A page in two languages is one page."""

    @pytest.mark.parametrize(
        "chinese", [path for path in DOCUMENTS if ".zh-CN" in path.name], ids=document_id
    )
    def test_both_say_the_same(self, chinese: Path) -> None:
        english = chinese.with_name(chinese.name.replace(".zh-CN", ""))
        first, second = (path.read_text(encoding="utf-8") for path in (english, chinese))
        assert headings(first) == headings(second)
        assert without_reasons(code_blocks(first)) == without_reasons(code_blocks(second))
        if english.name != "index.md":  # the decisions are in English only, and listed once
            assert first.count("\n|") == second.count("\n|"), "tables with the same number of rows"
            assert destinations(english) == destinations(chinese)

    def test_guides_are_there_in_chinese(self) -> None:
        """Every page that the index offers to a person, but those that are generated or for contributors."""
        english = {name for name in links(text("docs/index.md").partition("## For contributors")[0])}
        generated = {"operators.md", "dlinfer-operators.md", "torch-tests-results.md"}
        missing = [
            name
            for name in sorted(english - generated)
            if ".zh-CN" not in name and not (ROOT / "docs" / name.replace(".md", ".zh-CN.md")).exists()
        ]
        assert missing == [] and len(english) > 20

    def test_both_indices_list_every_page(self) -> None:
        pages = {path.name.replace(".zh-CN", "") for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
        for index in ("docs/index.md", "docs/index.zh-CN.md"):
            assert pages <= destinations(ROOT / index), index

    def test_links_of_chinese_pages_lead_to_chinese_pages(self) -> None:
        for page in (path for path in DOCUMENTS if ".zh-CN" in path.name):
            strays = [
                link
                for link in re.findall(
                    r"\[(?!English)[^\]]*\]\(([^)#]+\.md)", page.read_text(encoding="utf-8")
                )
                if "://" not in link and (page.parent / link.replace(".md", ".zh-CN.md")).exists()
            ]
            # The decisions are listed in English; whoever adds a page edits both indices.
            allowed = {"index.zh-CN.md": {"index.md"}, "CONTRIBUTING.zh-CN.md": {"docs/index.md"}}.get(
                page.name, set()
            )
            assert set(strays) <= allowed, document_id(page)


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a function, class, method, constant or table entry of this name."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found: list[ast.AST] = [ast.parse(source)]
        for part in name.split("."):
            found = [node for parent in found for node in members(parent) if part in defined_by(node)]
        return bool(found)
    if path.suffix == ".toml":
        tables = tomllib.loads(source)
        return name in tables or any(name in table for table in tables.values() if isinstance(table, dict))
    word = re.escape(name.rpartition("::")[2])
    return re.search(rf"\b{word}\s*[({{:;]|\b(?:struct|class|enum)\s+(?:\w+\s+)?{word}\b", source) is not None


def members(parent: ast.AST) -> Iterator[ast.AST]:
    """What a module or a class holds, also under a condition; what is inside functions is nobody else's."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.If | ast.Try):
            yield from members(node)
        else:
            yield node


def defined_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.null
class TestCodeNamedByPages:
    """The pages that lead through the code name files and functions that are there."""

    @pytest.mark.parametrize("page", ["docs/architecture.md", "docs/architecture.zh-CN.md"])
    def test_every_hop_of_the_walks_exists(self, page: str) -> None:
        hops = re.findall(r"`([\w./-]+\.\w+)::([\w.:~]+)`", text(page))
        assert [
            f"{path}::{name}"
            for path, name in hops
            if not (ROOT / path).exists() or not defines(ROOT / path, name)
        ] == []

    def test_both_languages_walk_the_same_way(self) -> None:
        english, chinese = (
            re.findall(r"`([\w./-]+::[\w.:~]+)`", text(f"docs/architecture{language}.md"))
            for language in ("", ".zh-CN")
        )
        assert english == chinese

    def test_files_and_names_are_looked_up(self, tmp_path: Path) -> None:
        module, header, table = tmp_path / "a.py", tmp_path / "a.h", tmp_path / "a.toml"
        module.write_text("class A:\n    def f(self): ...\nN: int = 1\nB = A\n# def gone(): ...\n")
        header.write_text("struct Call { bool run(int); };\nint settle(int x) { return gone_; }\n")
        table.write_text('[op]\ndiopiAdd = {aten = ["add.Tensor"]}\n')
        assert [name for name in ("A", "A.f", "N", "B", "f", "gone", "A.N") if defines(module, name)] == [
            "A", "A.f", "N", "B",
        ]  # fmt: skip
        assert [name for name in ("Call", "Call::run", "settle", "missing") if defines(header, name)] == [
            "Call", "Call::run", "settle",
        ]  # fmt: skip
        assert defines(table, "diopiAdd") and not defines(table, "diopiSub")

    def test_terms_live_where_the_glossary_says(self) -> None:
        pages = [
            re.findall(r"^\| .+ \| `([^`]+)` \|$", text(f"docs/glossary{lang}.md"), re.M)
            for lang in ("", ".zh-CN")
        ]
        assert pages[0] == pages[1] and len(pages[0]) > 50
        assert [name for name in pages[0] if not (ROOT / name).exists()] == []

    def test_the_glossary_translates_alike(self) -> None:
        """The term of one page is the translation of the other."""
        rows = [
            re.findall(r"^\| (.+?) \| (.+?) \| .+ \| `", text(f"docs/glossary{lang}.md"), re.M)
            for lang in ("", ".zh-CN")
        ]
        assert rows[0] == [(english, chinese) for chinese, english in rows[1]]
        assert len({english for english, _ in rows[0]}) == len(rows[0])


@pytest.mark.null
class TestNames:
    """Files, targets, modules and settings that pages name exist."""

    @pytest.mark.parametrize("document", DOCUMENTS, ids=document_id)
    def test_named_files_exist(self, document: Path) -> None:
        folders = "|".join((*SOURCE_FOLDERS, "docs", "requirements", r"\.ci", r"\.github"))
        named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w./-]*)", code(document.read_text()))
        missing = sorted({name for name in named if not (ROOT / name).exists() and "results/" not in name})
        assert missing == []

    @pytest.mark.parametrize("document", DOCUMENTS, ids=document_id)
    def test_named_make_targets_exist(self, document: Path) -> None:
        commands = re.findall(r"^make ([^#\n]+)", code(document.read_text()), re.M)
        named = {word for command in commands for word in command.split() if "=" not in word}
        assert named <= make_targets()

    @pytest.mark.parametrize("document", DOCUMENTS, ids=document_id)
    def test_named_modules_exist(self, document: Path) -> None:
        for module in set(re.findall(r"python -m ([\w.]+)", code(document.read_text()))) - {"pytest"}:
            path = ROOT / "src" / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module

    def test_settings_in_documents_are_read_by_the_code(self) -> None:
        named = {
            v for d in DOCUMENTS for v in re.findall(r"\b(?:DIPU|DITORCH)_[A-Z_]+\b", code(d.read_text()))
        }
        files = {True: "", False: ""}
        for path in hand_written():
            files["tests" in path.parts] += path.read_text()
        constants_in_c = re.findall(r"\b(DIPU_[A-Z_]+) = \d", text("include/dipu/vendor.h"))
        named -= set(constants_in_c)
        assert "DIPU_HOST_ALIAS" in named
        assert {n for n in named if f'"{n}"' not in files[n.startswith("DIPU_TEST_")]} == set()

    @pytest.mark.parametrize("page", ["README.md", "docs/dicp.md", "docs/dlinfer.md", "docs/op_tools.md"])
    def test_tables_of_settings_are_those_of_the_declarations(self, page: str) -> None:
        """Or else: python tools/settings_tables.py"""
        settings_tables = load("tools/settings_tables.py")
        assert settings_tables.page(text(page), settings_tables.tables()[page]) == text(page)
        row = r"^\| (`[A-Z][A-Z_0-9]+`) \| (.*?) ?\| .+ \|$"
        english, chinese = (
            re.findall(row, text(name), re.M) for name in (page, page.replace(".md", ".zh-CN.md"))
        )
        assert [name for name, _ in english] == [name for name, _ in chinese]
        for (name, default), (_, translated) in zip(english, chinese, strict=True):
            assert re.findall(r"`[^`]+`", default) == re.findall(r"`[^`]+`", translated), name

    def test_changelog_has_a_place_for_the_next_change(self) -> None:
        first = re.search(r"^## (.+)$", text("CHANGELOG.md"), re.M)
        assert first is not None and first[1] == "[Unreleased]"

    def test_index_lists_every_decision(self) -> None:
        listed = set(re.findall(r"\(decisions/([^)]+)\)", text("docs/index.md")))
        assert listed == {path.name for path in (ROOT / "docs" / "decisions").glob("*.md")}


@pytest.mark.device
def test_activation_finds_the_programs() -> None:
    activate = Path(sys.executable).parent / "activate"
    if not activate.exists():
        pytest.skip(f"{sys.executable} is not that of a virtual environment")
    programs = " ".join(PROGRAMS)
    shell = f"source {shlex.quote(str(activate))} && for p in {programs}; do command -v $p; done"
    clean = {"PATH": "/usr/bin:/bin"}
    found = subprocess.run(["bash", "-c", shell], env=clean, capture_output=True, text=True, check=False)
    assert [Path(line).name for line in found.stdout.splitlines()] == programs.split()


@pytest.mark.device
@pytest.mark.parametrize("program", PROGRAMS)
def test_documented_commands_exist(program: str) -> None:
    """Every `program command` of the documents is in what the program lists."""
    everything = "\n".join(code(document.read_text(encoding="utf-8")) for document in DOCUMENTS)
    named = set(re.findall(rf"(?:^|\s)(?<!--device )(?<!from ){program} ([a-z][a-z-]*)\b", everything, re.M))
    assert len(named) >= 2
    module, _, function = PROGRAMS[program].partition(":")
    call = f"import sys; from {module} import {function} as main; sys.argv = [{program!r}, '--help']; main()"
    clean = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-c", call], env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert named <= set(re.findall(r"^[│ ]+([a-z][a-z-]*) ", done.stdout, re.M)), done.stdout
