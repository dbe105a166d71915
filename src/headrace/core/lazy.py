"""Lazy imports: names of a package (PEP 562), and hash functions without OpenSSL's 5 MB.

`hashlib` loads OpenSSL, and most workers hash no more than keys and parts of an index.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
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
    make = _own_hash("blake2b", "_blake2")
    return make(data, digest_size=size_bytes).digest()


def sha256() -> _Hash:
    """Return a new SHA-256 state of OpenSSL's, which is fast enough for whole files."""
    import hashlib

    return hashlib.sha256()


def small_sha256() -> _Hash:
    """Return a new SHA-256 state for less than some MB, without OpenSSL, where Python has one."""
    return _own_hash("sha256", "_sha2", "_sha256")()


@cache  # a module that there is not would be looked for at each hash
def _own_hash(name: str, *modules: str) -> Callable[..., _Hash]:
    """Return a hash function of Python's own, of the first of its modules that there is.

    As the standard library's `random` does. A build of Python may lack them.
    """
    for module in (*modules, "hashlib"):
        try:
            function: Callable[..., _Hash] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return function
    raise ImportError(f"this Python has no {name}")
