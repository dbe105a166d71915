"""Where a training step begins and ends, in loops of many styles."""

from __future__ import annotations

from types import ModuleType

import pytest

from headrace.observe.probe.shared_batches import hook_collectives
from headrace.observe.probe.step_clock import StepClock
from headrace.observe.probe.step_segments import DeviceCopyCounts, Segment


class Script:
    """A rank's script: each phase takes as many nanoseconds as it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, Segment]] = []
        self.clock = StepClock(lambda *row: self.rows.append(row))
        self.now_ns = 1000

    def passes(self, ns: int) -> int:
        self.now_ns += ns
        return self.now_ns

    def fetch(self, loader: int, wait: int, *, grad: bool = True, ended: bool = False) -> None:
        self.clock.fetch_began(loader, self.now_ns, grad=grad)
        self.clock.fetch_ended(self.passes(wait), 4, ended=ended)

    def backward(self, took: int, sync: int | None = None) -> None:
        self.clock.backward_began(self.now_ns)
        self.clock.backward_ended(self.passes(took), sync)

    def accumulate(self, times: int) -> None:
        for _ in range(times):
            self.passes(20)
            self.backward(30)

    def optimize(self, took: int, optimizer: int = 1) -> None:
        self.clock.optimizer_began(optimizer, self.now_ns)
        self.clock.optimizer_ended(optimizer, self.passes(took))

    def copy(self, took: int, copies: DeviceCopyCounts) -> None:
        self.clock.within_began("copy", self.now_ns)
        # Where the sampler sees the script.
        assert self.clock.phase == ("copy" if self.clock.under_way else "other")
        self.clock.within_ended(self.passes(took), copies)

    def wait_for_ranks(self, took: int) -> None:
        self.clock.within_began("sync", self.now_ns)
        self.clock.within_ended(self.passes(took))

    def train(self, loader: int = 0, wait: int = 10) -> None:
        self.fetch(loader, wait)
        self.passes(20)
        self.backward(30)
        self.optimize(5)
        self.passes(1)

    def ends(self) -> list[tuple[str, dict[str, int]]]:
        """Return the rows, with what follows a loop's last step as part of that step."""
        joined: list[tuple[str, dict[str, int]]] = []
        for kind, row in self.all_rows():
            if kind == "between" and not row.keys() - {"other"} and joined[-1:][0][0] == "train":
                joined[-1][1].update({name: joined[-1][1].get(name, 0) + row[name] for name in row})
            else:
                joined.append((kind, row))
        return joined

    @property
    def steps(self) -> list[Segment]:
        return [row for kind, _, row in self.rows if kind == "train"]

    def all_rows(self) -> list[tuple[str, dict[str, int]]]:
        self.clock.close(self.now_ns)
        return [
            (kind, {name: ns for name, ns in row.phases_ns.items() if ns})
            for kind, _, row in self.rows
        ]

    def iterate(self, loader: int, took: int = 0) -> None:
        self.clock.iterator_began(loader, self.now_ns, grad=True)
        self.clock.iterator_ended(self.passes(took))


STEP = {"data_wait": 10, "forward": 20, "backward": 30, "optimizer": 5, "other": 1}


def test_a_plain_loop():
    script = Script()
    script.train()
    script.train(wait=40)
    assert script.ends() == [("train", STEP), ("train", {**STEP, "data_wait": 40})]
    assert [row.samples for row in script.steps] == [4, 4]


def test_a_request_that_fails_ends_its_wait_and_belongs_to_the_batch_that_is_taken_instead():
    script = Script()
    script.train()
    for _ in range(2):
        script.clock.fetch_began(0, script.now_ns, grad=True)
        script.clock.fetch_failed(script.passes(7))
        assert script.clock.phase == "other"
        script.passes(3)  # prints the error
    script.train()
    assert script.ends() == [("train", STEP), ("train", {**STEP, "data_wait": 24, "other": 7})]


def test_a_script_goes_on_after_an_error_in_its_loader_with_something_else():
    script = Script()
    script.train()
    script.clock.fetch_began(0, script.now_ns, grad=True)
    script.clock.fetch_failed(script.passes(7))
    script.passes(100)
    script.train(loader=1)
    after = ("between", {"data_wait": 7, "other": 100})
    assert script.ends() == [("train", STEP), after, ("train", STEP)]


def test_accumulated_gradients_make_a_step_of_several_batches():
    script = Script()
    for _ in range(3):
        script.fetch(0, 10)
        script.passes(20)
        script.backward(30)
    script.optimize(5)
    assert script.ends() == [
        ("train", {"data_wait": 30, "forward": 60, "backward": 90, "optimizer": 5})
    ]
    assert (script.rows[0][2].batches, script.rows[0][2].samples) == (3, 12)


