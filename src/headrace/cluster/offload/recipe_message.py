"""A recipe on its way from a rank to the workers of an auxiliary host."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeMessage:
    """What goes with a recipe.

    Attributes:
        rank: Whose it is.
        loader: The number of its loader, where workers are to record what they do.
        folder: The rank's working folder, from the job's folder on.
        path: Where the rank looks for modules, as far as that is below the job's folder.
        variables: What tells the rank from others, and what its script has set.
        strands: Among how many workers an iterable dataset is shared, wherever they are; 0: the
            dataset is indexed, and any worker makes any batch.
        content: The recipe, pickled.
    """

    rank: int
    loader: int | None = None
    folder: str
    path: list[str]
    variables: dict[str, str]
    strands: int = 0
    content: bytes

    def to_bytes(self) -> bytes:
        """Return bytes that `from_bytes` reads."""
        names = ("rank", "loader", "folder", "path", "variables", "strands")
        told = {name: getattr(self, name) for name in names}
        return json.dumps(told).encode() + b"\n" + self.content

    @classmethod
    def from_bytes(cls, body: bytes) -> RecipeMessage:
        """Return the message that `to_bytes` told."""
        told, _, content = body.partition(b"\n")
        return cls(**json.loads(told), content=content)
