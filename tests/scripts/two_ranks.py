"""Two gloo ranks: every strategy trains alike, and reads what the others saved.

They never destroy their process group, as many scripts do.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from collections.abc import Callable

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import headrace
from headrace.core.errors import CheckpointError, UsageError
from training import (
    Loader,
    Network,
    SharpnessAware,
    differences,
    everything,
    optimizer_of,
    train,
    train_with_closure,
)

LOCAL, REMOTE = sys.argv[1:3]
RANK = int(os.environ["RANK"])


def say(when: str) -> None:
    sys.stdout.write(f"in a group {when}: {dist.is_initialized()}\n")
    sys.stdout.flush()


def main() -> None:
    torch.manual_seed(RANK)  # ranks begin apart: prepare brings them together
    ddp = headrace.prepare(Network(), "ddp", "cpu")
    assert (dist.get_backend(), dist.get_world_size()) == ("gloo", 2)
    fsdp = headrace.prepare(_copy_of_rank_0(ddp), "fsdp", "cpu")
    _check_sharding(fsdp)
    _check_moved_buffers_are_rank_0_s()
    _check_nothing_listens_beyond_this_host()
    ddp_optimizer, fsdp_optimizer = optimizer_of(ddp), optimizer_of(fsdp)
    train(ddp, ddp_optimizer, range(3), RANK)
    train(fsdp, fsdp_optimizer, range(3), RANK)
    trained = everything(ddp, ddp_optimizer)
    assert not differences(trained, everything(fsdp, fsdp_optimizer), exact=False)

    headrace.Checkpointer(f"{LOCAL}/ddp").save(3, ddp, ddp_optimizer, Loader({"position": 7}))
    _check_restored_into_fsdp(trained)
    _check_frozen_parameters_get_their_state(trained)
    _check_state_by_closures()
    _check_remote(ddp, ddp_optimizer, trained)
    _check_loaders_that_differ(ddp)
    _check_loaders_of_different_seeds(ddp)
    _check_failures_reach_every_rank(ddp)
    headrace.Checkpointer(f"{LOCAL}/fsdp").save(3, fsdp, fsdp_optimizer, extra={"epoch": 1})
    reference = everything(fsdp, fsdp_optimizer)
    if RANK == 0:
        torch.save({"ddp": trained, "fsdp": reference}, f"{LOCAL}/reference.pt")


def _copy_of_rank_0(ddp: torch.nn.Module) -> Network:
    torch.manual_seed(100 + RANK)
    network = Network()
    if RANK == 0:
        network.load_state_dict(ddp.module.state_dict())
    return network


def _check_sharding(fsdp: torch.nn.Module) -> None:
    for name, parameter in fsdp.named_parameters():
        assert isinstance(parameter, DTensor), name
    assert type(fsdp.blocks[0]).__name__ == "FSDPBlock"
    assert fsdp.blocks[0].linear.weight.to_local().shape == (4, 8)


def _check_nothing_listens_beyond_this_host() -> None:
    torchrun = psutil.Process(os.getppid())
    processes = [torchrun.parent(), torchrun, *torchrun.children(recursive=True)]
    listening = [
        each.laddr.ip
        for process in processes
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3  # the store, and gloo in each rank
    assert set(listening) == {"127.0.0.1"}


class _Moved(Network):
    """Has another tensor as its buffer once it is moved, as a move to a device makes."""

    def _apply(self, *arguments, **settings):
        moved = super()._apply(*arguments, **settings)
        self.seen = self.seen.clone()
        return moved


def _check_moved_buffers_are_rank_0_s() -> None:
    network = _Moved()
    network.seen.fill_(10 + RANK)
    fsdp = headrace.prepare(network, "fsdp", "cpu")
    assert fsdp.seen.item() == 10


def _check_restored_into_fsdp(trained: dict) -> None:
    other = headrace.prepare(Network(), "fsdp", "cpu")
    optimizer, loader = optimizer_of(other), Loader()
    restored = headrace.Checkpointer(f"{LOCAL}/ddp").restore(other, optimizer, loader)
    assert restored is not None
    assert (restored.step, loader.state) == (3, {"position": 7})
    assert not differences(trained, everything(other, optimizer))


def _check_frozen_parameters_get_their_state(trained: dict) -> None:
    for trains_before in (False, True):
        model = headrace.prepare(Network(), "fsdp", "cpu")
        model.blocks.requires_grad_(False)
        optimizer = optimizer_of(model)
        train(model, optimizer, range(int(trains_before)), RANK)
        headrace.Checkpointer(f"{LOCAL}/ddp").restore(model, optimizer)
        assert not any(each.requires_grad for each in model.blocks.parameters())
        assert not differences(trained, everything(model, optimizer))
        model.requires_grad_()
        train(model, optimizer, range(3, 4), RANK)


def _check_state_by_closures() -> None:
    model = headrace.prepare(Network(4, 4), "fsdp", "cpu")
    optimizer = SharpnessAware(model.parameters(), lr=0.03, momentum=0.9)
    train_with_closure(model, optimizer, range(2))
    checkpointer = headrace.Checkpointer(f"{LOCAL}/closures")
    checkpointer.save(2, model, optimizer)
    other = headrace.prepare(Network(4, 4), "fsdp", "cpu")
    new = SharpnessAware(other.parameters(), lr=0.03, momentum=0.9)
    checkpointer.restore(other, new)
    train_with_closure(model, optimizer, range(2, 4))
    train_with_closure(other, new, range(2, 4))
    assert not differences(everything(model, optimizer), everything(other, new))

    lbfgs = torch.optim.LBFGS(other.parameters(), lr=0.25, max_iter=3)
    train_with_closure(other, lbfgs, range(2))
    message = "of LBFGS for entrance.weight is shared out over ranks otherwise"
    _expect(lambda: checkpointer.save(3, other, lbfgs), CheckpointError, message)
    assert checkpointer.latest() == 2


def _check_remote(model: torch.nn.Module, optimizer, trained: dict) -> None:
    remote = headrace.Checkpointer(REMOTE, keep=1)
    for step in (1, 2):
        remote.save(step, model, optimizer, extra=[step])
    assert remote.latest() == 2
    other = headrace.prepare(Network(), "ddp", "cpu")
    new = optimizer_of(other)
    restored = remote.restore(other, new)
    assert restored is not None
    assert restored.extra == [2]
    assert not differences(trained, everything(other, new))


def _check_loaders_that_differ(model: torch.nn.Module) -> None:
    checkpointer = headrace.Checkpointer(f"{LOCAL}/apart")
    checkpointer.save(1, model, loader=Loader({"of": RANK}))
    loader = Loader()
    checkpointer.restore(model, loader=loader)
    assert loader.state == {"of": RANK}


def _check_loaders_of_different_seeds(model: torch.nn.Module) -> None:
    checkpointer = headrace.Checkpointer(f"{LOCAL}/seeds")
    samples = list(range(8))
    apart = headrace.DataLoader(samples, batch_size=2, shuffle=True, seed=5 + RANK)
    message = "different seeds (rank 0: 5, rank 1: 6)"
    _expect(lambda: checkpointer.save(1, model, loader=apart), CheckpointError, message)
    assert checkpointer.latest() is None
    checkpointer.save(1, model, loader=headrace.DataLoader(samples, shuffle=True, seed=5))
    checkpointer.save(2, model, loader=headrace.DataLoader(samples, seed=5 + RANK))  # one order
    own = range(RANK, 8, 2)  # a sampler of its own: any seed will do
    checkpointer.save(3, model, loader=headrace.DataLoader(samples, sampler=own, seed=5 + RANK))
    assert checkpointer.latest() == 3


def _check_failures_reach_every_rank(model: torch.nn.Module) -> None:
    checkpointer = headrace.Checkpointer(f"{LOCAL}/failing")
    only_rank_1 = Loader({"x": {1, 2}} if RANK == 1 else {"x": 1})
    _expect(lambda: checkpointer.save(1, model, loader=only_rank_1), CheckpointError, "rank 1")
    assert checkpointer.latest() is None
    narrow = headrace.prepare(Network(outputs=3 if RANK == 0 else 5), "none", "cpu")
    message = "model.head.weight is [3, 8] in the checkpoint and [5, 8] here"
    apart = headrace.Checkpointer(f"{LOCAL}/apart")
    _expect(lambda: apart.restore(narrow), CheckpointError, message)
    bare = headrace.prepare(Network(), "none", "cpu")
    optimizer = optimizer_of(bare if RANK == 0 else Network())
    message = "rank 1: 10 of the optimizer's 10 parameters are not the model's"
    trained = headrace.Checkpointer(f"{LOCAL}/ddp")
    _expect(lambda: trained.restore(bare, optimizer), CheckpointError, message)
    assert not optimizer.state
    _expect(
        lambda: headrace.prepare(Network(), "dp", "cpu"), UsageError, "one process for all devices"
    )
    _expect(lambda: headrace.prepare(model, "ddp", "cpu"), UsageError, "only once")


def _expect(action: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        action()


# Registered before the group is made, so called after what leaves it.
atexit.register(lambda: say("at exit"))
main()
say("at the end")
