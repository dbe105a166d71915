"""The process that serves channels as pipes while a job runs.

`python -m headrace.data.pipes.process --parent PID` ends with whoever started it. It reads a
request, one line, looks what there is, and answers with one; told "serve" it makes the pipes,
answers again, and writes to them until its input ends. Where bytes cannot be had it says why in
another line; the pipes stay open then, as their end would look like the epoch's. It forks nothing:
the object-store client does not survive that.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError
from headrace.data.copies.beside import answer_with, begin_beside
from headrace.data.copies.listing import Listing, list_channel
from headrace.data.copies.request import SERVE, CopyAnswer, CopyRequest
from headrace.data.pipes.epochs import Pipes
from headrace.data.pipes.stream import ChannelStream
from headrace.data.storage import StorageConfig

_AT_ONCE = 128


def main() -> None:
    """Look, answer, and serve."""
    parent = int(sys.argv[2])
    begin_beside(parent)
    request = CopyRequest.from_json(sys.stdin.readline())
    config = StorageConfig(in_flight=_AT_ONCE)
    listings: dict[str, Listing] = {}
    try:
        for wanted in request.channels:
            listings[wanted.name] = list_channel(wanted, config)
        answer = CopyAnswer(folders={})
    except HeadraceError as error:
        answer = CopyAnswer.of(error)
    answer_with(answer)
    if answer.kind is None and sys.stdin.readline().strip() == SERVE:
        _serve(request, listings, config, parent)
        sys.stdin.read()
    # At once: leaving in order would take the interpreter apart under the client's threads.
    os._exit(0 if answer.kind is None else 1)


def _serve(
    request: CopyRequest, listings: dict[str, Listing], config: StorageConfig, parent: int
) -> None:
    """Make the pipes and write to each channel's in a thread of its own, or tell why not."""
    try:
        made = [
            Pipes(
                wanted.name, Path(wanted.folder), ChannelStream(listings[wanted.name], config),
                parent,
            )
            for wanted in request.channels
        ]  # fmt: skip
    except (HeadraceError, OSError) as error:
        answer_with(CopyAnswer.of(_told(error, "its pipes cannot be made")))
        return
    answer_with(CopyAnswer(folders={}))
    for pipes in made:
        threading.Thread(target=_write, args=(pipes,), daemon=True).start()


def _write(pipes: Pipes) -> None:
    try:
        pipes.serve()
    except Exception as error:  # noqa: BLE001  (a thread's end would leave the script waiting)
        answer_with(CopyAnswer.of(_told(error, f"channel {pipes.name} cannot be written")))


def _told(error: Exception, what: str) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return StorageError(f"{what}: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    main()
