"""The numbers of loaders, made the same on all ranks.

Each rank numbers its loaders in the order in which it constructs them. A rank that constructs more
than others, such as rank 0 one for validation, has other numbers for the same loaders.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SAME = ("kind", "dataset", "style", "file", "line")
"""Columns of `loaders` in which the ranks' constructions of one loader agree."""
_Identity = tuple[Any, ...]
Changes = Mapping[tuple[int, int], int]
"""By rank and number: the number that it has with the other ranks."""


def changed_numbers(loaders: Mapping[str, NDArray[Any]]) -> Changes:
    """Return the numbers to change, from the table `loaders`; empty where ranks agree.

    A loader that is constructed at the same place in another rank has its number there. Those that
    no other rank has keep theirs if it is free.
    """
    by_rank = _identities(loaders)
    common: dict[_Identity, int] = {}
    changes: dict[tuple[int, int], int] = {}
    for rank in sorted(by_rank, key=lambda each: (-len(by_rank[each]), each)):
        mine = by_rank[rank]
        used = {common[identity] for identity in mine.values() if identity in common}
        for number, identity in mine.items():
            new = common.get(identity)
            if new is None:
                new = number if number not in used else _free_number(used, common)
                common[identity] = new
                used.add(new)
            if new != number:
                changes[rank, number] = new
    return changes


def _identities(loaders: Mapping[str, NDArray[Any]]) -> dict[int, dict[int, _Identity]]:
    """Return by rank what tells each of its loaders from the others, in the order of numbers.

    Of several that one line constructs, the first is the same as the first of another rank.
    """
    found: defaultdict[int, dict[int, _Identity]] = defaultdict(dict)
    seen: defaultdict[int, Counter[_Identity]] = defaultdict(Counter)
    keys = list(zip(*(loaders[name].tolist() for name in _SAME), strict=True))
    for place in np.lexsort((loaders["loader"], loaders["rank"])).tolist():
        rank, number = int(loaders["rank"][place]), int(loaders["loader"][place])
        if number not in found[rank]:  # it is constructed again in each epoch
            key = keys[place]
            found[rank][number] = (*key, seen[rank][key])
            seen[rank][key] += 1
    return found


def _free_number(used: set[int], common: Mapping[_Identity, int]) -> int:
    return max((*used, *common.values())) + 1


class RenumberedRows(Mapping[str, NDArray[Any]]):
    """The columns of a table with ranks and loaders, with other numbers of some loaders."""

    def __init__(self, rows: Mapping[str, NDArray[Any]], changes: Changes) -> None:
        self._rows, self._changes = rows, changes
        self._numbers: NDArray[Any] | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name != "loader":
            return self._rows[name]
        if self._numbers is None:
            stored, ranks = self._rows["loader"], self._rows["rank"]
            self._numbers = stored.copy()
            for (rank, number), new in self._changes.items():
                self._numbers[(ranks == rank) & (stored == number)] = new
        return self._numbers

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:  # without reading the column
        return name in self._rows
