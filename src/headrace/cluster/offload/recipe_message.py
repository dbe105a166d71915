"""A recipe on its way from a rank to the workers of an auxiliary host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import LoaderError


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeMessage:
    """What goes with a recipe.

    Attributes:
        rank: Whose it is.
        loader: The number of its loader, where workers are to record what they do.
        folder: The rank's working folder, from the job's folder on; its whole path elsewhere.
        path: Where the rank looks for modules, as far as that is below the job's folder.
        variables: The rank's own, as `env.own_variables` returns them.
        strands: Among how many workers an iterable dataset is shared, wherever they are; 0: the
            dataset is indexed, and any worker makes any batch.
        content: The recipe, pickled.
    """

    rank: int
    loader: int | None = None
    folder: str
    path: list[str]
    variables: Mapping[str, str | None]
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

    def folder_below(self, root: Path) -> Path:
        """Return the rank's working folder as this host has it: relative paths begin there.

        Args:
            root: The job's folder here.

        Raises:
            LoaderError: This host has none.
        """
        folder = root / self.folder
        if not folder.is_dir():
            raise LoaderError(
                f"the script stands in {self.folder}, which this host has not, and paths may begin "
                "there. Have the folder there, or stay in the job's own and name paths in full"
            )
        return folder
