"""What needs an accelerator: runs where CUDA is found and is skipped elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pack_sequence

import headrace
from headrace.observe.probe.gpu_metrics import GpuSampler
from headrace.records.reader import Records, open_records
from headrace.records.schema import PHASES
from headrace.train import prepare
from packed import pack_images
from training import Network, optimizer_of, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cuda")
    return pack_images(folder / "images", str(folder / "packed"), 64)


def batches(url: str, **options: object) -> list[dict]:
    loader = headrace.DataLoader(
        headrace.ShardDataset(url), 8, shuffle=True, num_workers=2, **options
    )
    return list(loader)


def test_batches_on_the_device_are_those_of_the_cpu(url: str):
    for ours, there in zip(batches(url), batches(url, device="cuda"), strict=True):
        assert there["jpg"].is_cuda
        assert torch.equal(there["jpg"].cpu(), ours["jpg"])
        assert torch.equal(there["cls"].cpu(), ours["cls"])


def test_pinned_batches_are_pinned(url: str):
    assert all(batch["jpg"].is_pinned() for batch in batches(url, pin_memory=True))


class PinsItself:
    """The custom type of torch's documentation: `pin_memory` alone is its own."""

    def __init__(self, samples: list[int]) -> None:
        self.x = torch.tensor(samples)

    def pin_memory(self) -> PinsItself:
        self.x = self.x.pin_memory()
        return self


class Graph(PinsItself):
    """As PyG's Batch."""

    def to(self, device: torch.device, *args: str, non_blocking: bool = False) -> Graph:
        assert not args
        assert non_blocking
        assert self.x.is_pinned()
        self.x = self.x.to(device, non_blocking=non_blocking)
        return self


def test_objects_that_know_themselves_how_are_pinned_and_moved():
    def collate(samples: list[int]) -> dict[str, object]:
        words = pack_sequence([torch.tensor(samples), torch.tensor(samples[:1])])
        return {"pins": PinsItself(samples), "graph": Graph(samples), "words": words}

    options = {"num_workers": 0, "collate_fn": collate}
    for batch in headrace.DataLoader(range(8), 2, pin_memory=True, **options):
        assert batch["pins"].x.is_pinned()
        assert batch["graph"].x.is_pinned()
        assert batch["words"].is_pinned()
    for number, batch in enumerate(headrace.DataLoader(range(8), 2, device="cuda", **options)):
        first, second = 2 * number, 2 * number + 1
        assert batch["graph"].x.is_cuda
        assert batch["graph"].x.tolist() == [first, second]
        assert batch["words"].data.is_cuda
        assert batch["words"].data.tolist() == [first, first, second]
        assert not batch["words"].batch_sizes.is_cuda


def test_the_transform_on_the_device_draws_alike_and_leaves_the_model_s_generators(url: str):
    def noisy(batch: dict) -> dict:
        noise = torch.rand(batch["jpg"].shape, device="cuda")
        return {**batch, "jpg": batch["jpg"] + noise}

    before = torch.cuda.get_rng_state()
    runs = [batches(url, device="cuda", device_transform=noisy) for _ in range(2)]
    assert all(torch.equal(a["jpg"], b["jpg"]) for a, b in zip(*runs, strict=True))
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_what_a_gpu_does_is_sampled():
    gpus = GpuSampler()
    work = torch.randn(4096, 4096, device="cuda")
    began_s = time.monotonic()
    while time.monotonic() - began_s < 0.5:
        torch.mm(work, work)
        torch.cuda.synchronize()
    sample = dict(zip(gpus.columns, gpus.sample(), strict=True))
    assert sample["gpu_0_utilisation_percent"] > 0
    assert sample["gpu_0_memory_bytes"] > work.nbytes
    if torch.cuda.get_device_capability()[0] >= 9:  # from Hopper on
        assert 0 < sample["gpu_0_sm_percent"] <= 100


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "dp", "none"])
def test_every_strategy_trains_on_the_device(strategy: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    try:
        model = prepare(Network(), strategy, device="cuda")
        train(model, optimizer_of(model), range(2))
        assert next(model.parameters()).is_cuda
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


SCRIPTS = Path(__file__).parents[1] / "scripts" / "probed"


def recorded(script: Path, folder: Path) -> Records:
    command = [sys.executable, "-m", "headrace.cli.main", "run", "--run-dir", str(folder / "run")]
    subprocess.run([*command, str(script)], check=True, timeout=240)
    return open_records(folder / "run")


def test_steps_have_phases_by_the_device_s_clock(tmp_path: Path):
    script = SCRIPTS / "on_cuda.py"
    records = recorded(script, tmp_path)
    rows = {(row["kind"], row["step"]): row for row in records.table("device_steps").to_pylist()}
    steps = [row for row in records.table("steps").to_pylist() if row["kind"] == "train"]
    assert len(steps) == 80
    assert {(row["copies"], row["pageable_copies"], row["blocking_copies"]) for row in steps} == {
        (2, 1, 1)
    }
    assert {("train", row["step"]) for row in steps[:-1]} <= rows.keys()
    for row in rows.values():
        assert row["device_wall_ns"] == sum(row[f"device_{phase}_ns"] for phase in PHASES)
    by_device = sum(rows["train", row["step"]]["device_wall_ns"] for row in steps[:-1])
    by_host = sum(row["wall_ns"] for row in steps[:-1])
    assert by_device == pytest.approx(by_host, rel=0.5)  # the device lags by its queue
    assert all(rows["train", row["step"]]["device_forward_ns"] > 0 for row in steps[:-1])
    assert all(rows["train", row["step"]]["device_copy_ns"] > 0 for row in steps[:-1])
    copies = records.table("device_copies").to_pylist()
    line = 1 + script.read_text().splitlines().index(
        '        x, y = x.to("cuda", non_blocking=True), y.clone().cuda()  # noqa: PLW2901'
    )
    assert {(row["file"], row["line"]) for row in copies} == {(str(script), line)}
    assert sum(row["copies"] for row in copies) == 160
    copied_ns = sum(row["device_copy_ns"] for row in rows.values())
    assert sum(row["device_ns"] for row in copies) == pytest.approx(copied_ns, rel=0.1)
    assert faults(records) == []


def faults(records: Records) -> list[dict]:
    return [row for row in records.table("events").to_pylist() if row["kind"] == "probe-fault"]


def test_a_graph_that_is_replayed_is_a_step(tmp_path: Path):
    records = recorded(SCRIPTS / "on_cuda_graph.py", tmp_path)
    steps = [row for row in records.table("steps").to_pylist() if row["kind"] == "train"]
    with_batches = [row for row in steps if row["batches"]]
    assert len(with_batches) == 80
    assert {(row["batches"], row["samples"], row["copies"]) for row in with_batches} == {(1, 8, 2)}
    rows = {row["step"]: row for row in records.table("device_steps").to_pylist()}
    on_device = [rows[row["step"]] for row in with_batches[:-1]]
    assert all(row["device_backward_ns"] > 0 for row in on_device)  # the whole graph's time
    assert faults(records) == []


def test_copies_beside_the_steps_cost_them_nothing(tmp_path: Path):
    records = recorded(SCRIPTS / "on_cuda_side_stream.py", tmp_path)
    rows = [row for row in records.table("device_steps").to_pylist() if row["kind"] == "train"]
    assert len(rows) >= 78
    wall_ns, copy_ns = (sum(row[f"device_{name}_ns"] for row in rows) for name in ("wall", "copy"))
    assert copy_ns < 0.05 * wall_ns  # of what their launching takes, not the 100 MB
    assert faults(records) == []
