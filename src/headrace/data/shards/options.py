"""How to pack."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.core.errors import UsageError
from headrace.data.shards.sources.detect import SourceOptions

Recode = Callable[[str, bytes], bytes]
"""Takes a member's extension ("jpg", "mask.png") and content, returns the content to keep."""

Check = Callable[[str, bytes], object]
"""Takes a member's extension and content; raises BadSampleError where it cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How to pack.

    Attributes:
        shard_bytes: The size that shards come close to.
        workers: How many processes pack.
        seed: What shuffles samples over shards.
        keep_order: Keep the order of the source (paths sorted; rows of a table) instead.
        max_bad: How many unreadable files may be left out.
        recoding: What the recode callable does, for the manifest; empty without one.
        source: How to read the source.
    """

    shard_bytes: int = 128 * 2**20
    workers: int = 1
    seed: int = 0
    keep_order: bool = False
    max_bad: int = 0
    recoding: dict[str, Any] = field(default_factory=dict)
    source: SourceOptions = field(default_factory=SourceOptions)

    def __post_init__(self) -> None:
        if self.shard_bytes < 1:
            raise UsageError(f"--shard-size {self.shard_bytes}: a shard has 1 byte or more.")
        if self.workers < 1:
            raise UsageError(f"--workers {self.workers}: 1 or more processes pack.")
        if self.max_bad < 0:
            raise UsageError(f"--max-bad {self.max_bad}: 0 or more files may be left out.")

    def described(self) -> dict[str, Any]:
        """Return what decides the bytes, as the manifest keeps it."""
        source = {key: value for key, value in asdict(self.source).items() if value}
        described = {
            "shard_bytes": self.shard_bytes,
            "seed": None if self.keep_order else self.seed,
            "keep_order": self.keep_order,
            **({"recoding": self.recoding} if self.recoding else {}),
            **({"source": source} if source else {}),
        }
        # As JSON gives it back, so that it can be compared with a manifest's.
        return dict(json.loads(json.dumps(described)))
