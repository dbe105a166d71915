"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package.

    Args:
        package: The package's name, for errors.
        homes: For each name the module that defines it, or the module of that name itself.
    """

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return import_name
