"""MLflow's own server, and what MLflow's own client reads of runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Run

from headrace.decide.experiments.run_target import database_uri
from jobs import clean_environment, eventually

_START_S = 300.0  # it imports all of MLflow, beside other tests


def free_port() -> int:
    """Return a port at which nothing listens at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int, database: Path | None = None) -> Iterator[str]:
    """Run a server on a port of this host for the block; yield its tracking URI.

    Its database is made in the folder, unless one is given.
    """
    uri = f"http://127.0.0.1:{port}"
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{database or folder / 'server.db'}"]
    words += ["--artifacts-destination", str(folder / "server-artifacts")]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            env=clean_environment(),
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            eventually(lambda: _answers(uri), f"MLflow at {uri}", _START_S)
            yield uri
        finally:
            # On a busy machine its Python takes a minute to end; its folder is this test's own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=5) as answer:  # noqa: S310 - loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def run_of(runs: Path, name: str, experiment: str) -> tuple[MlflowClient, Run]:
    """Return the only run of a name in the database of a runs folder, and the client."""
    client = MlflowClient(database_uri(runs))
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id], f"attributes.run_name = '{name}'")
    return client, run


def history(client: MlflowClient, run: Run, metric: str) -> list[tuple[int, float]]:
    """Return the points of a metric as (step, value), by step."""
    points = client.get_metric_history(run.info.run_id, metric)
    return sorted((point.step, point.value) for point in points)
