"""One process, a folder and a real S3 bucket."""

from __future__ import annotations

import copy
import fcntl
import os
import pickle
import shutil
import signal
from decimal import Decimal
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import torch

from headrace import DataLoader
from headrace.core.errors import CheckpointError, UsageError
from headrace.core.files import is_temporary
from headrace.data.storage import open_store
from headrace.train import Checkpointer, Restored, state_dicts
from training import (
    Loader,
    Network,
    OnlyInTraining,
    SharpnessAware,
    assert_same,
    differences,
    everything,
    optimizer_of,
    train,
    train_with_closure,
)


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "checkpoints")
    found: str = request.getfixturevalue("s3_url")
    return found


def trained(steps: int) -> tuple[Network, torch.optim.Optimizer]:
    torch.manual_seed(steps)
    model = Network()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(steps))
    return model, optimizer


def names(url: str) -> set[str]:
    return {info.path.partition("/")[0] for info in open_store(url).list()}


def test_what_is_saved_comes_back_together(url: str):
    checkpointer = Checkpointer(url)
    assert checkpointer.latest() is None
    assert checkpointer.restore(*trained(1)) is None
    model, optimizer = trained(3)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 30])
    extra = {"epoch": 2, "scheduler": scheduler.state_dict()}
    checkpointer.save(3, model, optimizer, Loader({"position": 96}), extra)
    expected = everything(model, optimizer)
    other, new_optimizer = trained(0)
    loader = Loader()
    restored = Checkpointer(url).restore(other, new_optimizer, loader)
    assert restored == Restored(step=3, extra=extra)  # the milestones stay numbers
    assert loader.state == {"position": 96}
    assert not differences(expected, everything(other, new_optimizer))
    train(model, optimizer, range(3, 6))
    train(other, new_optimizer, range(3, 6))
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))


def test_the_names_of_a_checkpoint_s_files_are_on_the_disk_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flushed: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    Checkpointer(str(tmp_path / "c")).save(1, *trained(1))
    (metadata,) = (tmp_path / "c").glob("*/*/.metadata")
    save = metadata.parent
    (commit,) = (at for at, path in enumerate(flushed) if is_temporary(Path(path).name))
    assert flushed[commit + 1 :] == [str(save.parent)]
    for folder in (save, save.parent, save.parent.parent, tmp_path):
        assert str(folder) in flushed[:commit]


def test_a_scratch_folder_of_a_dead_process_is_removed_and_a_live_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, live = (tmp_path / f"headrace-checkpoint-{name}" for name in ("abandoned", "live"))
    for folder in (abandoned, live):
        folder.mkdir()
        (folder / "in-use").touch()
    with (live / "in-use").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as its process, while it lives
        checkpointer = Checkpointer(f"memory://{uuid4().hex}")
        checkpointer.save(1, *trained(1))
        restored = checkpointer.restore(*trained(0))
    assert restored is not None
    assert list(tmp_path.glob("headrace-*")) == [live]  # torch has a folder there, too


def test_the_newest_stay_and_the_same_step_is_replaced(url: str):
    checkpointer = Checkpointer(url, keep=2)
    model, optimizer = trained(1)
    for step in range(4):
        checkpointer.save(step, model, optimizer, extra="first")
    assert names(url) == {"step-000000000002", "step-000000000003"}
    files = [info.path for info in open_store(url).list("step-000000000003")]
    checkpointer.save(3, model, optimizer, extra="again")
    restored = checkpointer.restore(model, optimizer)
    assert restored == Restored(step=3, extra="again")
    again = [info.path for info in open_store(url).list("step-000000000003")]
    assert len(again) == len(files) == 3
    assert set(again) & set(files) == {"step-000000000003/commit.json"}
    with pytest.raises(CheckpointError, match="already holds step 3"):
        checkpointer.save(2, model)


def test_steps_of_more_digits_are_the_newest_and_older_ones_go(url: str):
    checkpointer = Checkpointer(url, keep=2)
    model, optimizer = trained(1)
    steps = [7, 10**12 - 1, 10**12, 10**13, 1_790_000_000_000_000]  # microseconds since 1970, say
    for step in steps:
        checkpointer.save(step, model, optimizer, extra=step)
        assert checkpointer.latest() == step
        assert Checkpointer(url).restore(*trained(0)) == Restored(step=step, extra=step)
    assert names(url) == {f"step-{step}" for step in steps[-2:]}
    with pytest.raises(CheckpointError, match=f"already holds step {steps[-1]}"):
        checkpointer.save(10**12, model)