def test_batches_that_are_all_fetched_before_the_first_backward():
    """As transformers' Trainer does it."""
    script = Script()
    script.fetch(0, 10)
    script.fetch(0, 10)
    script.accumulate(2)
    script.optimize(5)
    script.train()
    step = {"data_wait": 20, "forward": 40, "backward": 60, "optimizer": 5}
    assert script.ends() == [("train", step), ("train", STEP)]


@pytest.mark.parametrize(("batches", "backwards"), [(70, 70), (128, 128), (250, 250), (128, 1)])
def test_very_many_batches_that_are_fetched_before_the_first_backward(batches: int, backwards: int):
    """As transformers' Trainer with accumulated gradients; or they are made one large batch."""
    script, most = Script(), 0
    script.iterate(0)
    for _ in range(6):
        for _ in range(batches):
            script.fetch(0, 10)
            script.passes(1)
            most = max(most, len(script.clock._pending))
        script.accumulate(backwards)
        script.optimize(5)
    rows = script.all_rows()
    # With a backward alone, the first may be batches that a script passes over as it resumes.
    late = int(backwards == 1)
    assert [row.batches for row in script.steps][late:] == [batches] * (6 - late)
    assert sum(kind == "eval" for kind, _ in rows) == late * (batches - 1)
    assert sum(row.get("data_wait", 0) for _, row in rows) == 6 * batches * 10
    assert {row.phases_ns["data_wait"] for row in script.steps[1:]} == {10 * batches}
    assert most <= 256


def test_more_batches_are_fetched_ahead_than_are_kept_apart():
    script, most = Script(), 0
    for batches in (4, 1000, 1000, 4, 1000):
        for _ in range(batches):
            script.fetch(0, 10)
            most = max(most, len(script.clock._pending))
        script.accumulate(batches)
        script.optimize(5)
    assert most <= 257
    script.clock.close(script.now_ns)
    first, second, *others = [row.batches for row in script.steps]
    assert (first, others) == (4, [1000, 4, 1000])
    assert second + sum(kind == "eval" for kind, _, _ in script.rows) == 1000


@pytest.mark.parametrize("passed", [20, 100, 300])
def test_batches_that_a_resumed_script_passes_over_are_not_all_of_the_first_step(passed: int):
    script = Script()
    script.iterate(0)
    for _ in range(passed):
        script.fetch(0, 10)
        script.passes(1)
    for _ in range(3):
        script.train()
    kinds = [kind for kind, _ in script.ends()]
    assert kinds.count("train") == 3
    assert script.steps[0].batches == (21 if passed == 20 else 1)
    assert script.steps[0].batches + kinds.count("eval") == passed + 1


@pytest.mark.parametrize("passed", [0, 100])
def test_an_epoch_that_is_shorter_than_the_gradients_are_accumulated_for(passed: int):
    """As transformers' Trainer does it: the iterator's end is found before the backwards."""
    script = Script()
    for _ in range(3):
        script.iterate(0)
        for _ in range(passed + 100):
            script.fetch(0, 10)
        script.fetch(0, 1, ended=True)
        script.accumulate(100)
        script.optimize(5)
        passed = 0
    script.clock.close(script.now_ns)
    assert [row.batches for row in script.steps] == [100] * 3


def test_an_evaluation_with_gradients_on_that_draws_from_the_training_iterator():
    script = Script()
    script.iterate(0)
    for _ in range(3):
        for evaluated in (100, 0, 0):
            for _ in range(evaluated):
                script.fetch(0, 7)
                script.passes(3)
            script.train()
    kinds = [kind for kind, _ in script.ends()]
    assert (kinds.count("train"), kinds.count("eval")) == (9, 300)
    assert {step.phases_ns["data_wait"] for step in script.steps} == {10}


def test_inference_with_gradients_on_is_reported_before_its_end():
    script, most = Script(), 0
    for _ in range(1000):
        script.fetch(0, 7)
        script.passes(3)
        most = max(most, len(script.clock._pending))
    assert most <= 257
    assert sum(kind == "eval" for kind, _, _ in script.rows) >= 1000 - 65


def test_all_batches_of_an_epoch_are_kept_before_it_trains():
    script = Script()
    for _ in range(3):
        script.iterate(0)
        for _ in range(100):
            script.fetch(0, 10)
        script.fetch(0, 1, ended=True)
        for _ in range(100):
            script.passes(20)
            script.backward(30)
            script.optimize(5)
    kinds = [kind for kind, _ in script.all_rows()]
    assert (kinds.count("train"), kinds.count("eval")) == (300, 3 * 99)


def test_evaluation_of_training_data_that_very_many_batches_are_fetched_of():
    script = Script()
    for _ in range(3):
        script.iterate(0)
        for _ in range(2):
            for _ in range(100):
                script.fetch(0, 10)
            script.accumulate(100)
            script.optimize(5)
        script.iterate(0)
        for _ in range(80):
            script.fetch(0, 7)
            script.passes(30)
        script.fetch(0, 1, ended=True)
    script.iterate(0)
    script.train()
    rows = script.all_rows()
    assert [row.batches for row in script.steps] == [100] * 6 + [1]
    evaluated = [row for kind, row in rows if kind == "eval"]
    assert sum(row["data_wait"] for row in evaluated) == 3 * 80 * 7


