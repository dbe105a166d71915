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
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "tests")]

from jobs import eventually  # noqa: E402 - of the tests
from network_hosts import NetworkHost, network_hosts  # noqa: E402 - likewise
from report import Row, write_section  # noqa: E402

PAGE = HERE.parents[1] / "docs" / "offload.md"
GROUPS = {"gpu": ["algo-1"], "cpu": ["algo-2", "algo-3"]}
HOSTS = [host for hosts in GROUPS.values() for host in hosts]
LOCAL, PREPARE_S = 2, 0.040
AUXILIARY = len(os.sched_getaffinity(0))  # what Ray finds on each host
PHASE_S = 20.0
PHASES = {
    "both auxiliary hosts": LOCAL + 2 * AUXILIARY,
    "one of them killed": LOCAL + AUXILIARY,
    "the other frozen": LOCAL,
    "that one thawed": LOCAL + AUXILIARY,
}


def main() -> None:
    """Run the job, do it harm, and write down what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true", help="write nothing to docs/")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, network_hosts(HOSTS) as hosts:
        folder = Path(temporary)
        batches, marks = run({host.name: host for host in hosts}, folder)
        said = hosts[0].said(folder)
        addresses = {host.address: host.name for host in hosts}
    check_ledger(batches)
    publish(batches, marks, addresses, said, dry=options.dry)


def sagemaker(host: str) -> dict[str, str]:
    """Return SageMaker's variables of a host."""
    groups = {
        name: {"hosts": hosts, "instance_group_name": name, "instance_type": "ml.any"}
        for name, hosts in GROUPS.items()
    }
    return {
        "SM_HOSTS": json.dumps(HOSTS),
        "SM_CURRENT_HOST": host,
        "SM_CURRENT_INSTANCE_GROUP": next(name for name in GROUPS if host in GROUPS[name]),
        "SM_INSTANCE_GROUPS_DICT": json.dumps(groups),
        "SM_DISTRIBUTION_INSTANCE_GROUPS": '["gpu"]',
    }


def run(hosts: dict[str, NetworkHost], folder: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the ledger's batches, and when each phase began, the last one's end included."""
    ledger = folder / "ledger"
    (folder / "train.py").write_text((HERE / "scripts" / "ledger.py").read_text())
    command = ["cluster", "join", "--offload", "cpu", "--profile", "off", "train.py",
               "--workers", str(LOCAL), "--ledger", str(ledger)]  # fmt: skip
    launched = {name: host.start(folder, *command, **sagemaker(name))
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
        raise SystemExit(f"the job ended with {code}:\n{hosts['algo-1'].said(folder)}")
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


def check_ledger(batches: list[dict[str, Any]]) -> None:
    """Raise SystemExit unless each sample of each epoch came once."""
    epochs: dict[int, list[int]] = defaultdict(list)
    for batch in batches:
        epochs[batch["epoch"]] += batch["indices"]
    for epoch, indices in epochs.items():
        if sorted(indices) != list(range(len(indices))) or len(indices) != len(epochs[0]):
            twice = [index for index, count in Counter(indices).items() if count > 1]
            raise SystemExit(f"epoch {epoch}: {len(indices)} samples, twice: {twice[:10]}")
    print(f"{len(epochs)} epochs of {len(epochs[0])} samples, each sample of each once")


def publish(
    batches: list[dict[str, Any]], marks: list[float], addresses: dict[str, str], said: str, *,
    dry: bool,
) -> None:  # fmt: skip
    """Print the table, and write it to the page."""
    lines = ["| | samples/s | what the workers left could make | longest wait for a batch |",
             "|---|---|---|---|"]  # fmt: skip
    rows = []
    for (name, workers), begin_s, end_s in zip(PHASES.items(), marks[:-1], marks[1:], strict=True):
        times = [batch["time"] for batch in batches if begin_s <= batch["time"] < end_s]
        samples = sum(
            len(batch["indices"]) for batch in batches if begin_s <= batch["time"] < end_s
        )
        ideal = workers / PREPARE_S
        longest_s = max(later - earlier for earlier, later in pairwise(times))
        rate = samples / (end_s - begin_s)
        lines.append(f"| {name} | {rate:.0f} | {ideal:.0f} | {longest_s:.2f} s |")
        made = Counter(
            addresses[host] for batch in batches if begin_s <= batch["time"] < end_s
            for host in batch["hosts"]
        )  # fmt: skip
        print(name, dict(made))
        rows.append(Row(f"{name}: of what the workers left could make", [rate / ideal], ">= 0.9"))
    told = [line for line in said.splitlines() if "auxiliary host" in line]
    print(*told, sep="\n")
    epochs = max(batch["epoch"] for batch in batches) + 1
    table = [*lines, "", f"{epochs} epochs, each sample of each came once."]
    write_section(
        "Hosts that are killed and frozen", "sudo python benchmarks/cluster/faults.py", table, rows,
        page=PAGE, dry=dry,
    )  # fmt: skip


if __name__ == "__main__":
    main()