def test_an_incomplete_checkpoint_is_never_offered(url: str):
    checkpointer = Checkpointer(url)
    model, optimizer = trained(1)
    for step in (1, 2, 3):
        checkpointer.save(step, model, optimizer)
    store = open_store(url)
    store.delete("step-000000000003/commit.json")
    assert checkpointer.latest() == 2
    (file,) = [
        info.path for info in store.list("step-000000000002") if info.path.endswith(".distcp")
    ]
    store.delete(file)
    assert checkpointer.latest() == 1
    assert checkpointer.restore(model, optimizer) == Restored(step=1, extra=None)
    checkpointer.save(2, model, optimizer)  # in the folder of the one that was left incomplete
    assert checkpointer.latest() == 2
    assert names(url) == {"step-000000000001", "step-000000000002"}


def test_a_checkpoint_that_training_removes_meanwhile_gives_way_to_a_newer_one(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    trains, evaluates = Checkpointer(url, keep=1), Checkpointer(url)
    model, optimizer = trained(1)
    trains.save(1, model, optimizer, extra="old")
    newest = evaluates._catalog.newest
    answers = [newest()]
    trains.save(2, model, optimizer, extra="new")
    monkeypatch.setattr(
        evaluates._catalog, "newest", lambda: answers.pop() if answers else newest()
    )
    assert evaluates.restore(*trained(0)) == Restored(step=2, extra="new")
    gone = [newest()]
    open_store(url).delete("step-000000000002/commit.json")
    for info in list(open_store(url).list()):
        open_store(url).delete(info.path)
    answers += gone
    with pytest.raises(CheckpointError, match="it is missing"):
        evaluates.restore(*trained(0))


def test_damage_is_reported_with_the_file_and_the_way_on(url: str):
    checkpointer = Checkpointer(url)
    model, optimizer = trained(1)
    checkpointer.save(1, model, optimizer)
    store = open_store(url)
    (file,) = [info.path for info in store.list() if info.path.endswith(".distcp")]
    data = bytearray(store.get(file))
    data[len(data) // 2] ^= 1
    store.put(file, bytes(data))
    other, new_optimizer = trained(0)
    before = everything(model, optimizer)
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp: its checksum differs.*Delete the"):
        checkpointer.restore(other, new_optimizer)
    assert not differences(before, everything(model, optimizer))


def test_a_loader_that_refuses_its_state_leaves_the_model_as_it_was(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(2, *trained(2), DataLoader(range(8), 2, sampler=range(8), num_workers=0))
    model, optimizer = trained(1)
    before = copy.deepcopy(model.state_dict())
    loader = DataLoader(range(8), 4, sampler=range(8), num_workers=0)
    held = loader.state_dict()
    with pytest.raises(CheckpointError, match="4 sample"):
        checkpointer.restore(model, optimizer, loader)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert loader.state_dict() == held


def test_without_optimizer_and_loader_theirs_is_left_out(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = trained(2)
    checkpointer.save(2, model, optimizer, Loader({"position": 1}))
    other, _ = trained(0)
    assert checkpointer.restore(other) is not None
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    checkpointer.save(3, model)
    with pytest.raises(CheckpointError, match="holds no optimizer"):
        checkpointer.restore(model, optimizer)
    with pytest.raises(CheckpointError, match="holds no loader"):
        checkpointer.restore(model, loader=Loader())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: Network(outputs=5), r"model\.head\.weight is \[3, 8\] .* and \[5, 8\] here"),
        (lambda: Network(depth=4), r"model\.blocks\.3\.linear\.weight is not in the checkpoint"),
        (lambda: Network(depth=2), r"model\.blocks\.2\.linear\.weight is only in the checkpoint"),
    ],
)
def test_another_model_is_refused_by_the_names_of_its_parameters(tmp_path: Path, other, message):
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(1, *trained(1))
    model = other()
    optimizer = optimizer_of(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        checkpointer.restore(model, optimizer)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not optimizer.state


def test_another_kind_of_optimizer_is_refused(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = trained(1)
    checkpointer.save(1, model, optimizer)
    gradients = [parameter.grad for parameter in model.parameters()]
    momentum = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError, match=r"optimizer\.state\..*momentum_buffer is not in"):
        checkpointer.restore(model, momentum)
    kept = [parameter.grad for parameter in model.parameters()]
    assert all(one is other for one, other in zip(gradients, kept, strict=True))


def test_an_optimizer_that_has_not_stepped_stays_so(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = trained(0)
    checkpointer.save(0, model, optimizer)
    assert not optimizer.state
    other, new_optimizer = trained(0)
    checkpointer.restore(other, new_optimizer)
    assert not new_optimizer.state
    train(model, optimizer, range(2))
    train(other, new_optimizer, range(2))
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))


def test_parameters_that_never_got_a_gradient_have_no_state(tmp_path: Path):
    model, optimizer = trained(0)
    optimizer.zero_grad()
    model.entrance(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert len(optimizer.state) == 2
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(1, model, optimizer)
    other, new_optimizer = trained(0)
    checkpointer.restore(other, new_optimizer)
    assert len(new_optimizer.state) == 2
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))


