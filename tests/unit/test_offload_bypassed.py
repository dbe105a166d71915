"""Loaders that make their iterators themselves are said to stay on their host, once each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from headrace.bootstrap import offload_hooks


class Loader:
    """Like torchdata's StatefulDataLoader."""

    dataset = (1, 2)


class Iterator:
    """Like the base of torch's iterators."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader


def iterator_class(*bases: type) -> Any:
    """Return a new class of iterators, which may be hooked."""
    return type("_BaseDataLoaderIter", (*bases, Iterator), {"__init__": Iterator.__init__})


class Executed:
    """What an executor's iterator has."""

    def take_order_ns(self) -> int:
        return 0


def test_a_loader_with_iterators_of_its_own_is_named_once(capsys: pytest.CaptureFixture[str]):
    base, local_only, loader = iterator_class(), WeakSet[Any](), Loader()
    offload_hooks.name_bypassing_loaders(SimpleNamespace(_BaseDataLoaderIter=base), local_only)  # type: ignore[arg-type]
    for _ in range(3):
        base(loader)
    printed = capsys.readouterr().err
    assert printed.count("batches of tuple are made on this host alone") == 1
    assert "its loader, a Loader, makes its iterators itself" in printed


def test_loaders_that_offload_knows_are_not_named(capsys: pytest.CaptureFixture[str]):
    own = iterator_class(Executed)
    offload_hooks.name_bypassing_loaders(SimpleNamespace(_BaseDataLoaderIter=own), WeakSet())  # type: ignore[arg-type]
    own(Loader())
    known, base = Loader(), iterator_class()
    offload_hooks.name_bypassing_loaders(
        SimpleNamespace(_BaseDataLoaderIter=base),  # type: ignore[arg-type]
        WeakSet([known]),
    )
    base(known)
    assert capsys.readouterr().err == ""
