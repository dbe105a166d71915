"""The number of objects and bytes of each channel, counted in a process of its own.

`python -m headrace.data.channels.sizes [--first]` reads URLs by channel name, one JSON object, and
answers with another; with `--first` it counts one object of each at most. After a request to an
object store a process must not fork, so another process makes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headrace.core import env
from headrace.core.errors import HeadraceError, LaunchError, NotFoundError, StorageError, UsageError
from headrace.data.storage import declare_leaf, open_store, safe_url, split_url


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSize:
    """The size of a channel.

    Attributes:
        objects: Number of objects or files.
        size_bytes: Their total size.
    """

    objects: int
    size_bytes: int


def channel_sizes(
    sources: Mapping[str, str], *, first_alone: bool = False
) -> dict[str, ChannelSize]:
    """Return the size of each channel.

    Args:
        sources: URLs or paths, by the channels' names.
        first_alone: Count one object of each at most, which is fast.

    Raises:
        UsageError: A channel is empty.
        StorageError: A store fails.
    """
    if not sources:
        return {}
    ended = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "headrace.data.channels.sizes",
            *(["--first"] * first_alone),
        ],
        input=json.dumps(dict(sources)),
        env=env.child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise LaunchError(f"The channels cannot be counted: {ended.stderr.strip()[-500:]}")
    found = {}
    for name, answer in json.loads(ended.stdout).items():
        if "wrong" in answer:
            raise UsageError(answer["wrong"])
        if "failed" in answer:
            raise StorageError(answer["failed"])
        found[name] = ChannelSize(**answer)
    return found


def main() -> None:
    """Answer the request on standard input."""
    declare_leaf()
    most = 1 if "--first" in sys.argv else None
    answer = {name: _answer(name, url, most) for name, url in json.load(sys.stdin).items()}
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # an orderly exit may abort: threads of the client still use the interpreter


def _answer(name: str, url: str, most: int | None) -> dict[str, object]:
    where = f"--channel {name}={safe_url(url)}"
    try:
        sizes = list(islice(_object_sizes(url), most))
    except (UsageError, NotFoundError) as error:
        return {"wrong": f"{where}: {error}"}
    except HeadraceError as error:
        return {"failed": f"{where}: {error}"}
    if not sizes:
        return {"wrong": f"{where}: there is nothing. Name a folder, a file, or a URL that holds "
                "data."}  # fmt: skip
    return {"objects": len(sizes), "size_bytes": sum(sizes)}


def _object_sizes(url: str) -> Iterator[int]:
    path = Path(url.removeprefix("file://")).expanduser()
    if "://" not in url.removeprefix("file://"):
        files = path.rglob("*") if path.is_dir() else [path]
        yield from (each.stat().st_size for each in files if each.is_file())
        return
    is_folder = False
    for each in open_store(url).list():
        is_folder = True
        yield each.size_bytes
    if not is_folder:
        folder, name = split_url(url)
        with suppress(NotFoundError):
            yield open_store(folder).head(name).size_bytes


if __name__ == "__main__":
    main()
