"""The house rules that no linter knows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import BEGUN_FIRST

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ALL_CODE = SOURCES + [
    path
    for folder in ("examples", "benchmarks", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def test_the_files_that_are_begun_first_are_there():
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(BEGUN_FIRST) <= there


def test_there_are_sources_to_check():
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", ALL_CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_over_400_lines_and_no_function_over_60(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    too_long = [
        f"{node.name}: {_lines(node)} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and _lines(node) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_environment_is_read_in_one_file_alone(path: Path):
    if path == ROOT / "src/headrace/core/env.py":
        return
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    imported = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "os"
        for alias in node.names
    }
    assert not (names | imported) & {"environ", "environb", "getenv", "putenv", "getenvb"}


# In launch it is what torchrun's own process runs; `headrace` itself starts without torch.
MAY_IMPORT_TORCH = (
    "data/loader/", "train/", "observe/probe/", "enter/smddp/",
    "launch/flags.py", "launch/logs.py", "launch/hosts/on_cluster.py", "launch/torchrun.py",
)  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_and_ray_are_imported_at_module_level_only_where_marked(path: Path):
    if path.relative_to(ROOT / "src/headrace").as_posix().startswith(MAY_IMPORT_TORCH):
        return
    imported = {
        name.partition(".")[0]
        for node in _at_module_level(ast.parse(path.read_text()))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }
    assert not imported & {"torch", "ray"}


def _at_module_level(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from _at_module_level(node)


def test_every_package_has_something_in_it():
    empty = [
        str(init.parent.relative_to(ROOT))
        for init in (ROOT / "src/headrace").rglob("__init__.py")
        if not any(other != init for other in init.parent.rglob("*.py"))
    ]
    assert empty == []
