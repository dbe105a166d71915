"""Trains a little, prints a loss, logs by Headrace and by MLflow itself; may fail or wait."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from headrace import experiments

rank = int(os.environ.get("RANK", "0"))
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(40):
    loss = net(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"loss={step}", flush=True)  # noqa: T201 - for --metric
    experiments.log_time_series_metrics({f"seen.rank{rank}": step}, step=step)
if (settings := Path("settings.txt")).exists():
    momentum = settings.read_text()
    experiments.log_params({"momentum": momentum, "depth": 18, "hub_token": f"hf-{momentum}"})
if "--mlflow" in sys.argv:
    import mlflow

    mlflow.set_experiment("another")  # as published scripts do
    with mlflow.start_run(run_name="mine"):
        mlflow.log_param("optimizer", "sgd")
        if "--lr" in sys.argv:
            mlflow.log_param("lr", float(sys.argv[sys.argv.index("--lr") + 1]))
        mlflow.log_metric("accuracy", 0.75, step=3)
    with mlflow.start_run(run_name="second"):  # a run of its own
        mlflow.log_metric("accuracy", 0.5)
if "--wait" in sys.argv:
    Path("trained").touch()
    time.sleep(600)
if "--fail" in sys.argv:
    raise SystemExit(3)