def test_parts_of_one_batch_that_are_trained_on_one_by_one():
    script = Script()
    for _ in range(2):
        script.fetch(0, 10)
        script.accumulate(3)
        script.optimize(5)
        script.passes(7)  # saving: no backward follows
    step = {"data_wait": 10, "forward": 60, "backward": 90, "optimizer": 5, "other": 7}
    assert script.ends() == [("train", step), ("train", step)]


def test_batches_kept_in_a_list_are_trained_on_without_a_loader():
    script = Script()
    for _ in range(3):
        script.fetch(0, 10, grad=False)
    script.fetch(0, 1, ended=True)
    for _ in range(3):
        script.passes(20)
        script.backward(30)
        script.optimize(5)
    trained = [row for kind, row in script.ends() if kind == "train"]
    assert [row["forward"] for row in trained] == [20, 20, 20]


def test_two_loaders_that_are_iterated_over_together_make_one_step():
    script = Script()
    for _ in range(3):
        script.fetch(0, 40)
        script.fetch(1, 10)
        script.passes(20)
        script.backward(30)
        script.optimize(5)
    step = {"data_wait": 50, "forward": 20, "backward": 30, "optimizer": 5}
    assert script.ends() == [("train", step)] * 3
    # The row is of the loader that is waited for.
    assert [(row.loader, row.batches, row.samples) for row in script.steps] == [(0, 1, 8)] * 3


def test_a_lone_batch_that_is_looked_at_now_and_then_is_no_part_of_a_step():
    script = Script()
    for number in range(9):
        if number % 3 == 2:
            script.fetch(1, 400)
            script.passes(3)
        script.train()
    assert [kind for kind, _ in script.ends()] == ["train", "train", "eval", "train"] * 3
    assert all(row == STEP for kind, row in script.ends() if kind == "train")


def test_loaders_that_are_iterated_over_together_later_on():
    script = Script()
    for _ in range(3):
        script.train()
    for _ in range(3):
        script.fetch(1, 40)
        script.train()
    kinds = [kind for kind, _ in script.ends()]
    assert kinds == ["train", "train", "train", "eval", "train", "train", "train"]
    assert script.ends()[-1][1]["data_wait"] == 50


@pytest.mark.parametrize("asked", [(0, 1), (0, 0, 1), (1, 0, 0, 2), (0, 0, 0, 1, 1)])
@pytest.mark.parametrize("times", [1, 4, 100])
def test_gradients_are_accumulated_over_batches_of_several_loaders(
    asked: tuple[int, ...], times: int
):
    """As `zip` and Lightning's CombinedLoader ask for them, or `next` several times a step."""
    script = Script()
    for loader in sorted(set(asked)):
        script.iterate(loader)
    for _ in range(3):
        for _ in range(times):
            for loader in asked:
                script.fetch(loader, 10 if loader else 40)
            script.passes(20)
            script.backward(30)
        script.optimize(5)
    rows = [row for row in script.all_rows() if row[1]]
    wait = times * sum(10 if loader else 40 for loader in asked)
    work = {"forward": 20 * times, "backward": 30 * times, "optimizer": 5}
    assert rows == [("train", {"data_wait": wait, **work})] * 3
    assert {step.loader for step in script.steps} == {0}
    assert {step.samples for step in script.steps} == {4 * len(asked) * times}
    assert len(script.clock._pending) == 0


def test_the_batches_of_a_step_are_those_of_the_loader_that_is_waited_for():
    script = Script()
    for _ in range(2):
        for _ in range(4):
            script.fetch(0, 40)
            script.fetch(1, 10)
            script.backward(30)
        script.optimize(5)
    script.ends()
    assert [(row.loader, row.batches) for row in script.steps] == [(0, 4)] * 2


def test_loaders_in_lockstep_evaluate_with_gradients_on_after_loaders_that_train_so():
    script = Script()
    for _ in range(2):
        for number in range(8):
            script.fetch(0, 40)
            script.fetch(1, 10)
            script.backward(30)
            if number % 4 == 3:
                script.optimize(5)
        for loader in (2, 3):
            script.iterate(loader)
        for _ in range(6):
            script.fetch(2, 7)
            script.fetch(3, 7)
            script.passes(3)
        script.fetch(2, 1, ended=True)
    kinds = [kind for kind, row in script.all_rows() if row]
    assert (kinds.count("train"), kinds.count("eval")) == (4, 2 * 12)


