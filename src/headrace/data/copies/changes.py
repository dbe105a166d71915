"""Objects that were replaced or removed while a job ran: told at its end."""

from __future__ import annotations

from headrace.core.errors import HeadraceError
from headrace.data.copies.listing import Listing, list_channel, named_few
from headrace.data.copies.progress import say
from headrace.data.copies.request import Wanted
from headrace.data.storage import StorageConfig


def tell_changes(wanted: Wanted, before: Listing, config: StorageConfig, *, read: str) -> None:
    """List a channel once more and warn of objects that are others now.

    Args:
        wanted: The channel.
        before: What it had when the job began.
        config: How requests are made.
        read: What the job has read of such objects, as a message ends.
    """
    try:
        changed = list_channel(wanted, config).changes_since(before)
    except HeadraceError as error:
        tell_unknown(wanted.name, error)
        return
    if changed:
        these = "object was" if len(changed) == 1 else "objects were"
        say(
            f"headrace: warning: channel {wanted.name}: {len(changed):,} {these} replaced or "
            f"removed at {before.url} while the job ran, which has read {read}: "
            f"{named_few(changed)}\n"
        )


def tell_unknown(channel: str, error: HeadraceError) -> None:
    """Warn that nothing is known of such objects."""
    say(f"headrace: channel {channel}: whether it changed meanwhile is not known: {error}\n")
