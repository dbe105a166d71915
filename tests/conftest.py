"""Services that tests of every part use: a real S3 server, and fresh URLs on it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import settings
from s3_server import S3Server
from s3_server import s3_server as run_s3_server

# Those that take longest: what is begun last ends last. Files that start Ray, whose hosts wait more
# than they work, alternate with others, so that cores are busy from the first minute on.
BEGUN_FIRST = (
    "test_cluster_run.py",
    "test_tracked_jobs.py",
    "test_ray_vit.py",
    "test_records_of_other_hosts.py",
    "test_probe_scripts.py",
    "test_offload.py",
    "test_sweep.py",
    "test_ray_dataset.py",
    "test_experiments.py",
    "test_live_page.py",
    "test_cluster_join.py",
    "test_estimator_cases.py",
    "test_cluster_offload.py",
    "test_offload_iterable.py",
    "test_exactness.py",
    "test_cluster_requirements.py",
    "test_channels.py",
    "test_piped_channels.py",
    "test_scripts_ray.py",
    "test_estimator.py",
    "test_examples.py",
    "test_network_host_sync.py",
    "test_train_ranks.py",
    "test_train_kills.py",
    "test_loader_processes.py",
    "test_vertex_sdk.py",
    "test_goldens.py",
    "test_probe_live.py",
    "test_run.py",
    "test_outer_jobs.py",
    "test_on_several_hosts.py",
)

# Files below `integration` of whole jobs on several hosts, with trackers and clusters, which take
# half of all the time: `make test` leaves them out, to stay within its budget; `make test-all` and
# CI run them. What they put together has shorter tests of its own.
LONG = frozenset({
    "test_advice.py",
    "test_channels.py",
    "test_cluster_join.py",
    "test_cluster_offload.py",
    "test_cluster_requirements.py",
    "test_cluster_run.py",
    "test_doctor_ranks.py",
    "test_estimator.py",
    "test_estimator_cases.py",
    "test_examples.py",
    "test_experiments.py",
    "test_installing.py",
    "test_live_attempts.py",
    "test_live_conditions.py",
    "test_live_hosts.py",
    "test_live_keys.py",
    "test_live_page.py",
    "test_live_spans.py",
    "test_network_host_sync.py",
    "test_offload.py",
    "test_offload_iterable.py",
    "test_on_several_hosts.py",
    "test_outer_jobs.py",
    "test_pages_of_mlflow_and_tensorboard.py",
    "test_piped_channels.py",
    "test_probe_live.py",
    "test_probe_scripts.py",
    "test_ray_dataset.py",
    "test_ray_train_hosts.py",
    "test_ray_vit.py",
    "test_records_of_other_hosts.py",
    "test_scripts_ray.py",
    "test_sweep.py",
    "test_tracked_jobs.py",
    "test_vertex_sdk.py",
})  # fmt: skip

# What makes a process a rank, or a part of a run.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                  "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
RUN_PREFIXES = ("HEADRACE_", "TORCHELASTIC_")


def rank_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name in RANK_VARIABLES or name.startswith(RUN_PREFIXES)
    }


# MLflow's import takes a second of a core: tests of tracking switch it on.
os.environ.setdefault("HEADRACE_TRACKING_URI", "off")
VARIABLES_AT_FIRST = rank_variables()

# What looks whether files are being written takes leases on them. The sidecars that do so ignore
# the signal by which the kernel asks for one back, and which else ends a process. Programs that
# tests start do not inherit a handler.
signal.signal(signal.SIGIO, lambda *_: None)

# Some shells forbid Python to keep what it has compiled, and every process that a test starts would
# compile Headrace anew: half of what such a process costs.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads of torch that have no work sleep, in every process that a test starts: several processes
# share the cores, and threads that spin for others that wait for a core take thirty times the CPU.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long files, too")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave long files out, without importing them, unless all are wanted or one is named."""
    is_long = collection_path.name in LONG and "integration" in collection_path.parts
    if not is_long or config.getoption("--long"):
        return None
    named = {Path(argument.partition("::")[0]).name for argument in config.args}
    return None if collection_path.name in named else True


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--long"):
        return None
    return f"left out: {len(LONG)} long files, which run with --long or by their names"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have several processes (make test) begin with the longest files, in place of the fullest."""
    places = {name: place for place, name in enumerate(BEGUN_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_configure() -> None:
    pytest.register_assert_rewrite("recorded")  # its checks print what they saw
    settings.register_profile("headrace", deadline=None)  # how long an example takes says nothing
    settings.load_profile("headrace")
    # A shell starts what it runs in the background with ctrl-C ignored, and every process that a
    # test starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail a test after which this process takes itself for a rank: the next ones would, too."""
    yield
    left = []
    if (now := rank_variables()) != VARIABLES_AT_FIRST:
        left.append(f"variables: {now}, at first {VARIABLES_AT_FIRST}")
        for name in now.keys() - VARIABLES_AT_FIRST.keys():
            del os.environ[name]
        os.environ.update(VARIABLES_AT_FIRST)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
        left.append("torch's process group")
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with run_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server.bucket}/{uuid4().hex}"


@pytest.fixture(scope="session")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow's, to copy: its tables take MLflow two seconds."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("database")
    MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"