def test_an_evaluation_of_one_of_the_loaders_that_are_iterated_together():
    script = Script()
    for number in range(6):
        if number in {2, 4}:
            script.iterate(0)
            for _ in range(8):
                script.fetch(0, 7)
                script.passes(3)
            script.fetch(0, 1, ended=True)
            script.iterate(0)
        script.fetch(0, 40)
        script.train(1)
    kinds = [kind for kind, row in script.all_rows() if row]
    assert (kinds.count("train"), kinds.count("eval")) == (6, 16)
    assert {step.phases_ns["data_wait"] for step in script.steps} == {50}


def test_a_batch_that_no_partner_came_to_at_the_end_of_an_epoch_is_of_the_next_one():
    """As `zip` asks the longer loader once more."""
    script = Script()
    for _ in range(3):
        for loader in (0, 1):
            script.iterate(loader)
        for _ in range(3):
            script.fetch(0, 40)
            script.train(1)
        script.fetch(0, 40)
        script.fetch(1, 1, ended=True)
    rows = [kind for kind, row in script.all_rows() if "forward" in row]
    assert rows == ["train"] * 9


def test_an_evaluation_with_gradients_on_after_each_epoch_of_a_single_step():
    script = Script()
    for _ in range(4):
        script.iterate(0)
        script.train()
        script.iterate(1)
        for _ in range(3):
            script.fetch(1, 7)
            script.passes(3)
        script.fetch(1, 1, ended=True)
    kinds = [kind for kind, row in script.all_rows() if row]
    assert (kinds.count("train"), kinds.count("eval")) == (4, 12)


def test_a_second_phase_that_fetches_ahead():
    """As transformers' Trainer does it, with another loader than before."""
    script = Script()
    script.train()
    for _ in range(2):
        for _ in range(4):
            script.fetch(1, 10)
        script.accumulate(4)
        script.optimize(5)
    step = {"data_wait": 40, "forward": 80, "backward": 120, "optimizer": 5}
    assert script.ends() == [("train", STEP), ("train", step), ("train", step)]


def test_a_long_evaluation_with_gradients_on_is_reported_before_its_end():
    script = Script()
    script.train()
    for _ in range(100):
        script.fetch(1, 7)
        script.passes(3)
    assert sum(kind == "eval" for kind, _, _ in script.rows) >= 80


def test_gradients_are_off_at_the_batch_but_not_at_the_iterator():
    script = Script()
    script.train()
    script.train()
    script.clock.iterator_began(1, script.now_ns, grad=True)
    script.clock.iterator_ended(script.passes(5))
    script.fetch(1, 7, grad=False)
    script.passes(3)
    script.train()
    assert [kind for kind, _ in script.ends()] == ["train", "train", "eval", "train"]


def test_without_any_optimizer_each_batch_with_backward_is_a_step():
    script, most = Script(), 0
    for _ in range(1000):
        script.fetch(0, 10)
        script.passes(20)
        script.backward(30)
        most = max(most, len(script.clock._pending))
    assert most <= 260
    rows = script.ends()
    assert rows == [("train", {"data_wait": 10, "forward": 20, "backward": 30})] * 1000


@pytest.mark.parametrize("steps", [30, 400])
@pytest.mark.parametrize("loader", [False, True], ids=["no loader", "kept batches"])
def test_without_any_optimizer_or_batch_each_backward_is_a_step(steps: int, *, loader: bool):
    """As `p.data -= lr * p.grad` over batches that the script makes itself, or has in a list."""
    script = Script()
    if loader:
        script.fetch(0, 10)
        script.fetch(0, 10, ended=True)
    for _ in range(steps):
        script.passes(20)
        script.backward(30)
        script.passes(5)
    rows = script.all_rows()
    trained = [row for kind, row in rows if kind == "train"]
    assert len(trained) == steps
    plain = {"forward": 25, "backward": 30}
    assert trained[1:-1] == [plain] * (steps - 2)
    assert trained[-1] == {**plain, "other": 5}
    assert sum(sum(row.values()) for _, row in rows) == steps * 55 + 20 * loader - 20 * (not loader)


def test_gradients_that_are_accumulated_without_a_loader_make_one_step():
    script = Script()
    for _ in range(5):
        script.accumulate(3)
        script.optimize(5)
    first, *others = [row for row in script.all_rows() if row != ("between", {})]
    assert first == ("train", {"forward": 40, "backward": 90, "optimizer": 5})
    assert others == [("train", {"forward": 60, "backward": 90, "optimizer": 5})] * 4


def test_gradients_of_many_batches_before_the_first_step_belong_to_it():
    script = Script()
    for _ in range(200):
        script.fetch(0, 10)
        script.passes(20)
        script.backward(30)
    script.optimize(5)
    (row,) = script.ends()
    assert row == ("train", {"data_wait": 2000, "forward": 4000, "backward": 6000, "optimizer": 5})


