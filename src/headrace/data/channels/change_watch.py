"""The sidecar that compares mounted channels at a job's start and end.

It lists the channels. On `END` it lists them again, and reports changes on stderr; where its input
ends it exits at once.
"""

from __future__ import annotations

from headrace.core.errors import HeadraceError
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.channels.listing import (
    ChannelListing,
    list_channel,
    warn_of_changes,
    warn_of_unknown_changes,
)
from headrace.data.channels.sidecar_client import END, ChannelsRequest
from headrace.data.storage import StorageConfig, declare_leaf

_READ = "some of them as they were before, or as they are now"


def main(parent: SidecarParent) -> None:
    """List the channels, wait for the job's end, list them again and report changes."""
    declare_leaf()
    request = ChannelsRequest.from_fields(parent.request)
    config = StorageConfig()
    before: dict[str, ChannelListing | HeadraceError] = {}
    for channel in request.channels:
        try:
            before[channel.name] = list_channel(channel, config)
        except HeadraceError as error:
            before[channel.name] = error
    if parent.read() == END:
        for channel in request.channels:
            listing = before[channel.name]
            if isinstance(listing, ChannelListing):
                warn_of_changes(channel, listing, config, read=_READ)
            else:
                warn_of_unknown_changes(channel.name, listing)


if __name__ == "__main__":
    run_sidecar(main)
