"""Checkpoints and outputs of hosts that are machines of their own, with folders of their own."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from network_hosts import network_hosts, why_not

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=WHY_NOT or "")

RANKS = """
import os, pathlib, torch.distributed as dist
dist.init_process_group("gloo")
folder = pathlib.Path("/opt/ml/checkpoints")
print("rank", dist.get_rank(), "found", sorted(path.name for path in folder.iterdir()), flush=True)
dist.barrier()
(folder / f"of-rank-{dist.get_rank()}").write_text("state")
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
(model / f"part-{dist.get_rank()}").write_text("weights")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_host_elsewhere_keeps_its_own_and_finds_those_of_all(tmp_path: Path) -> None:
    if Path("/opt/ml").exists():
        pytest.skip("this machine has an /opt/ml")
    (tmp_path / "train.py").write_text(RANKS)
    token = tmp_path / "token"
    token.write_text("a-token-that-somebody-made\n")
    runs = tmp_path / "runs"
    runs.mkdir()
    with network_hosts(["one", "two"]) as (head, other):
        for name, files in (("a", []), ("b", ["of-rank-0", "of-rank-1"])):
            jobs = [
                host.start(
                    tmp_path, "cluster", "join", "--head", head.address, "--group", "gpu",
                    "--group", "gpu=2:cpus=1", "--token-file", str(token), "--name", name,
                    "--contract", "sagemaker", "--distribution", "torch_distributed",
                    "--profile", "off", "--checkpoint-uri", str(tmp_path / "kept"),
                    "--output-path", str(tmp_path / "out"), "train.py",
                    empty=None if host is head else runs, GLOO_SOCKET_IFNAME="eth0",
                )
                for host in (other, head)
            ]  # fmt: skip
            assert [job.wait(120) for job in jobs] == [0, 0], head.said(tmp_path)
            for rank in (0, 1):
                assert f"rank {rank} found {files}\n" in head.said(tmp_path)
            with tarfile.open(tmp_path / "out" / name / "output" / "model.tar.gz") as archive:
                assert archive.getnames() == ["part-0", "part-1"]
            assert not (tmp_path / "out" / name / "parts").exists() or not list(
                (tmp_path / "out" / name / "parts").rglob("*.*")
            )
            here = list((runs / name / "hosts").glob("*/ml/model/*"))
            assert len(here) == 1, "the other host's are not in this run's folder"
