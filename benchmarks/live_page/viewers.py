"""What do three viewers of the live page cost a job, and how soon does its switch have an effect?

    python benchmarks/live_page/viewers.py --minutes 8

A job computes steps on one core of this machine, which the server shares. In alternating blocks
three viewers follow it as pages do, or nobody does: each follows the stream of events, and asks for
the charts on its screen and the texts whenever the stream says so. Then recording is switched off
and on from the page, and the job's own rows say when it stopped and went on.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.records.reader import open_records
from report import machine

BLOCK_S, SETTLE_S, _ANSWER_S = 15.0, 4.0, 600.0
VIEWERS = 3
ON_SCREEN = ("timeline", "heatmap", "phases")
SWITCHES = 5
TRAIN = """
import sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
work = torch.randn(420, 420)
loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=8)
with open(sys.argv[1], "w", buffering=1) as times:
    while True:
        for (batch,) in loader:
            began = time.monotonic()
            for _ in range(12):
                work @ work
            model(batch).mean().backward()
            optimizer.step()
            times.write(f"{time.monotonic()} {time.monotonic() - began}\\n")
"""


class Viewer:
    """One page: its stream of events, and what it asks for."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._path = parts.netloc, parts.path.rstrip("/")
        connection = http.client.HTTPConnection(self._host, timeout=_ANSWER_S)
        connection.request("GET", f"{parts.path}?{parts.query}")  # the token moves into a cookie
        cookie = connection.getresponse().getheader("Set-Cookie", "")
        connection.close()
        self._headers = {"Cookie": cookie.partition(";")[0]}

    def follow(self, until: Event) -> None:
        """Follow the run until an event is set."""
        stream = http.client.HTTPConnection(self._host, timeout=_ANSWER_S)
        stream.request("GET", f"{self._path}/events", headers=self._headers)
        events = stream.getresponse()
        while not until.is_set():
            line = events.readline()
            if line.startswith(b"data:"):
                for what in (*(f"charts/{name}?columns=1118" for name in ON_SCREEN), "sections"):
                    self.ask(what)
        stream.close()

    def ask(self, what: str, body: object = None) -> None:
        """Ask for something, or have something changed."""
        connection = http.client.HTTPConnection(self._host, timeout=_ANSWER_S)
        own = {"Origin": f"http://{self._host}", "X-Headrace": "1"} if body is not None else {}
        data = None if body is None else json.dumps(body)
        method = "GET" if body is None else "POST"
        connection.request(method, f"{self._path}/{what}", data, self._headers | own)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        connection.close()


@contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run the job and the server; yield the URL of the run's page."""
    (folder / "train.py").write_text(TRAIN)
    headrace = [sys.executable, "-m", "headrace.cli.main"]
    environment = {**os.environ, "HEADRACE_TRACKING_URI": "off"}
    words = ["run", "--name", "base", "train.py", str(folder / "times")]
    job = subprocess.Popen([*headrace, *words], cwd=folder, env=environment,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        while not (folder / "times").exists() or (folder / "times").stat().st_size < 20_000:
            assert job.poll() is None, "the job has ended"
            time.sleep(0.5)
        words = ["report", "--live", "base", "--port", "0"]
        server = subprocess.Popen(
            [*headrace, *words], cwd=folder, stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        try:
            url = next(
                found[0] for line in server.stdout if (found := re.search(r"http://\S+", line))
            )
            yield f"{server.pid} {url}"
        finally:
            server.terminate()
            server.wait()
    finally:
        job.terminate()
        job.wait()


def watch(url: str, until: Event) -> None:
    """Be one viewer, in a process of its own."""
    os.nice(10)  # viewers have machines of their own
    Viewer(url).follow(until)


def blocks(folder: Path, pid: int, url: str, minutes: float) -> tuple[list[float], float]:
    """Return the ratio of step time with viewers to that without of each pair, and CPU's share."""
    ratios, server, used_s = [], psutil.Process(pid), 0.0
    pairs = max(int(minutes * 60 / 2 / (BLOCK_S + SETTLE_S)), 2)
    for _ in range(pairs):
        means = []
        for has_viewers in (False, True):
            until = multiprocessing.Event()
            viewers = [multiprocessing.Process(target=watch, args=(url, until), daemon=True)
                       for _ in range(VIEWERS if has_viewers else 0)]  # fmt: skip
            for viewer in viewers:
                viewer.start()
            time.sleep(SETTLE_S)
            began, cpu = time.monotonic(), sum(server.cpu_times()[:2])
            time.sleep(BLOCK_S)
            used_s += (sum(server.cpu_times()[:2]) - cpu) if has_viewers else 0.0
            means.append(step_s(folder, began, time.monotonic()))
            until.set()
            for viewer in viewers:
                viewer.terminate()
                viewer.join()
        ratios.append(means[1] / means[0])
    return ratios, used_s / (pairs * BLOCK_S)


def step_s(folder: Path, began: float, ended: float) -> float:
    """Return the median step between two moments."""
    rows = [line.split() for line in (folder / "times").read_text().splitlines()]
    taken = [float(row[1]) for row in rows if len(row) == 2 and began < float(row[0]) < ended]
    return statistics.median(taken)


def switch_delays_s(folder: Path, url: str) -> tuple[list[float], list[float]]:
    """Return how long after a click the last step was recorded, and then the first again."""
    page, stopped, begun = Viewer(url), [], []
    for _ in range(SWITCHES):
        off_ns = time.monotonic_ns()
        page.ask("switch", {"recording": False})
        time.sleep(4.0)
        on_ns = time.monotonic_ns()
        page.ask("switch", {"recording": True})
        time.sleep(4.0)
        steps = open_records(folder / "runs" / "base").table("steps")
        start = steps.column("start_ns").to_numpy()
        last = start[start < on_ns].max()
        stopped.append(max(last - off_ns, 0) / 1e9)
        begun.append((start[start > on_ns].min() - on_ns) / 1e9)
    return stopped, begun


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, running(Path(temporary)) as found:
        pid, url = found.split(" ", 1)
        ratios, share = blocks(Path(temporary), int(pid), url, options.minutes)
        stopped, begun = switch_delays_s(Path(temporary), url)
    random = np.random.default_rng(1)
    medians = [np.median(random.choice(ratios, len(ratios))) for _ in range(4000)]
    low, high = np.percentile(medians, (5, 95))
    print(machine())
    print(
        f"| step time, three viewers / none | {np.median(ratios):.4f} | {low:.4f} to {high:.4f} |"
    )
    print(f"| the server's CPU, of a core | {share:.1%} | |")
    for name, delays in (("off", stopped), ("on", begun)):
        shown = f"{statistics.median(delays):.2f} | {min(delays):.2f} to {max(delays):.2f}"
        print(f"| switched {name}: seen in the records after, s | {shown} |")


if __name__ == "__main__":
    main()
