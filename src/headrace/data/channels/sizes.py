"""The number of objects and bytes of each channel, counted in a process of its own.

After a request to an object store a process must not fork, so a sidecar makes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from headrace.core.errors import HeadraceError, LaunchError, NotFoundError, StorageError, UsageError
from headrace.core.process.sidecar import SILENCE_S, Sidecar, SidecarParent, run_sidecar
from headrace.data.channels.listing import list_objects
from headrace.data.storage import (
    StorageConfig,
    declare_leaf,
    open_store,
    parse_url,
    safe_url,
    split_url,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSize:
    """The size of a channel."""

    objects: int  # or files
    size_bytes: int


def channel_sizes(
    sources: Mapping[str, str], *, first_alone: bool = False
) -> dict[str, ChannelSize]:
    """Return the size of each channel, from URLs or paths by the channels' names.

    `first_alone` counts one object of each at most, which is fast. UsageError: a channel is empty.
    StorageError: a store fails. LaunchError: the process that counts failed or fell silent.
    """
    if not sources:
        return {}
    sidecar = Sidecar(
        "headrace.data.channels.sizes", {"sources": dict(sources), "first_alone": first_alone}
    )
    try:
        answer = sidecar.receive(SILENCE_S)
        if answer is None:
            raise LaunchError(
                f"The channels cannot be counted: the process ended ({sidecar.last_words()})."
            )
        return {name: ChannelSize(**size) for name, size in answer["sizes"].items()}
    except TimeoutError as silence:
        raise LaunchError(
            f"The channels cannot be counted: {silence}. Was it stopped, or is this host out of "
            "memory? Start again."
        ) from None
    finally:
        sidecar.kill()


def main(parent: SidecarParent) -> None:
    """Count the objects of each channel."""
    declare_leaf()
    most = 1 if parent.request["first_alone"] else None
    sources = parent.request["sources"].items()
    with parent.heartbeats():
        parent.send({"sizes": {name: _size(name, url, most) for name, url in sources}})


def _size(name: str, url: str, most: int | None) -> dict[str, int]:
    where = f"--channel {name}={safe_url(url)}"
    try:
        sizes = list(islice(_object_sizes(url), most))
    except (UsageError, NotFoundError) as error:
        raise UsageError(f"{where}: {error}") from error
    except HeadraceError as error:
        raise StorageError(f"{where}: {error}") from error
    if not sizes:
        raise UsageError(
            f"{where}: there is nothing. Name a folder, a file, or a URL that holds data."
        )
    return {"objects": len(sizes), "size_bytes": sum(sizes)}


def _object_sizes(url: str) -> Iterator[int]:
    if parse_url(url).kind != "local":
        yield from (each.size_bytes for each in list_objects(url, StorageConfig())[2])
        return
    is_folder = False
    # Of a local folder, what is no file is left to the script, which may not open it.
    for each in open_store(url).list_entries():
        is_folder = True
        if not each.unreadable and each.is_folder is False:
            yield each.size_bytes
    if not is_folder:
        folder, name = split_url(url)
        with suppress(NotFoundError):
            yield open_store(folder).head(name).size_bytes


if __name__ == "__main__":
    run_sidecar(main)
