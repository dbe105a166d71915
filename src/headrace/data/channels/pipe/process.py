"""The sidecar that serves channels as pipes while a job runs.

`python -m headrace.data.channels.pipe.process --parent PID` ends with its parent. It reads a
request, one line, lists the channels, and answers with one; on "serve" it makes the pipes, answers
again, and writes to them until its input ends. Where fetching fails it reports the reason in
another line; the pipes stay open then, as their end would look like the epoch's. It forks nothing:
the object-store client does not survive a fork.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError
from headrace.data.channels.listing import ChannelListing, list_channel
from headrace.data.channels.messages import SERVE, ChannelsAnswer, ChannelsRequest
from headrace.data.channels.pipe.epoch_pipes import ChannelStream, EpochPipes
from headrace.data.channels.sidecar import become_sidecar, write_answer
from headrace.data.storage import StorageConfig

_MAX_REQUESTS = 128


def main() -> None:
    """List the channels, answer, and serve the pipes."""
    parent = int(sys.argv[2])
    become_sidecar(parent)
    request = ChannelsRequest.from_json(sys.stdin.readline())
    config = StorageConfig(in_flight=_MAX_REQUESTS)
    listings: dict[str, ChannelListing] = {}
    try:
        for channel in request.channels:
            listings[channel.name] = list_channel(channel, config)
        answer = ChannelsAnswer(folders={})
    except HeadraceError as error:
        answer = ChannelsAnswer.of(error)
    write_answer(answer)
    if answer.kind is None and sys.stdin.readline().strip() == SERVE:
        _serve(request, listings, config, parent)
        sys.stdin.read()
    # At once: an orderly exit would finalise the interpreter under the client's threads.
    os._exit(0 if answer.kind is None else 1)


def _serve(
    request: ChannelsRequest,
    listings: dict[str, ChannelListing],
    config: StorageConfig,
    parent: int,
) -> None:
    """Make the pipes and write to each channel's in a thread of its own, or report why not."""
    try:
        made = [
            EpochPipes(
                channel.name, Path(channel.folder), ChannelStream(listings[channel.name], config),
                parent,
            )
            for channel in request.channels
        ]  # fmt: skip
    except (HeadraceError, OSError) as error:
        write_answer(ChannelsAnswer.of(_as_headrace_error(error, "its pipes cannot be made")))
        return
    write_answer(ChannelsAnswer(folders={}))
    for pipes in made:
        threading.Thread(target=_write, args=(pipes,), daemon=True).start()


def _write(pipes: EpochPipes) -> None:
    try:
        pipes.serve()
    except Exception as error:  # noqa: BLE001  (a thread's end would leave the script waiting)
        write_answer(
            ChannelsAnswer.of(_as_headrace_error(error, f"channel {pipes.name} cannot be written"))
        )


def _as_headrace_error(error: Exception, what: str) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return StorageError(f"{what}: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    main()
