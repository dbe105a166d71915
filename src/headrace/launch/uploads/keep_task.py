"""What the processes that keep or upload files beside a job are told."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepTask:
    """What such a process is to do.

    Attributes:
        url: Where files are kept.
        folder: Whose files.
        host: The host's name.
        others: The job's other hosts; None: they are not known.
        lock: A file of this machine; of several processes that have one, one works.
        parent: The process that has started it.
    """

    url: str
    folder: str
    host: str
    others: tuple[str, ...] | None
    lock: str
    parent: int

    def to_json(self) -> str:
        """Return a line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> KeepTask:
        """Return the task that `to_json` told."""
        told: dict[str, Any] = json.loads(text)
        others = told["others"]
        return cls(**{**told, "others": None if others is None else tuple(others)})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTask:
    """What a process is to do that uploads what a job makes.

    Attributes:
        url: The output path.
        job: The job's name.
        run: The run's folder on this host.
    """

    url: str
    job: str
    run: str

    def to_json(self) -> str:
        """Return a line that `from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> OutputTask:
        """Return the task that `to_json` told."""
        return cls(**json.loads(text))
