"""A command with a bucket: images and shards on disk and in a real S3 server, 30 ms away.

    python benchmarks/strategies/bucket.py headrace sweep examples/sweeps/strategies.toml

The command finds the server by AWS's variables; its data are in bench-data/strategies, and in the
bucket that the server has.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "tools"), str(HERE.parent)]

from remote import prepare, services  # noqa: E402 - after the path


def main() -> None:
    """Prepare the data, run the command, and exit as it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--data", type=Path, default=Path("bench-data/strategies"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with services(options.data / "s3") as urls:
        prepare(options.data, options.images, urls)
        sys.exit(subprocess.run(options.command, check=False).returncode)


if __name__ == "__main__":
    main()