def test_what_is_accumulated_for_a_step_that_does_not_come_is_time_between():
    script = Script()
    script.train()
    for _ in range(200):
        script.fetch(0, 10)
        script.backward(30)
    rows = script.ends()
    assert {kind for kind, _ in rows[1:]} == {"between"}
    assert len(rows) <= 70
    assert sum(row["backward"] for _, row in rows[1:]) == 200 * 30


def test_evaluation_is_distinguished():
    script = Script()
    script.train()
    script.fetch(0, 2, ended=True)
    for _ in range(2):
        script.fetch(1, 7, grad=False)
        script.passes(3)
    script.fetch(1, 1, ended=True, grad=False)
    script.train()
    assert [kind for kind, _ in script.ends()] == [
        "train", "between", "eval", "eval", "between", "train",
    ]  # fmt: skip
    assert script.ends()[2][1] == {"data_wait": 7, "forward": 3}


@pytest.mark.parametrize("evaluated", [6, 80])
def test_evaluation_of_the_training_data_with_gradients_on(evaluated: int):
    script = Script()
    for _ in range(2):
        script.iterate(0)
        for _ in range(3):
            script.train()
        script.fetch(0, 1, ended=True)
        script.iterate(0)
        for _ in range(evaluated):
            script.fetch(0, 7)
            script.passes(3)
        script.fetch(0, 1, ended=True)
    script.iterate(0)
    script.train()
    kinds = [kind for kind, _ in script.all_rows()]
    assert (kinds.count("train"), kinds.count("eval")) == (7, 2 * evaluated)
    assert {step.batches for step in script.steps} == {1}


def attack(script: Script, loader: int, batches: int, *, ends: bool = True) -> None:
    """Evaluate with a backward for each batch, but no optimizer: FGSM, PGD."""
    script.iterate(loader)
    for _ in range(batches):
        script.fetch(loader, 7)
        script.passes(3)
        script.backward(30)
        script.backward(30)
        script.passes(2)
    script.fetch(loader, 1, ended=ends)  # or the loop is left at a batch that is not used


