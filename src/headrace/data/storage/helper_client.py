"""Requests made by this process's helper."""

from __future__ import annotations

import builtins
import dataclasses
import os
import select
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import chain
from typing import Any, TypeVar

from headrace.core.errors import CredentialsError, StorageError
from headrace.data.storage.channel import Frame, write_piece
from headrace.data.storage.config import StorageConfig
from headrace.data.storage.helper_process import Request, ask
from headrace.data.storage.pieces import is_repeatable, pieces_of, regrouped
from headrace.data.storage.store import Buffer, ObjectInfo, Part, PutData
from headrace.data.storage.urls import Location

_T = TypeVar("_T")
_PIPE_POLL_MS = 1000
_PIECE_BYTES = 2**20


class HelperClient:
    """Requests of one location, carried out by the helper process. This one may fork."""

    def __init__(self, location: Location, config: StorageConfig) -> None:
        # Keys are whole paths, so stores of one bucket share the helper's connections.
        at_root = dataclasses.replace(location, prefix="")
        self._opening = {
            "location": dataclasses.asdict(at_root),
            "config": dataclasses.asdict(config),
        }

    def read(self, key: str, start: int, length: int, target: str) -> Future[Buffer]:
        """Read a range."""
        header = {"op": "read", "key": key, "target": target, "start": start, "length": length}
        return _mapped(self._ask(header), lambda frame: frame.body)

    def read_part(self, key: str, start: int, length: int, target: str) -> Future[Part]:
        """Read a range up to the object's end, and what is known of it."""
        header = {"op": "read_part", "key": key, "target": target, "start": start, "length": length}
        return _mapped(
            self._ask(header), lambda frame: Part(data=frame.body, info=_infos(frame)[0])
        )

    def read_whole(self, key: str, target: str) -> Future[Buffer]:
        """Read an object of any size."""
        header = {"op": "read_whole", "key": key, "target": target}
        return _mapped(self._ask(header), lambda frame: frame.body)

    def head(self, key: str, target: str) -> Future[ObjectInfo]:
        """Return what is known of an object."""
        header = {"op": "head", "key": key, "target": target}
        return _mapped(self._ask(header), lambda frame: _infos(frame)[0])

    def list(self, prefix: str, target: str) -> Iterator[builtins.list[ObjectInfo]]:
        """Yield the objects below a folder."""
        yield _infos(self._ask({"op": "list", "key": prefix, "target": target}).result())

    def put(self, key: str, data: PutData, target: str) -> None:
        """Write an object, once more if the data can be had again.

        That is where the helper dies, or credentials are refused: it looks for new ones whenever
        it begins.
        """
        for last in (not is_repeatable(data), True):
            finished = self._put(key, data, target, last=last)
            if finished:
                return

    def create(self, key: str, data: bytes, target: str) -> Future[bool]:
        """Write a small object unless there is one; tell whether it was written."""
        header = {"op": "create", "key": key, "target": target, "hex": data.hex()}
        return _mapped(self._ask(header), lambda frame: bool(frame.header["written"]))

    def delete(self, key: str, target: str) -> Future[None]:
        """Remove an object."""
        header = {"op": "delete", "key": key, "target": target}
        return _mapped(self._ask(header), lambda _: None)

    def close(self) -> None:
        """Do nothing: the helper serves this process's other stores, and ends with it."""

    def _ask(self, header: dict[str, Any]) -> Future[Frame]:
        return ask(Request(opening=self._opening, header=header))

    def _put(self, key: str, data: PutData, target: str, *, last: bool) -> bool:
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        try:
            try:
                answer = ask(
                    Request(
                        opening=self._opening,
                        header={"op": "put", "key": key, "target": target},
                        descriptors=(read_end,),
                        repeatable=False,
                    )
                )
            finally:
                os.close(read_end)
            _write(write_end, data, answer)
        finally:
            # Without the end that `_write` writes last, the helper gives the upload up.
            os.close(write_end)
        error = answer.exception()
        if error is None:
            return True
        if last or type(error) not in {StorageError, CredentialsError}:
            raise error
        return False


def _write(pipe: int, data: PutData, answer: Future[Frame]) -> None:
    """Write `data` to the helper; stops early where the helper already answered (with an error)."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    try:
        for piece in chain(regrouped(pieces_of(data), _PIECE_BYTES), [b""]):
            for _ in write_piece(pipe, piece):
                if answer.done():
                    return
                poll.poll(_PIPE_POLL_MS)
    except BrokenPipeError:
        return


def _infos(frame: Frame) -> builtins.list[ObjectInfo]:
    return [
        ObjectInfo(path=path, size_bytes=size_bytes, etag=etag, modified_s=modified_s)
        for path, size_bytes, etag, modified_s in frame.header["objects"]
    ]


def _mapped(source: Future[Frame], convert: Callable[[Frame], _T]) -> Future[_T]:
    """Return a future of what `convert` makes of the answer."""
    result: Future[_T] = Future()
    result.set_running_or_notify_cancel()

    def finish(done: Future[Frame]) -> None:
        error = done.exception()
        if error is None:
            result.set_result(convert(done.result()))
        else:
            result.set_exception(error)

    source.add_done_callback(finish)
    return result