def sparse_adam():
    model = torch.nn.Embedding(6, 4, sparse=True)
    return model, torch.optim.SparseAdam(model.parameters(), lr=0.25)


def network_with(kind, **settings):
    model = Network()
    return model, kind(model.parameters(), **settings)


NEED_MORE_THAN_A_STEP = {
    "sparse gradients": sparse_adam,
    "closure": lambda: network_with(torch.optim.LBFGS, lr=0.25, max_iter=3),
    "line search": lambda: network_with(torch.optim.LBFGS, line_search_fn="strong_wolfe"),
    "two losses": lambda: network_with(SharpnessAware, lr=0.03, momentum=0.9),
    "switch": lambda: network_with(OnlyInTraining, lr=0.25),
}


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("make", NEED_MORE_THAN_A_STEP.values(), ids=NEED_MORE_THAN_A_STEP)
def test_optimizers_come_back_whatever_their_step_needs(tmp_path: Path, make, steps, used):
    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = make()
    train_with_closure(model, optimizer, range(steps))
    before = copy.deepcopy(optimizer.state_dict())
    checkpointer.save(steps, model, optimizer)
    assert_same(optimizer.state_dict(), before)
    torch.manual_seed(5)
    other, new_optimizer = make()
    new_optimizer.param_groups[0]["lr"] = 0.5
    train_with_closure(other, new_optimizer, range(2 * used))
    assert checkpointer.restore(other, new_optimizer) is not None
    assert_same(new_optimizer.state_dict(), optimizer.state_dict())
    train_with_closure(model, optimizer, range(3, 6))
    train_with_closure(other, new_optimizer, range(3, 6))
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert_same(new_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("rate", [0.25, torch.tensor(0.25)], ids=["number", "tensor"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("make", [*NEED_MORE_THAN_A_STEP.values(), lambda: trained(0)])
def test_a_restore_that_fails_leaves_the_optimizer_as_it_was(tmp_path: Path, make, frozen, rate):
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(1, *trained(1))
    model, optimizer = make()
    model.unknown = torch.nn.Parameter(torch.ones(1))
    for parameter in model.parameters():
        parameter.requires_grad = not frozen
        parameter.grad = torch.ones_like(parameter)
    gradients = [parameter.grad for parameter in model.parameters()]
    group = optimizer.param_groups[0]
    group["lr"] = rate
    before = dict(group)
    with pytest.raises(CheckpointError, match=r"model\.unknown is not in the checkpoint"):
        checkpointer.restore(model, optimizer)
    assert optimizer.param_groups[0] is group
    assert group == before
    assert group["lr"] is rate
    assert not optimizer.state
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert parameter.requires_grad != frozen


def frozen_part(model: Network, optimizer: torch.optim.Optimizer) -> None:
    model.entrance.requires_grad_(False)
    model.blocks.requires_grad_(False)


def frozen_whole(model: Network, optimizer: torch.optim.Optimizer) -> None:
    model.requires_grad_(False)


def stepped_while_frozen(model: Network, optimizer: torch.optim.Optimizer) -> None:
    frozen_part(model, optimizer)
    train(model, optimizer, range(2))


@pytest.mark.parametrize("freeze", [frozen_part, frozen_whole, stepped_while_frozen])
@pytest.mark.parametrize(
    "kind",
    [
        torch.optim.AdamW,
        partial(torch.optim.SGD, momentum=0.9),
        torch.optim.Adafactor,  # whose state has other shapes
        torch.optim.Adagrad,  # which has state before its first step
        partial(OnlyInTraining, weight_decay=0.0),
    ],
)
def test_parameters_that_are_frozen_at_first_get_their_state(tmp_path: Path, freeze, kind):
    def make():
        model = Network()
        optimizer = kind(model.parameters(), lr=0.25)
        optimizer.trains = True
        return model, optimizer

    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = make()
    train(model, optimizer, range(2))
    checkpointer.save(2, model, optimizer)
    other, new_optimizer = make()
    freeze(other, new_optimizer)
    new_optimizer.trains = False
    frozen = [parameter.requires_grad for parameter in other.parameters()]
    checkpointer.restore(other, new_optimizer)
    assert [parameter.requires_grad for parameter in other.parameters()] == frozen
    assert_same(new_optimizer.state_dict(), optimizer.state_dict())
    other.requires_grad_()
    new_optimizer.trains = True
    train(model, optimizer, range(2, 4))
    train(other, new_optimizer, range(2, 4))
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))


def test_frozen_parameters_without_state_take_no_memory_for_any(tmp_path: Path):
    model, optimizer = trained(0)
    frozen_part(model, optimizer)
    train(model, optimizer, range(2))
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(2, model, optimizer)
    other, new_optimizer = trained(0)
    frozen_part(other, new_optimizer)
    with_gradient: list[torch.Tensor] = []

    def note(*_: object) -> None:
        with_gradient.extend(each for each in other.parameters() if each.grad is not None)

    new_optimizer.register_step_pre_hook(note)
    checkpointer.restore(other, new_optimizer)
    assert {id(each) for each in with_gradient} == {id(each) for each in other.head.parameters()}
    assert_same(new_optimizer.state_dict(), optimizer.state_dict())


def test_groups_of_parameters_keep_their_settings(tmp_path: Path):
    def grouped(rate: float):
        model = Network()
        groups = [
            {"params": model.head.parameters(), "lr": rate},
            {"params": [*model.entrance.parameters(), *model.blocks.parameters()]},
        ]
        return model, torch.optim.SGD(groups, lr=0.5, momentum=0.9)

    model, optimizer = grouped(0.125)
    train(model, optimizer, range(2))
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(2, model, optimizer)
    other, new_optimizer = grouped(0.75)
    checkpointer.restore(other, new_optimizer)
    assert [group["lr"] for group in new_optimizer.param_groups] == [0.125, 0.5]
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))