@pytest.mark.parametrize("batches", [1, 40, 200])
@pytest.mark.parametrize("accumulated", [1, 3])
@pytest.mark.parametrize("loader", [0, 1], ids=["training data", "other data"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_evaluation_that_calls_backward(
    batches: int, accumulated: int, loader: int, *, ends: bool
):
    if batches == 1 and (loader == 0 or not ends):
        return  # may be a part of the step
    script = Script()
    for _ in range(4):
        script.iterate(0)
        for _ in range(6):
            for _ in range(accumulated):
                script.fetch(0, 10)
                script.passes(20)
                script.backward(30)
            script.optimize(5)
        script.fetch(0, 1, ended=True)
        attack(script, loader, batches, ends=ends)
    rows = [(kind, row) for kind, row in script.all_rows() if "forward" in row]
    evaluated = [row for kind, row in rows if kind == "eval"]
    assert sum(row.get("backward", 0) for row in evaluated) == 4 * batches * 60
    assert {step.phases_ns["data_wait"] for step in script.steps} == {10 * accumulated}
    assert len(script.steps) == 4 * 6
    assert {kind for kind, _ in rows} == {"train", "eval"}


@pytest.mark.parametrize("ends", [True, False])
def test_an_evaluation_that_calls_backward_amid_an_epoch(*, ends: bool):
    script = Script()
    script.iterate(0)
    for _ in range(4):
        for _ in range(5):
            script.train()
        attack(script, 1, 40, ends=ends)
    script.train()
    rows = script.all_rows()
    assert [step.phases_ns["data_wait"] for step in script.steps] == [10] * 21
    assert sum(row.get("backward", 0) for kind, row in rows if kind == "eval") == 4 * 40 * 60


def test_an_evaluation_that_calls_backward_before_training():
    script = Script()
    attack(script, 1, 40)
    script.iterate(0)
    for _ in range(3):
        script.train()
    kinds = [kind for kind, row in script.all_rows() if "forward" in row]
    assert kinds == ["eval"] * 40 + ["train"] * 3


def test_an_evaluation_that_calls_backward_of_two_loaders_together():
    script = Script()
    for _ in range(3):
        script.iterate(0)
        for _ in range(3):
            script.train()
        for loader in (1, 2):
            script.iterate(loader)
        for _ in range(20):
            script.fetch(1, 7)
            script.fetch(2, 7)
            script.backward(30)
        script.fetch(1, 1, ended=True)
    rows = script.all_rows()
    assert [step.phases_ns["data_wait"] for step in script.steps] == [10] * 9
    assert sum(row.get("backward", 0) for kind, row in rows if kind == "eval") == 3 * 20 * 30


def test_gradients_that_are_accumulated_over_the_end_of_an_epoch():
    script = Script()
    done = 0
    for _ in range(6):
        script.iterate(0)
        for _ in range(5):
            script.fetch(0, 10)
            script.passes(20)
            script.backward(30)
            done += 1
            if done % 3 == 0:
                script.optimize(5)
        script.fetch(0, 1, ended=True)
    script.clock.close(script.now_ns)
    assert [step.batches for step in script.steps] == [3] * 10
    assert "eval" not in {kind for kind, _, _ in script.rows}


@pytest.mark.parametrize("accumulated", [2, 4, 6])
def test_loaders_that_are_trained_on_in_turn_and_begin_anew_at_their_own_ends(accumulated: int):
    script = Script()
    left = {0: 0, 1: 0}
    for number in range(48):
        loader, length = ((0, 5), (1, 7))[number % 2]
        if not left[loader]:
            if number > 1:
                script.fetch(loader, 1, ended=True)
            script.iterate(loader)
            left[loader] = length
        left[loader] -= 1
        script.fetch(loader, 10)
        script.passes(20)
        script.backward(30)
        if (number + 1) % accumulated == 0:
            script.optimize(5)
    script.clock.close(script.now_ns)
    assert [step.backwards for step in script.steps] == [accumulated] * (48 // accumulated)
    assert "eval" not in {kind for kind, _, _ in script.rows}


def test_evaluation_with_gradients_on_from_another_loader():
    script = Script()
    script.train()
    for _ in range(3):
        script.fetch(1, 7)
        script.passes(3)
    script.train()
    assert [kind for kind, _ in script.ends()] == ["train", "eval", "eval", "eval", "train"]


def test_the_last_batch_of_an_evaluation_that_knows_its_length():
    """As Lightning does it: the next to be asked is the loader that is trained on."""
    script = Script()
    script.train()
    for _ in range(2):
        script.fetch(1, 7, grad=False)
        script.passes(3)
    script.train()
    script.fetch(1, 7, grad=False)  # a single one
    script.passes(3)
    script.train()
    assert [kind for kind, _ in script.ends()] == [
        "train", "eval", "eval", "train", "eval", "train",
    ]  # fmt: skip


def test_two_optimizers_make_one_step():
    script = Script()
    for _ in range(2):
        script.fetch(0, 10)
        for optimizer in (1, 2):
            script.passes(20)
            script.backward(30)
            script.optimize(5, optimizer)
    step = {"data_wait": 10, "forward": 40, "backward": 60, "optimizer": 10}
    assert script.ends() == [("train", step), ("train", step)]


def test_a_script_without_any_loader():
    script = Script()
    for _ in range(3):
        script.passes(20)
        script.backward(30)
        script.optimize(5)
    kinds = script.ends()
    assert [kind for kind, _ in kinds] == ["train", "train", "train"]
    assert kinds[1][1] == {"forward": 20, "backward": 30, "optimizer": 5}
    assert {row.loader for _, _, row in script.rows} == {-1}


def test_making_the_iterator_is_waiting_for_its_first_batch():
    script = Script()
    script.clock.iterator_began(0, script.now_ns, grad=True)
    script.clock.iterator_ended(script.passes(100))
    script.train()
    assert script.ends() == [("train", {**STEP, "data_wait": 110})]


def test_copies_and_measured_sync():
    script = Script()
    script.fetch(0, 10)
    script.copy(6, DeviceCopyCounts(1, pageable=1))
    script.passes(20)
    script.backward(30, sync=12)
    script.optimize(5)
    assert script.ends() == [
        ("train", {"data_wait": 10, "copy": 6, "forward": 20, "backward": 30, "optimizer": 5})
    ]
    row = script.rows[0][2]
    assert (row.sync_ns, row.syncs, row.copies) == (12, 1, DeviceCopyCounts(1, pageable=1))
    assert row.times_ns() == (10, 6, 20, 18, 12, 5, 0)


def test_sync_is_counted_in_its_own_step_also_without_a_loader():
    script = Script()
    for sync in (9, None, 4):
        script.backward(30, sync)
        script.optimize(5)
    script.ends()
    assert [(row.sync_ns, row.syncs) for row in script.steps] == [(9, 1), (0, 0), (4, 1)]


def test_what_is_copied_while_the_script_waits_for_a_batch_is_a_copy():
    script = Script()
    script.clock.fetch_began(0, script.now_ns, grad=True)
    script.passes(10)
    script.copy(4, DeviceCopyCounts(1))
    script.passes(3)
    script.clock.fetch_ended(script.now_ns, 4, ended=False)
    script.backward(30)
    script.optimize(5)
    assert script.ends() == [
        ("train", {"data_wait": 13, "copy": 4, "backward": 30, "optimizer": 5})
    ]


def test_waits_for_other_ranks_in_forward_and_in_backward_are_sync():
    script = Script()
    script.fetch(0, 10)
    script.wait_for_ranks(7)
    script.passes(20)
    script.clock.backward_began(script.now_ns)
    script.passes(30)
    script.wait_for_ranks(8)
    script.clock.backward_ended(script.now_ns)
    script.optimize(5)
    assert script.ends() == [
        ("train", {"data_wait": 10, "sync": 15, "forward": 20, "backward": 30, "optimizer": 5})
    ]
    assert script.rows[0][2].syncs == 2


def test_a_phase_within_another_ends_with_it():
    script = Script()
    script.fetch(0, 10)
    script.clock.within_began("copy", script.passes(20))
    script.backward(30)  # what copied has raised, and nobody said that it ended
    script.clock.within_ended(script.passes(2), DeviceCopyCounts(1))
    script.optimize(5)
    (kind, step) = script.ends()[0]
    assert (kind, step["backward"], step["other"]) == ("train", 30, 2)


def test_copies_before_a_step_and_after_it_are_distinguished_without_a_loader():
    script = Script()
    for copied in range(1, 4):
        for _ in range(copied):
            script.copy(2, DeviceCopyCounts(1, blocking=1))
        script.backward(30)
        script.optimize(5)
    script.ends()
    # Nothing says that a script without a loader has begun before its first backward.
    assert [row.copies.count for row in script.steps] == [0, 2, 3]
    assert [row.copies.blocking for row in script.steps] == [0, 2, 3]


WORK = {"data_wait": 10, "forward": 20, "backward": 30, "optimizer": 5}
AFTER = 5_000  # exporting, saving, workers that take long to end


def test_the_last_step_ends_with_its_work_where_the_script_ends():
    script = Script()
    script.iterate(0)
    script.train()
    script.train()
    script.passes(AFTER)
    assert script.all_rows() == [
        ("train", STEP), ("train", WORK), ("between", {"other": AFTER + 1})
    ]  # fmt: skip


def test_a_loop_left_by_break_ends_its_last_step_where_the_next_one_begins():
    script = Script()
    for _ in range(2):
        script.iterate(0)
        script.train()
        script.train()
        script.passes(AFTER)  # the workers end, a checkpoint is saved
    after = ("between", {"other": AFTER + 1})
    assert script.all_rows() == [("train", STEP), ("train", WORK), after] * 2


def test_evaluation_after_break_leaves_the_last_step_as_it_is():
    for iterates in (True, False):  # the evaluation's iterator may be kept
        script = Script()
        script.iterate(0)
        script.train()
        script.train()
        script.passes(AFTER)
        if iterates:
            script.iterate(1)
        script.fetch(1, 7, grad=False)
        script.passes(3)
        script.iterate(0)
        script.train()
        assert script.all_rows() == [
            ("train", STEP), ("train", WORK), ("between", {"other": AFTER + 1}),
            ("eval", {"data_wait": 7, "forward": 3}), ("train", WORK), ("between", {"other": 1}),
        ]  # fmt: skip


def test_what_follows_each_step_belongs_to_it_while_the_loop_goes_on():
    script = Script()
    script.iterate(0)
    for _ in range(3):
        script.train()
        script.passes(AFTER)  # logging, saving every few steps
    assert script.all_rows()[:2] == [("train", {**STEP, "other": AFTER + 1})] * 2


def test_an_iterator_for_each_batch_is_one_loop():
    """`next(iter(loader))` in each step, of one loader or of two."""
    for loaders in ((0,), (0, 1)):
        script = Script()
        for _ in range(3):
            for loader in loaders:
                script.iterate(loader)
                script.fetch(loader, 10)
            script.passes(20)
            script.backward(30)
            script.optimize(5)
            script.passes(1)
        kinds = [kind for kind, _ in script.all_rows()]
        assert kinds == ["train", "train", "train", "between"]
        assert script.all_rows()[1][1]["other"] == 1


def test_a_step_of_two_optimizers_ends_with_the_last_of_them():
    script = Script()
    script.fetch(0, 10)
    for optimizer in (1, 2):
        script.passes(20)
        script.backward(30)
        script.optimize(5, optimizer)
    script.passes(AFTER)
    step = {"data_wait": 10, "forward": 40, "backward": 60, "optimizer": 10}
    assert script.all_rows() == [("train", step), ("between", {"other": AFTER})]


def test_optimizers_that_step_during_backward_end_a_step_with_it():
    script = Script()
    for _ in range(2):
        script.fetch(0, 10)
        script.passes(20)
        script.clock.backward_began(script.now_ns)
        script.optimize(5)
        script.clock.backward_ended(script.passes(30))
        script.passes(AFTER)
    step = {"data_wait": 10, "forward": 20, "backward": 35}
    assert script.all_rows() == [
        ("train", {**step, "other": AFTER}), ("train", step), ("between", {"other": AFTER})
    ]  # fmt: skip


def test_an_error_amid_a_step_ends_no_step():
    script = Script()
    script.train()
    script.fetch(0, 10)
    script.passes(AFTER)  # forward raises an error, and the script cleans up
    assert [kind for kind, _ in script.all_rows()] == ["train", "eval"]


def test_accumulated_gradients_without_a_step_at_the_end_are_no_part_of_the_last_step():
    script = Script()
    script.train()
    script.fetch(0, 10)
    script.passes(20)
    script.backward(30)
    script.passes(AFTER)
    assert script.all_rows()[0] == ("train", STEP)
    assert [kind for kind, _ in script.all_rows()] == ["train", "between"]


def receive(script: Script, took: int) -> None:
    script.clock.collective_began(script.now_ns, brings_data=True)
    script.clock.collective_ended(script.passes(took))


def test_a_rank_without_a_batch_of_its_own_waits_for_that_of_another():
    script = Script()
    for _ in range(3):
        receive(script, 40)
        script.passes(20)
        script.backward(30)
        script.optimize(5)
    rows = [row for kind, row in script.all_rows() if kind == "train"]
    assert rows[1:] == [{"data_wait": 40, "forward": 20, "backward": 30, "optimizer": 5}] * 2


def test_a_rank_with_a_batch_of_its_own_only_hands_it_out():
    script = Script()
    for _ in range(2):
        script.fetch(0, 10)
        receive(script, 40)
        script.backward(30)
        script.optimize(5)
    assert script.ends()[0] == (
        "train", {"data_wait": 10, "forward": 40, "backward": 30, "optimizer": 5}
    )  # fmt: skip


def test_what_ranks_send_during_backward_or_an_optimizers_step_is_part_of_it():
    script = Script()
    for _ in range(2):
        script.clock.backward_began(script.now_ns)
        receive(script, 40)
        script.clock.backward_ended(script.now_ns)
        script.clock.optimizer_began(1, script.now_ns)
        receive(script, 5)
        script.clock.optimizer_ended(1, script.now_ns)
    assert script.ends()[-1] == ("train", {"backward": 40, "optimizer": 5})


def average(script: Script, took: int) -> None:
    """Call a collective, such as all_reduce."""
    script.clock.collective_began(script.now_ns, brings_data=False)
    script.clock.collective_ended(script.passes(took))


def test_gradients_that_a_script_averages_itself_are_sync_and_its_metrics_are_not():
    script = Script()
    for _ in range(3):
        script.fetch(0, 10)
        average(script, 20)  # of what forward computes
        script.backward(30)
        for _ in range(2):  # parameters
            average(script, 7)
            script.passes(1)
        receive(script, 4)  # the first rank's, as of buffers
        script.optimize(5)
        average(script, 3)  # of metrics
    step = {
        "data_wait": 10, "forward": 20, "backward": 30, "sync": 18, "optimizer": 5, "other": 5
    }  # fmt: skip
    assert script.ends() == [("train", step)] * 3
    assert all(row.syncs for _, _, row in script.rows if row.optimizers)


def test_gradients_are_averaged_where_two_networks_step_by_turns_and_without_a_loader():
    script = Script()
    for _ in range(3):
        for optimizer in (1, 2):
            script.passes(20)
            script.backward(30)
            average(script, 7)
            script.optimize(5, optimizer)
            average(script, 3)
    rows = [row for kind, row in script.all_rows() if kind == "train"]
    assert [row["sync"] for row in rows] == [14, 14, 14]


def test_what_is_shared_after_a_step_within_backward_are_no_gradients():
    script = Script()
    for _ in range(2):
        script.fetch(0, 10)
        script.clock.backward_began(script.now_ns)
        script.clock.optimizer_began(1, script.now_ns)
        script.clock.optimizer_ended(1, script.passes(5))
        script.clock.backward_ended(script.passes(25))
        average(script, 3)
    assert "sync" not in dict(script.ends())["train"]


def test_each_collective_of_a_script_is_reported_once_with_its_wait():
    module, reports = ModuleType("collectives"), []

    class Work:
        def wait(self) -> bool:
            return True

    def all_reduce(*, async_op: bool = False) -> object:
        work = module.Work()
        return work if async_op else work.wait()

    def broadcast_object_list() -> None:
        module.broadcast()

    module.Work, module.all_reduce = Work, all_reduce
    module.broadcast, module.broadcast_object_list = Work().wait, broadcast_object_list
    hook_collectives(ModuleType("torch"), lambda *report: reports.append(report))(module)
    assert module.all_reduce() is True
    module.broadcast_object_list()
    assert reports == [(True, False), (False, False), (True, True), (False, True)]
    work = module.all_reduce(async_op=True)
    assert work.wait() is True
    assert reports[4:] == [(True, False), (False, False)] * 2
    module.Work.wait = None
    with pytest.raises(TypeError):
        module.all_reduce()
    assert module.broadcast() is True
    assert reports[-3:] == [(False, False), (True, True), (False, True)]
