"""Names are the field's own: no private dialect, no public class name twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "headrace"
NOT_OURS = frozenset(
    """
    gang once led told tell tells say says foretold foretell foretells keeping kept recipe ticket
    ask asked workforce gate away landing helper receiver station peer dealing strand strands
    beside keeper holding conversation surroundings luggage whoever likewise
    """.split()  # noqa: SIM905 - read as a text
)
"""Words that the design's table of terms replaces by the field's own. Not among them are those that
also mean what they mean to everybody: the member of a tar archive, Python's sitecustomize, a hard
link, the home directory, the order of samples, a unit of measure."""


def names() -> Iterator[tuple[str, str]]:
    """Yield every module, class and function: where it is, and its name."""
    for path in sorted(SOURCE.rglob("*.py")):
        where = path.relative_to(SOURCE).as_posix()
        yield where, path.stem
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield where, node.name


def words(name: str) -> set[str]:
    """Return the words of a name in snake or camel case."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_no_name_has_a_word_of_our_own():
    found = [f"{where}: {name}" for where, name in names() if words(name) & NOT_OURS]
    assert found == []


def test_no_public_class_name_exists_twice():
    places = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(SOURCE).as_posix())
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
