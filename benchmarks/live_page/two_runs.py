"""How long does the server take to compare two long runs on many hosts, and how much memory?

    python benchmarks/live_page/generate.py FOLDER/runs/a      # five minutes each
    python benchmarks/live_page/generate.py FOLDER/runs/b
    python benchmarks/live_page/two_runs.py FOLDER

A server is started for each time. It is asked for the numbers of both runs side by side, as the
page /compare asks.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from long_run import live_server, memory_mb
from viewers import Viewer

from report import machine, print_medians


def measure(folder: Path) -> dict[str, float]:
    """Return what one comparison takes."""
    with live_server(folder, "a") as (process, url):
        server = psutil.Process(process.pid)
        viewer = Viewer(urlunsplit(urlsplit(url)._replace(path="/")))
        before_mb, before, began = memory_mb(server, "VmRSS"), server.cpu_times(), time.monotonic()
        viewer.ask("api/comparison?run=a&run=b")
        took_s, after = time.monotonic() - began, server.cpu_times()
        return {
            "answer, s": took_s,
            "CPU time, s": after.user + after.system - before.user - before.system,
            "server before, MB": before_mb,
            "server at most, MB": memory_mb(server, "VmHWM"),
        }


def main() -> None:
    """Measure several times, and print medians and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    print(machine())
    rounds = [measure(options.folder) for _ in range(options.times)]
    print_medians(rounds)


if __name__ == "__main__":
    main()
