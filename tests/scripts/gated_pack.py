"""Packs SRC into DST; stops at the image that holds b"GATE", saying so, until it is killed."""

from __future__ import annotations

import os
import signal
import sys

from headrace.core.errors import HeadraceError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions


def stop_at_barrier(extension: str, data: bytes) -> None:
    if b"GATE" in data:
        sys.stdout.write(f"{os.getpid()}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    options = PackOptions(shard_bytes=10_000, keep_order=True, workers=1)
    try:
        pack(sys.argv[1], sys.argv[2], options, check=stop_at_barrier)
    except HeadraceError as error:
        sys.exit(str(error))
