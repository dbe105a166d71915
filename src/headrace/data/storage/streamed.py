"""Channels that are streamed: a script names their folder, and what reads shards their URL."""

from __future__ import annotations

import json
import os.path

from headrace.core import env


def streamed_url(url: str) -> str:
    """Return where the data of a streamed channel are, if that is what is named; else the same.

    In modes Pipe and Stream no folder is there: `HEADRACE_STREAMED` says what would lie in it.

    Args:
        url: A URL, or a path: a channel's folder, or one below it.
    """
    told = env.STREAMED.get()
    if told is None or "://" in url:
        return url
    path = os.path.abspath(url)  # noqa: PTH100  (links are not followed: the place is none)
    for folder, data in json.loads(told).items():
        if path == folder or path.startswith(f"{folder}/"):
            return f"{data.rstrip('/')}{path[len(folder) :]}"
    return url