def test_what_cannot_be_kept_is_refused_before_anything_is_written(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path / "c"))
    model, optimizer = trained(1)
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        checkpointer.save(1, model, optimizer, extra={"tensor": torch.ones(1)})
    with pytest.raises(CheckpointError, match="steps count from 0"):
        checkpointer.save(-1, model)
    foreign = optimizer_of(Network())
    with pytest.raises(CheckpointError, match="10 of the optimizer's 10 parameters are not"):
        checkpointer.save(1, model, foreign)
    assert checkpointer.latest() is None
    with pytest.raises(UsageError, match="keep=0"):
        Checkpointer(str(tmp_path), keep=0)


def test_numpy_scalars_in_an_optimizer_come_back_as_numbers(tmp_path: Path):
    model, optimizer = trained(1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5 * (1 + np.cos(0.25)))
    rate = optimizer.param_groups[0]["lr"]
    assert isinstance(rate, np.generic)
    optimizer.param_groups[0]["betas"] = (np.float32(0.5), 0.75)
    optimizer.state[model.head.weight]["seen"] = {"counts": [np.int64(3)]}
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(1, model, optimizer)
    assert optimizer.param_groups[0]["lr"] is rate
    other, new_optimizer = trained(1)
    new_optimizer.state[other.head.weight]["seen"] = None
    checkpointer.restore(other, new_optimizer)
    (group,) = new_optimizer.param_groups
    assert (type(group["lr"]), group["lr"], group["betas"]) == (float, float(rate), (0.5, 0.75))
    counts = new_optimizer.state[other.head.weight]["seen"]["counts"]
    assert [(type(count), count) for count in counts] == [(int, 3)]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            Decimal(1),
            r"optimizer\.param_groups\.0\.note is a decimal\.Decimal, which cannot be read",
        ),
        ([1, {"of": np.ones(2)}], r"param_groups\.0\.note\.1\.of is a numpy\.ndarray, .*tensors"),
        (lambda: 1, r"param_groups\.0\.note is a builtins\.function"),
    ],
)
def test_what_could_never_be_restored_is_refused_before_it_counts(tmp_path: Path, value, message):
    checkpointer = Checkpointer(str(tmp_path), keep=1)
    model, optimizer = trained(1)
    checkpointer.save(1, model, optimizer)
    optimizer.param_groups[0]["note"] = value
    with pytest.raises(CheckpointError, match=message):
        checkpointer.save(2, model, optimizer)
    assert checkpointer.restore(*trained(0)) == Restored(step=1, extra=None)
    optimizer.param_groups[0]["note"] = [1, {"of": torch.ones(2)}]
    checkpointer.save(2, model, optimizer)
    assert checkpointer.restore(*trained(0)) == Restored(step=2, extra=None)


