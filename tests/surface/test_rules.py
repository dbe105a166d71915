"""The house rules that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from conftest import BEGUN_FIRST

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ALL_CODE = SOURCES + [
    path
    for folder in ("examples", "benchmarks", "tools")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES, MAX_CLASS_LINES = 60, 300
MAX_IMPORT_SHARE = 0.06
"""Of all lines of the package, those that begin an import statement, also within functions."""
ENVIRONMENT = {"environ", "environb", "getenv", "putenv", "getenvb"}


@cache
def parsed(path: Path) -> tuple[str, ast.Module]:
    text = path.read_text()
    return text, ast.parse(text)


def test_the_files_that_are_begun_first_are_there():
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    assert set(BEGUN_FIRST) <= there


def test_there_are_sources_to_check():
    assert len(SOURCES) > 20


def test_no_file_is_over_600_lines_no_class_over_300_and_no_function_over_60():
    too_long = []
    for path in ALL_CODE:
        text, tree = parsed(path)
        if (lines := len(text.splitlines())) > MAX_FILE_LINES:
            too_long.append(f"{_name(path)}: {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                limit = MAX_FUNCTION_LINES
            elif isinstance(node, ast.ClassDef):
                limit = MAX_CLASS_LINES
            else:
                continue
            if (lines := _lines(node)) > limit:
                too_long.append(f"{_name(path)}: {node.name}: {lines} lines")
    assert too_long == []


def _lines(definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Count its lines without its docstring, and those of a class also without its methods'."""
    documented = 0
    methods = definition.body if isinstance(definition, ast.ClassDef) else []
    for node in (definition, *methods):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            has_docstring = ast.get_docstring(node) is not None
            first = node.body[0]
            documented += first.end_lineno - first.lineno + 1 if has_docstring else 0
    return (definition.end_lineno or 0) - definition.lineno + 1 - documented


def test_few_lines_of_the_package_are_imports():
    lines = [line for path in SOURCES for line in parsed(path)[0].splitlines()]
    imports = [line for line in lines if re.match(r"\s*(import|from \S+ import) ", line)]
    assert 0 < len(imports) / len(lines) < MAX_IMPORT_SHARE


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_environment_is_read_in_one_file_alone():
    readers = {}
    for path in SOURCES:
        if path == ROOT / "src/headrace/core/env.py":
            continue
        nodes = list(ast.walk(parsed(path)[1]))
        names = {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in nodes
            if isinstance(node, (ast.Attribute, ast.Name))
        }
        imported = {
            alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == "os"
            for alias in node.names
        }
        if found := (names | imported) & ENVIRONMENT:
            readers[_name(path)] = sorted(found)
    assert readers == {}


# In jobs it is what torchrun's own process runs; `headrace` itself starts without torch.
MAY_IMPORT_TORCH = (
    "data/loader/", "train/", "observe/probe/", "bootstrap/smddp/",
    "jobs/local_rendezvous.py", "jobs/torchrun_args.py", "jobs/hosts/driver.py",
    "jobs/torchrun.py",
)  # fmt: skip


def test_torch_and_ray_are_imported_at_module_level_only_where_marked():
    importers = {}
    for path in SOURCES:
        if path.relative_to(ROOT / "src/headrace").as_posix().startswith(MAY_IMPORT_TORCH):
            continue
        imported = {
            name.partition(".")[0]
            for node in _at_module_level(parsed(path)[1])
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
        }
        if found := imported & {"torch", "ray"}:
            importers[_name(path)] = sorted(found)
    assert importers == {}


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


def test_files_import_each_other_in_no_circle():
    """Imports within functions count, except those by which a package's front loads its files."""
    modules = {_module(path): path for path in SOURCES}
    graph = {}
    for name, path in modules.items():
        tree = parsed(path)[1]
        at_start, all_nodes = set(_at_module_level(tree)), set(_not_for_types_alone(tree))
        graph[name] = {
            found
            for node in all_nodes
            for found in _imported_modules(node, modules)
            if found != name
            and (node in at_start or path.name != "__init__.py" or not found.startswith(name))
        }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def _not_for_types_alone(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _not_for_types_alone(node)


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(node: ast.Import | ast.ImportFrom, modules: Container[str]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in modules}
    base = node.module or ""
    named = {f"{base}.{alias.name}" for alias in node.names}
    return {name for name in named if name in modules} or ({base} if base in modules else set())
