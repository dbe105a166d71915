"""Photographs in a bucket that answers late, in shards there, and in a folder of this host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tools")]

from s3_server import s3_server  # noqa: E402 - as above
from slow_proxy import slow_proxy  # noqa: E402 - as above

from headrace.core.env import child_environment  # noqa: E402 - after the path
from images import make_folder  # noqa: E402 - as above

COUNT, LATENCY_MS = 96, 50
FILL = """
import sys
from pathlib import Path
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.shards.pack import pack
from headrace.data.storage import open_store
folder, bucket = Path(sys.argv[1]), sys.argv[2]
store = open_store(f"{bucket}/objects")
for file in sorted(folder.glob("*/*.jpg")):
    store.put(str(file.relative_to(folder)), file)
pack(str(folder), f"{bucket}/shards", PackOptions(shard_bytes=4 << 20))
"""
"""Run in a process of its own: one that has called the storage's client cannot be forked after."""


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """Where they lie.

    Attributes:
        environment: Of processes that are to find the bucket.
        places: URLs and folders by name: `objects`, `shards`, `files`.
    """

    environment: Mapping[str, str]
    places: Mapping[str, str]


@contextmanager
def late_bucket(folder: Path) -> Iterator[Photographs]:
    """Fill a real S3 server's bucket below a folder; from then on it answers LATENCY_MS later."""
    files = folder / "files"
    make_folder(files, COUNT)
    with s3_server(folder / "s3") as server:
        bucket = f"s3://{server.bucket}"
        subprocess.run(
            [sys.executable, "-c", FILL, str(files), bucket],
            env=child_environment(server.environment()), check=True,
        )  # fmt: skip
        with slow_proxy(server.endpoint, latency_ms=LATENCY_MS) as proxy:
            yield Photographs(
                environment=server.environment() | {"AWS_ENDPOINT_URL": proxy.endpoint},
                places={
                    "objects": f"{bucket}/objects",
                    "shards": f"{bucket}/shards",
                    "files": str(files),
                },
            )
