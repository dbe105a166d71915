"""Steps of many kinds in random order, and what the hooks reported of them, on standard output.

Arguments: a seed, and whether the hooks may take their fast path ("fast") or not ("slow").
"""

import contextlib
import gc
import json
import random
import sys
import threading

import torch
from points import Points
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

# As in a build of torch without accelerators, which alone has the fast path.
sys.modules["headrace.observe.probe.device_recorder"].DEVICE_RECORDER.absent = True
RANK_RECORDER = sys.modules["headrace.observe.probe.rank_recorder"].RANK_RECORDER  # of this job
seed, how = int(sys.argv[1]), sys.argv[2]
choose = random.Random(seed)


class Failing(Points):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(index)
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __init__(self, count):
        self.points = Points(count)

    def __iter__(self):
        return (self.points[index] for index in range(len(self.points)))


class Batches(Dataset):
    """Each index gives a batch, of so many samples."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.zeros(index + 1, 16), torch.zeros(index + 1, dtype=torch.long)


net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
weights = [parameter for parameter in net.parameters() if parameter.ndim == 2]
own_optimizers = [torch.optim.SGD([weight], lr=0.01) for weight in weights]
LOADERS = [
    DataLoader(Points(18), batch_size=4, num_workers=2, persistent_workers=True),
    DataLoader(Points(10), batch_size=4),
    DataLoader(Stream(14), batch_size=4, num_workers=1, persistent_workers=True),
    DataLoader(Stream(9), batch_size=2),
    DataLoader(Batches(), batch_size=None, num_workers=1, persistent_workers=True),
    DataLoader(Failing(12), batch_size=2, num_workers=1, persistent_workers=True),
    DataLoader(Failing(8), batch_size=2),
]


class Turns:
    """Batches of a loader a few times, then of another one; each begins anew once it has ended."""

    def __init__(self):
        self.number, self.iterators = 0, {}

    def next_batch(self):
        number = choose.choice([self.number] * 3 + [choose.randrange(len(LOADERS))])
        self.number = number
        while True:
            if number not in self.iterators:
                self.iterators[number] = iter(LOADERS[number])
            try:
                return next(self.iterators[number])
            except StopIteration:
                del self.iterators[number]
            except ValueError:
                pass


turns = Turns()
next_batch = turns.next_batch


def loss_of(batch):
    x, y = batch
    return nn.functional.cross_entropy(net(x), y)


def train():
    loss_of(next_batch()).backward()
    optimizer.step()


def train_often():
    for _ in range(6):
        train()


def accumulate():
    for _ in range(3):
        loss_of(next_batch()).backward()
    optimizer.step()


def train_on_one_batch():
    batch = next_batch()
    for _ in range(choose.choice([2, 20])):
        loss_of(batch).backward()
        optimizer.step()


def step_within_backward():
    handles = [
        weight.register_post_accumulate_grad_hook(lambda _, each=each: each.step())
        for weight, each in zip(weights, own_optimizers, strict=True)
    ]
    for _ in range(choose.choice([1, 8])):
        loss_of(next_batch()).backward()
    for handle in handles:
        handle.remove()


def backward_within_backward():
    x, y = next_batch()
    out = checkpoint(net, x.requires_grad_(), use_reentrant=True)
    nn.functional.cross_entropy(out, y).backward()
    optimizer.step()


def evaluate():
    with torch.no_grad():
        for _ in range(choose.choice([1, 3])):
            next_batch()


def fetch_elsewhere():
    thread = threading.Thread(target=list, args=[LOADERS[1]])
    thread.start()
    thread.join()


def fail_in_backward():
    with contextlib.suppress(RuntimeError):
        torch.zeros(2, requires_grad=True).backward()


KINDS = [
    *(train, train_often, accumulate, train_on_one_batch, step_within_backward),
    *(backward_within_backward, evaluate, fetch_elsewhere, fail_in_backward),
]


class NotedReports:
    """The reports that wait, each noted as it is taken, besides its times."""

    def __init__(self, waiting):
        self.waiting, self.notes, self.names = waiting, [], {}

    def __len__(self):
        return len(self.waiting)

    def append(self, report):
        self.waiting.append(report)

    def clear(self):  # in a forked worker
        self.waiting.clear()

    def popleft(self):
        report, at_ns, *values = self.waiting.popleft()
        if report.__name__ != "<lambda>":  # a request for the phase, by time
            self.notes.append(
                [report.__name__, *self.without_times(report.__name__, at_ns, values)]
            )
        return report, at_ns, *values

    def without_times(self, name, ended_ns, values):
        if name == "fetch_ended":
            samples, ended, grad, began_ns, loader, _, number, ready, read_ns, _, sampler_ns = (
                values
            )
            known = ready >= 0, read_ns >= 0, sampler_ns >= 0
            is_within = read_ns <= ended_ns - began_ns  # not that of other requests
            return samples, ended, grad, self.name_of(loader), number, is_within, *known
        if name in {"fetch_began", "iterator_began", "optimizer_began", "optimizer_ended"}:
            return self.name_of(values[0]), *values[1:]  # a loader's number, an optimizer's id
        return values

    def name_of(self, number):
        return self.names.setdefault(number, len(self.names))


log = RANK_RECORDER._event_log
log.settle_now()
waiting, enter, catch_up = log.waiting, RANK_RECORDER._enter_fast_path, RANK_RECORDER._catch_up
fast_steps = catch_ups = 0


def counted_catch_up():
    globals()["catch_ups"] += 1
    catch_up()


log.waiting = noted = NotedReports(waiting)
RANK_RECORDER._catch_up = counted_catch_up
if how == "slow":
    RANK_RECORDER._enter_fast_path = lambda _: None
    RANK_RECORDER._leave_fast_path()
try:
    for _ in range(60):
        choose.choice(KINDS)()
        fast_steps += RANK_RECORDER.fast_state.loader >= 0
finally:
    log.settle_now()
    log.waiting = waiting
    RANK_RECORDER._enter_fast_path, RANK_RECORDER._catch_up = enter, catch_up
found = {
    "seed": seed, "how": how, "fast_steps": fast_steps, "catch_ups": catch_ups,
    "reports": noted.notes,
}  # fmt: skip
sys.stdout.write(json.dumps(found) + "\n")
# End the workers now: what is left would be collected in a worker of the next script as well.
turns.iterators.clear()
LOADERS.clear()
gc.collect()
