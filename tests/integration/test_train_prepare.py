"""`headrace.train.prepare` with each strategy, and its errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from headrace.core.errors import UsageError
from headrace.train import prepare
from training import Network, optimizer_of, train


@pytest.fixture(autouse=True)
def without_process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("strategy", "kind", "group"),
    [
        ("ddp", DistributedDataParallel, True),
        ("fsdp", FSDPModule, True),
        ("dp", nn.DataParallel, False),
        ("none", Network, False),
    ],
)
def test_without_a_launcher_every_strategy_trains_in_a_world_of_one(strategy, kind, group):
    model = prepare(Network(), strategy, device="cpu")
    assert isinstance(model, kind)
    assert dist.is_initialized() == group
    train(model, optimizer_of(model), range(2))


def test_a_process_group_that_is_there_is_used():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    prepare(Network(), "ddp", device="cpu")
    assert dist.group.WORLD is group


@pytest.mark.parametrize(
    ("strategy", "message"),
    [("ddpp", "Choose one of: ddp, fsdp, dp, none"), ("DDP", "does not exist")],
)
def test_an_unknown_strategy_is_reported(strategy: str, message: str):
    with pytest.raises(UsageError, match=message):
        prepare(Network(), strategy)


def test_rank_without_the_rest_of_torchrun_s_variables_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(UsageError, match=r"RANK is set.*headrace run"):
        prepare(Network(), "ddp", device="cpu")


def test_a_model_without_anything_to_train_is_reported():
    model = Network().requires_grad_(False)
    with pytest.raises(UsageError, match="strategy='none'"):
        prepare(model, "ddp", device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device here")
def test_a_device_that_is_not_there_is_reported():
    with pytest.raises(UsageError, match="this host has 0 device"):
        prepare(Network(), "none", device="cuda")
