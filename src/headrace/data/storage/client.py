"""What a remote store needs of whatever carries its requests: the client itself, or the helper."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol

from headrace.data.storage.store import Buffer, ObjectInfo, Part, PutData


class Client(Protocol):
    """Requests for keys (paths below the bucket). Errors name `target`, a URL and perhaps a range.

    Every future ends within the retry policy's deadline once its request has begun.
    """

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range that is no longer than a part."""
        ...

    def read_part(self, key: str, start: int, length: int, target: str) -> Future[Part]:
        """Read a range up to the object's end, and what is known of it; its path is the key."""
        ...

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object of any size."""
        ...

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return what is known of an object; its path is the key."""
        ...

    def list(self, prefix: str, target: str) -> Iterator[builtins.list[ObjectInfo]]:
        """Yield pages of the objects below a folder; paths are keys."""
        ...

    def put(self, key: str, data: PutData, target: str) -> None:
        """Write an object."""
        ...

    def create(self, key: str, data: bytes, target: str) -> Future[bool]:
        """Write a small object unless there is one; tell whether it was written."""
        ...

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