def test_a_description_names_no_class_of_the_standard_library(tmp_path: Path):
    Checkpointer(str(tmp_path)).save(1, *trained(1))
    (description,) = tmp_path.glob("step-*/*/.metadata")
    modules = set()

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str):
            modules.add(module.partition(".")[0])
            return super().find_class(module, name)

    with description.open("rb") as file:
        Reader(file).load()
    assert modules == {"torch"}


def test_a_description_that_cannot_be_read_back_leaves_the_checkpoints_before_it(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    checkpointer = Checkpointer(url, keep=1)
    checkpointer.save(1, *trained(1))
    with monkeypatch.context() as patch:  # as if another torch named one more class
        needed = {each for each in state_dicts._ALLOWED_CLASSES if each[1] != "_StorageInfo"}
        patch.setattr(state_dicts, "_ALLOWED_CLASSES", needed)
        with pytest.raises(CheckpointError, match=r"\.metadata asks for .*_StorageInfo"):
            checkpointer.save(2, *trained(2))
    assert checkpointer.restore(*trained(0)) == Restored(step=1, extra=None)


@pytest.mark.parametrize("caught", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_amid_a_save_is_no_failure_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caught: type[BaseException]
):
    checkpointer = Checkpointer(str(tmp_path))
    checkpointer.save(1, *trained(1))
    before = signal.getsignal(signal.SIGINT)

    def stop(*_: object) -> None:
        raise caught

    def interrupted(self: object, **_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(state_dicts.PlainCheckpointWriter, "finish", interrupted)
        signal.signal(signal.SIGINT, stop)
        try:
            with pytest.raises(caught):  # torch makes a CheckpointException of it
                checkpointer.save(2, *trained(2))
        finally:
            signal.signal(signal.SIGINT, before)
    assert checkpointer.restore(*trained(0)) == Restored(step=1, extra=None)


def test_an_optimizer_stays_without_state_where_reading_fails(tmp_path: Path):
    checkpointer = Checkpointer(str(tmp_path))
    model, optimizer = trained(1)
    optimizer.param_groups[0]["note"] = Decimal(1)
    with torch.serialization.safe_globals([Decimal]):  # only where it is saved, not where read
        checkpointer.save(1, model, optimizer)
    other, new_optimizer = trained(0)
    with pytest.raises(CheckpointError, match="Decimal"):
        checkpointer.restore(other, new_optimizer)
    assert not new_optimizer.state


def test_a_disk_that_cannot_be_written_is_one_error(tmp_path: Path):
    (tmp_path / "file").touch()
    model, _ = trained(0)
    with pytest.raises(CheckpointError, match="Not a directory"):
        Checkpointer(str(tmp_path / "file" / "below")).save(1, model)


def test_dataparallel_and_bare_models_read_one_another(tmp_path: Path):
    model, optimizer = trained(2)
    Checkpointer(str(tmp_path)).save(2, torch.nn.DataParallel(model), optimizer)
    other, new_optimizer = trained(0)
    Checkpointer(str(tmp_path)).restore(other, new_optimizer)
    assert not differences(everything(model, optimizer), everything(other, new_optimizer))
    shutil.rmtree(tmp_path)
