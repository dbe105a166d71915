"""Lazy imports: names of a package (PEP 562) and hashlib, imported at their first use.

`hashlib` loads OpenSSL, 5 MB that most workers never use.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashlib import _Hash


def lazy_importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, of names with the modules that define them.

    A submodule's name comes with itself.
    """

    def import_name(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        return home if homes[name] == f"{package}.{name}" else getattr(home, name)

    return import_name


def blake2b(data: bytes, size_bytes: int) -> bytes:
    """Return the BLAKE2b hash of `data`, of 1 to 64 bytes."""
    import hashlib

    return hashlib.blake2b(data, digest_size=size_bytes).digest()


def sha256() -> _Hash:
    """Return a new SHA-256 state."""
    import hashlib

    return hashlib.sha256()
