"""A job of one rank on each of two hosts, of which one does not see the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from headrace.observe.whatif.tables import columns
from headrace.records.reader import Records
from network_hosts import NetworkHost, network_hosts

APPLIED = ("--apply", "num_workers=2")
SLOW_SAMPLES = """
import pathlib, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        end = time.perf_counter() + 0.004
        while time.perf_counter() < end:
            pass
        return torch.ones(4)
"""
"""The begin of a script: a dataset whose samples take 4 ms of a core each."""
TRAIN = f"""{SLOW_SAMPLES}
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Slow(), batch_size=4, num_workers=1, persistent_workers=True)
going_on = torch.ones(1)
while going_on.item():
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    going_on[0] = not pathlib.Path(sys.argv[1], "stop").exists()
    dist.all_reduce(going_on, op=dist.ReduceOp.MIN)
dist.destroy_process_group()
"""


@contextmanager
def two_host_job(
    folder: Path, *flags: str, script: str = TRAIN
) -> Iterator[tuple[NetworkHost, list[Popen[bytes]], Records]]:
    """Start the job, its run called b; flags are those of `headrace run`.

    Returns the head, the processes of both hosts, the head's last, and the run's records.
    """
    code, runs = folder / "code", folder / "runs"
    code.mkdir()
    runs.mkdir()
    (code / "train.py").write_text(script)
    (folder / "token").write_text("a-token-that-somebody-made\n")
    joins = ["cluster", "join", "--group", "gpu", "--group", "gpu=2:cpus=1"]
    joins += ["--token-file", str(folder / "token"), "--tracking-uri", "off"]
    joins += ["--run-dir", str(runs / "b"), *(flags or APPLIED)]
    with network_hosts(["one", "two"]) as (head, other):
        jobs = [
            host.start(
                code, *joins, "--head", head.address, "train.py", str(folder),
                empty=None if host is head else runs, GLOO_SOCKET_IFNAME="eth0",
            )
            for host in (other, head)
        ]  # fmt: skip
        yield head, jobs, Records(runs / "b", 1)


def steps_of(records: Records, rank: int) -> int:
    """Return how many steps of a rank are recorded; 0 before there are records."""
    return columns(records, "steps").having(rank=rank, kind="train").count


def switched_off(records: Records) -> set[str]:
    """Return the kinds of events that say that recording was switched off."""
    events = columns(records, "events")
    return {
        str(kind)
        for kind, text in zip(events["kind"], events["text"], strict=True)
        if str(text).startswith("off")
    }
