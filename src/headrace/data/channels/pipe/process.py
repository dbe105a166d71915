"""The sidecar that serves channels as pipes while a job runs.

It lists the channels, and answers; on `SERVE` it makes the pipes, answers again, and writes to them
until its input ends. Where fetching fails it reports the error; the pipes stay open then, as their
end would look like the epoch's. It forks nothing: the object-store client does not survive a fork.
"""

from __future__ import annotations

import threading
from pathlib import Path

from headrace.core.errors import HeadraceError, StorageError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.listing import list_channel
from headrace.data.channels.pipe.epoch_pipes import ChannelStream, EpochPipes
from headrace.data.channels.sidecar_client import SERVE, ChannelsRequest
from headrace.data.storage import StorageConfig, declare_leaf

_MAX_REQUESTS = 128


def main(parent: SidecarParent) -> None:
    """List the channels, answer, and write to each one's pipes in a thread of its own."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig(in_flight=_MAX_REQUESTS)
    listings = [list_channel(channel, config) for channel in request.channels]
    parent.send({})
    if parent.read() != SERVE:
        return
    try:
        made = [
            EpochPipes(
                channel.name, Path(channel.folder), ChannelStream(listing, config), parent.pid
            )
            for channel, listing in zip(request.channels, listings, strict=True)
        ]
    except OSError as error:
        raise _as_headrace_error(error, "its pipes cannot be made") from error
    parent.send({})
    for pipes in made:
        threading.Thread(target=_write, args=(pipes, parent), daemon=True).start()
    parent.wait()


def _write(pipes: EpochPipes, parent: SidecarParent) -> None:
    try:
        pipes.serve()
    except Exception as error:  # noqa: BLE001  (a thread's end would leave the script waiting)
        parent.send_error(_as_headrace_error(error, f"channel {pipes.name} cannot be written"))


def _as_headrace_error(error: Exception, what: str) -> HeadraceError:
    if isinstance(error, HeadraceError):
        return error
    return StorageError(f"{what}: {type(error).__name__}: {error}.")


if __name__ == "__main__":
    run_sidecar(main)
