"""Workers that a script has Ray Train start on several hosts: all are ranks of one run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from headrace.observe.whatif.tables import columns
from headrace.records.reader import open_records
from jobs import eventually
from machine import needs
from two_host_job import SLOW_SAMPLES, steps_of, two_host_job

pytestmark = needs("networks")

TRAINS = f"""{SLOW_SAMPLES}
import ray, ray.train.torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def train(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Slow(), batch_size=4, num_workers=1, persistent_workers=True)
    going_on = torch.ones(1)
    while going_on.item():
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        going_on[0] = not pathlib.Path(config["folder"], "stop").exists()
        dist.all_reduce(going_on, op=dist.ReduceOp.MIN)

ray.init(log_to_driver=False)
TorchTrainer(
    train, train_loop_config={{"folder": sys.argv[1]}},
    scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
    run_config=RunConfig(storage_path=sys.argv[1] + "/trained"),
).fit()
print("trained", flush=True)
"""
RECORDER = "headrace.jobs.hosts.host_recorder"


def recorders() -> list[int]:
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if RECORDER in (process.info["cmdline"] or [])
    ]


def test_workers_on_both_hosts_are_recorded_with_their_loaders(tmp_path: Path) -> None:
    with two_host_job(tmp_path, "--driver", script=TRAINS) as (head, jobs, records):
        eventually(
            lambda: min(steps_of(records, rank) for rank in (0, 1)) > 20, "steps of both", 300
        )
        (tmp_path / "stop").touch()
        assert [each.wait(180) for each in jobs] == [0, 0], head.output(tmp_path / "code")
        said = head.output(tmp_path / "code")
    assert "trained" in said
    assert "not recorded" not in said
    recorded = open_records(records.path)
    ranks = columns(recorded, "processes").having(role="rank")
    assert set(zip(ranks["rank"].tolist(), ranks["host"].tolist(), strict=True)) in (
        {(0, 0), (1, 1)}, {(0, 1), (1, 0)},
    )  # fmt: skip
    workers = columns(recorded, "processes").having(role="worker")
    assert set(workers["host"].tolist()) == {0, 1}
    assert set(columns(recorded, "batches")["rank"].tolist()) == {0, 1}
    assert set(columns(recorded, "system")["host"].tolist()) == {0, 1}
    assert set(columns(recorded, "loaders")["file"]) == {str(tmp_path / "code" / "train.py")}
    assert not recorders()


def test_the_training_goes_on_without_what_records_a_host(tmp_path: Path) -> None:
    with two_host_job(tmp_path, "--driver", script=TRAINS) as (head, jobs, records):
        eventually(
            lambda: min(steps_of(records, rank) for rank in (0, 1)) > 5, "steps of both", 300
        )
        (recorder,) = recorders()
        os.kill(recorder, signal.SIGKILL)
        gone = "is recorded no more: killed by SIGKILL"
        eventually(lambda: gone in head.output(tmp_path / "code"), "what the job says of it", 120)
        (tmp_path / "stop").touch()
        assert [each.wait(180) for each in jobs] == [0, 0], head.output(tmp_path / "code")
        assert "trained" in head.output(tmp_path / "code")
