"""Checkpoints and outputs of hosts that are machines of their own, with folders of their own."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from jobs_here import run_job
from machine import needs, skip_without
from network_hosts import network_hosts
from services.mlflow_server import history, run_of

pytestmark = needs("networks")

RANKS = """
import os, pathlib, sys, time
rank, shared = os.environ["RANK"], pathlib.Path(sys.argv[1])
folder = pathlib.Path("/opt/ml/checkpoints")
print("here", os.getcwd(), flush=True)
print("rank", rank, "found", sorted(path.name for path in folder.iterdir()), flush=True)
if shared.name == "first":
    (shared / rank).touch()
    while len(list(shared.iterdir())) < 2:  # before both have looked, none writes
        time.sleep(0.01)
else:
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    print("sum", total.item(), "of", dist.get_world_size(), flush=True)
    dist.destroy_process_group()
    from headrace import experiments

    experiments.log_params({f"host-of-{rank}": os.environ["SM_CURRENT_HOST"]})
    for step in range(3):
        experiments.log_time_series_metrics({f"loss-{rank}": step / 2}, step=step)
    experiments.log_artifact(__file__)
(folder / f"of-rank-{rank}").write_text(shared.name)
(pathlib.Path(os.environ["SM_MODEL_DIR"]) / f"part-{rank}").write_text("weights")
"""


def test_a_network_host_syncs_its_own_and_finds_those_of_all(
    tmp_path: Path, new_database: Path
) -> None:
    """What a job on emulated hosts has saved: one on hosts with addresses of their own finds it.

    Those are named by hand, as is their token; their ranks meet. What both log is in one run.
    """
    skip_without("no-opt-ml")
    (tmp_path / "train.py").write_text(RANKS)
    shutil.copy(new_database, tmp_path)
    token = tmp_path / "token"
    token.write_text("a-token-that-somebody-made\n")
    for folder in ("runs", "first", "second"):
        (tmp_path / folder).mkdir()
    out, saved, runs = tmp_path / "out", tmp_path / "saved", tmp_path / "runs"
    flags = ["--contract", "sagemaker", "--distribution", "torch_distributed", "--profile", "off"]
    flags += ["--checkpoint-uri", str(saved), "--output-path", str(out)]
    first = [*flags, "--name", "a", "--group", "gpu=2"]
    ended = run_job(tmp_path, *first, "train.py", str(tmp_path / "first"))
    assert ended.returncode == 0, ended.stderr
    joins = ["cluster", "join", "--group", "gpu", "--group", "gpu=2:cpus=1"]
    joins += ["--token-file", str(token), *flags, "--name", "b"]
    with network_hosts(["one", "two"]) as (head, other):
        jobs = [
            host.start(
                tmp_path,
                *joins,
                "--head",
                head.address,
                "train.py",
                str(tmp_path / "second"),
                empty=None if host is head else runs,
                GLOO_SOCKET_IFNAME="eth0",
                HEADRACE_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db",
            )
            for host in (other, head)
        ]
        assert [job.wait(120) for job in jobs] == [0, 0], head.output(tmp_path)
        for rank in (0, 1):
            assert f"rank {rank} found ['of-rank-0', 'of-rank-1']\n" in head.output(tmp_path)
        assert head.output(tmp_path).count("sum 3.0 of 2\n") == 2
        assert head.output(tmp_path).count(f"here {tmp_path}\n") == 1  # the other one has a copy
        assert "a-token" not in head.output(tmp_path) + other.output(tmp_path)
        said = " ".join((head.output(tmp_path) + other.output(tmp_path)).split())
        assert said.count("is on another machine than the run, and is not logged") == 1
        for rank in (0, 1):  # the other's logs come here
            logged = (runs / "b" / "logs" / "attempt-1" / f"rank-{rank}.stdout").read_text()
            assert logged.startswith("here /")
            assert f":{rank}] {logged.splitlines()[0]}\n" in head.output(tmp_path)
    client, tracked = run_of(tmp_path, "b", "train")
    assert tracked.info.status == "FINISHED"
    assert len({tracked.data.params[f"host-of-{rank}"] for rank in (0, 1)}) == 2
    for rank in (0, 1):
        assert history(client, tracked, f"loss-{rank}") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert [each.path for each in client.list_artifacts(tracked.info.run_id)] == ["train.py"]
    run_json = (runs / "b" / "run.json").read_text()
    assert "--group=gpu=2:cpus=1" in run_json, "the cores that are counted, too"
    for rank in (0, 1):
        files = (saved / "files").glob(f"of-rank-{rank}@*")
        assert "second" in {file.read_text() for file in files}
    with tarfile.open(out / "b" / "output" / "model.tar.gz") as archive:
        assert archive.getnames() == ["part-0", "part-1"]
    parts = out / "b" / "parts"
    assert not parts.exists() or not list(parts.rglob("*.*"))
    own_models = list((runs / "b" / "hosts").glob("*/ml/model/*"))
    assert len(own_models) == 1, "the other host's are not in this run's folder"
