"""A whole job on three hosts, of which one is killed and one is frozen while it trains.

    sudo python benchmarks/cluster/faults.py

Three network namespaces are the hosts: one of group `gpu`, two of group `cpu`. On each of them runs
`headrace cluster join` with SageMaker's environment. Preparation takes 40 ms a sample and no core.
Every sample of every epoch has to come once; throughput may fall by the lost share alone. Writes a
section of docs/offload.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

from cpu_steal import run_undisturbed  # noqa: E402 - stands above this folder
from jobs import eventually  # noqa: E402 - of the tests
from network_hosts import NetworkHost, network_hosts, sagemaker  # noqa: E402 - as above
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
GROUPS = {"gpu": ["algo-1"], "cpu": ["algo-2", "algo-3"]}
HOSTS = [host for hosts in GROUPS.values() for host in hosts]
LOCAL, PREPARE_S = 2, 0.040
AUXILIARY = len(os.sched_getaffinity(0))  # what Ray finds on each host
PHASE_S = 20.0
SAMPLES = 2000  # an epoch
FIRST = "both auxiliary hosts"
PHASES = {
    FIRST: LOCAL + 2 * AUXILIARY,
    "one killed": LOCAL + AUXILIARY,
    "the other frozen too": LOCAL,
    "the frozen one resumed": LOCAL + AUXILIARY,
}


def main() -> None:
    """Run the job, do it harm, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    runs, epochs = [], []
    for number in range(options.rounds):
        batches, phases = run_undisturbed(lambda _: job())
        epochs.append(check_ledger(batches))
        runs.append(phases)
        for name, phase in phases.items():
            summary = f"{phase.rate:.0f} samples/s {phase.made}"
            print(f"round {number + 1}: {name}: {summary}", flush=True)
    publish(runs, epochs, dry=options.dry)


def job() -> tuple[list[dict[str, Any]], dict[str, Phase]]:
    """Run a job and do it harm; return its batches and its phases."""
    with tempfile.TemporaryDirectory() as temporary, network_hosts(HOSTS) as hosts:
        folder = Path(temporary)
        batches, marks = run({host.name: host for host in hosts}, folder)
        summary = [
            line for line in hosts[0].output(folder).splitlines() if "auxiliary host" in line
        ]
        print(*summary, sep="\n")
        return batches, phases_of(batches, marks, {host.address: host.name for host in hosts})


def run(hosts: dict[str, NetworkHost], folder: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the ledger's batches, and when each phase began, the last one's end included."""
    ledger = folder / "ledger"
    (folder / "train.py").write_text((HERE / "scripts" / "ledger.py").read_text())
    command = ["cluster", "join", "--offload", "cpu", "--profile", "off", "train.py"]
    command += ["--workers", str(LOCAL), "--ledger", str(ledger), "--samples", str(SAMPLES)]
    launched = {name: host.start(folder, *command, **sagemaker(host, GROUPS, "gpu"))
                for name, host in hosts.items()}  # fmt: skip
    everybody = {host.address for host in hosts.values()}
    eventually(lambda: makers(ledger, 50) >= everybody, "batches of all hosts", 120)
    marks = [time.time()]
    time.sleep(PHASE_S)  # a phase of the measurement
    hosts["algo-2"].kill_all()
    marks.append(time.time())
    time.sleep(PHASE_S)
    frozen = send(hosts["algo-3"], signal.SIGSTOP)
    marks.append(time.time())
    time.sleep(PHASE_S)
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    marks.append(time.time())
    time.sleep(PHASE_S)
    marks.append(time.time())
    (folder / "enough").touch()
    code = launched["algo-1"].wait(120)
    if code:
        raise SystemExit(f"the job ended with {code}:\n{hosts['algo-1'].output(folder)}")
    return read(ledger), marks


def send(host: NetworkHost, number: signal.Signals) -> list[int]:
    """Send all processes of a host a signal; return them."""
    pids = host.pids()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return pids


def read(ledger: Path) -> list[dict[str, Any]]:
    """Return the batches of a ledger."""
    return [json.loads(line) for line in ledger.read_text().splitlines() if line.endswith("}")]


def makers(ledger: Path, last: int) -> set[str]:
    """Return who made the last batches."""
    batches = read(ledger)[-last:] if ledger.exists() else []
    return {host for batch in batches for host in batch["hosts"]}


def check_ledger(batches: list[dict[str, Any]]) -> int:
    """Return how many epochs there were; SystemExit unless each sample of each came once."""
    epochs: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        epochs[batch["epoch"]] += batch["indices"]
    for epoch, indices in epochs.items():
        if sorted(indices) != list(range(SAMPLES)):
            twice = [index for index, count in Counter(indices).items() if count > 1]
            raise SystemExit(f"epoch {epoch}: {len(indices)} samples, twice: {twice[:10]}")
    return len(epochs)


@dataclass(frozen=True, slots=True)
class Phase:
    """What came while so many workers were left.

    Attributes:
        rate: Samples a second.
        longest_s: The longest wait for a batch.
        made: How many samples each host made.
    """

    rate: float
    longest_s: float
    made: dict[str, int]


def phases_of(
    batches: list[dict[str, Any]], marks: list[float], addresses: dict[str, str]
) -> dict[str, Phase]:
    """Return the phases between these marks."""
    phases = {}
    for name, begin_s, end_s in zip(PHASES, marks[:-1], marks[1:], strict=True):
        own = [batch for batch in batches if begin_s <= batch["time"] < end_s]
        times = [batch["time"] for batch in own]
        phases[name] = Phase(
            rate=sum(len(batch["indices"]) for batch in own) / (end_s - begin_s),
            longest_s=max(later - earlier for earlier, later in pairwise(times)),
            made=dict(Counter(addresses[host] for batch in own for host in batch["hosts"])),
        )
    return phases


def publish(runs: list[dict[str, Phase]], epochs: list[int], *, dry: bool) -> None:
    """Print the table, and write it to the page."""
    lines = [
        "| | samples/s | capacity of the remaining workers | longest wait for a batch |",
        "|---|---|---|---|",
    ]
    rows = []
    whole, before = PHASES[FIRST], [phases[FIRST].rate for phases in runs]
    for name, workers in PHASES.items():
        rates = [phases[name].rate for phases in runs]
        longest_s = max(phases[name].longest_s for phases in runs)
        ideal = workers / PREPARE_S
        lines.append(f"| {name} | {median(rates):.0f} | {ideal:.0f} | {longest_s:.2f} s |")
        rows.append(Row(f"{name}: share of the remaining workers' capacity",
                        [rate / ideal for rate in rates], ">= 0.9"))  # fmt: skip
        if name != FIRST:
            left = [rate / was / (workers / whole) for rate, was in zip(rates, before, strict=True)]
            rows.append(Row("... rate / rate before, over the share of workers left", left,
                            ">= 0.95"))  # fmt: skip
    longest = [max(phase.longest_s for phase in phases.values()) for phases in runs]
    rows.append(Row("longest wait for a batch, s", longest, "<= 5"))
    table = [
        *lines,
        "",
        f"{sum(epochs)} epochs of {SAMPLES} samples; each sample came exactly once.",
    ]
    write_section(
        "Killed and frozen hosts", "sudo python benchmarks/cluster/faults.py", table, rows,
        page=PAGE, dry=dry,
    )  # fmt: skip


if __name__ == "__main__":
    main()
