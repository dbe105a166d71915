"""The sidecar that compares mounted channels at a job's start and end.

`python -m headrace.data.channels.change_watch --parent PID` ends with its parent. It reads a
request, one line, and lists the channels. On "end" it lists them again, and reports changes on
stderr; where its input ends it exits at once.
"""

from __future__ import annotations

import os
import sys

from headrace.core.errors import HeadraceError
from headrace.data.channels.listing import (
    ChannelListing,
    list_channel,
    warn_of_changes,
    warn_of_unknown_changes,
)
from headrace.data.channels.messages import END, ChannelsRequest
from headrace.data.channels.sidecar import become_sidecar
from headrace.data.storage import StorageConfig

_READ = "some of them as they were before, or as they are now"


def main() -> None:
    """List the channels, wait for the job's end, list them again and report changes."""
    become_sidecar(int(sys.argv[2]))
    request = ChannelsRequest.from_json(sys.stdin.readline())
    config = StorageConfig()
    before: dict[str, ChannelListing | HeadraceError] = {}
    for channel in request.channels:
        try:
            before[channel.name] = list_channel(channel, config)
        except HeadraceError as error:
            before[channel.name] = error
    if sys.stdin.readline().strip() == END:
        for channel in request.channels:
            listing = before[channel.name]
            if isinstance(listing, ChannelListing):
                warn_of_changes(channel, listing, config, read=_READ)
            else:
                warn_of_unknown_changes(channel.name, listing)
    os._exit(0)  # at once: threads of the client may still use the interpreter


if __name__ == "__main__":
    main()
