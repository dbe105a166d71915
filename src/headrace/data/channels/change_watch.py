"""The sidecar that looks whether mounted channels change while a job runs.

`python -m headrace.data.channels.change_watch --parent PID` ends with whoever started it. It reads
a request, one line, and lists the channels. On "end" it lists them again, and says on stderr what
has changed; where its input ends it goes at once.
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
    """List, wait, and list again."""
    become_sidecar(int(sys.argv[2]))
    request = ChannelsRequest.from_json(sys.stdin.readline())
    config = StorageConfig()
    before: dict[str, ChannelListing | HeadraceError] = {}
    for wanted in request.channels:
        try:
            before[wanted.name] = list_channel(wanted, config)
        except HeadraceError as error:
            before[wanted.name] = error
    if sys.stdin.readline().strip() == END:
        for wanted in request.channels:
            listing = before[wanted.name]
            if isinstance(listing, ChannelListing):
                warn_of_changes(wanted, listing, config, read=_READ)
            else:
                warn_of_unknown_changes(wanted.name, listing)
    os._exit(0)  # threads of the client may still want the interpreter


if __name__ == "__main__":
    main()
