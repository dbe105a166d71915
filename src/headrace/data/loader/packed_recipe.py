"""A recipe on its way to workers, with what they are to find where they load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRecipe:
    """What workers of a loader have of its process, on this host and on others, for an iteration.

    Attributes:
        content: The recipe, pickled.
        folder: The working folder.
        variables: Those of the process itself, as `env.own_variables` returns them.
    """

    content: bytes
    folder: str
    variables: Mapping[str, str | None]
