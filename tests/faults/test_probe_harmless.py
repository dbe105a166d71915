"""What the probe does to a script: nothing that the script could notice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.core.source_location import SITECUSTOMIZE_DIR
from jobs import clean_environment, run_here
from recorded import SCRIPTS as PROBED
from recorded import Part, Run, check, record, record_several

HEAD = """
import copy, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def step(x):
    net(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# For scripts that also run in processes of their own, in which any optimizer will do.
LIGHT_HEAD = HEAD.replace("torch.optim.SGD(", "Descent(").replace(
    "import copy", "from points import Descent\nimport copy"
)
SCRIPTS = {
    "background": """
import collections, threading
class Slow(Dataset):
    def __len__(self): return 240
    def __getitem__(self, i):
        time.sleep(0.005)
        return torch.ones(4)
ahead = collections.deque()
def fetch():
    for x in DataLoader(Slow(), 8): ahead.append(x)
thread = threading.Thread(target=fetch)
thread.start()
thread.join()
for _ in range(30): step(ahead.popleft())
""",
    "own queue": """
import gc, queue, threading, weakref
from concurrent.futures import ThreadPoolExecutor
class Counted(queue.Queue):
    def __init__(self):
        super().__init__()
        self.lock, self.count = threading.Lock(), 0
    def put(self, item):
        with self.lock:
            self.count += 1
            super().put(item)
    def qsize(self):
        with self.lock: return self.count
    def get(self, *args):
        with self.lock:
            self.count -= 1
            return super().get(*args)
pool, counted = ThreadPoolExecutor(1), Counted()
def fetch():
    for x in DataLoader([torch.ones(4)] * 240, 8): counted.put(x)
pool.submit(fetch).result()
for _ in range(30): step(counted.get())
gc.disable()
failed = pool.submit(next, iter([]))
try: failed.result()
except StopIteration: pass
pool.shutdown()
known = weakref.ref(failed)
del failed
assert known() is None, "a future that failed is held by its own traceback"
gc.enable()
""",
    "odd fields": """
class Batch:
    def __init__(self, samples): self.values = torch.stack(samples)
data = [torch.ones(4)] * 240
for batch in DataLoader(data, 2, collate_fn=Batch): step(batch.values)
""",
    "unused datasets": """
import gc, weakref
class Data(Dataset):
    def __init__(self): self.transform = lambda x: x
    def __len__(self): return 64
    def __getitem__(self, i): return self.transform(torch.ones(4))
alive = []
for _ in range(3):
    data = Data()
    alive.append(weakref.ref(data))
    for x in DataLoader(data, 2): step(x)
del data, x
gc.collect()
print("alive:", sum(each() is not None for each in alive))
""",
    "closure": """
def closure():
    optimizer.zero_grad()
    time.sleep(0.2)
    loss = net(x).sum()
    loss.backward()
    return loss
for x in DataLoader([torch.ones(4)] * 20, 2): optimizer.step(closure)
""",
    "checkpointed": """
from torch.utils.checkpoint import checkpoint
class Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.2)
        return grad
def block(x): return Waits.apply(net(x))
for x in DataLoader([torch.ones(4)] * 20, 2):
    y = Waits.apply(x.requires_grad_())
    checkpoint(block, y, use_reentrant=True).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "program": """
import subprocess, sys
for x in DataLoader([torch.ones(4)] * 40, 2): step(x)
subprocess.run([sys.executable, "other.py"], check=True)
""",
    "fork": """
import os
for number, x in enumerate(DataLoader([torch.ones(4)] * 40, 2)):
    step(x)
    if number == 9 and not os.fork(): raise SystemExit
os.wait()
""",
    "optimizers in a thread": """
import threading
each = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
def apart(p):
    thread = threading.Thread(target=each[p].step)
    thread.start()
    thread.join()
for p in each: p.register_post_accumulate_grad_hook(apart)
for x in DataLoader([torch.ones(4)] * 40, 2):
    time.sleep(0.01)
    net(x).sum().backward()
    net.zero_grad()
""",
    "own threads": """
import threading
for x in DataLoader([torch.ones(4)] * 40, 2): step(x)
print("threads:", [each.name for each in threading.enumerate()], threading.active_count())
""",
    "pickled": """
import subprocess, sys
save = "import torch; from torch.utils.data import DataLoader; "
save += "torch.save(DataLoader([torch.ones(4)] * 40, 4), 'loader.pt')"
subprocess.run([sys.executable, "-c", save], check=True)
for x in DataLoader([torch.ones(4)] * 10, 2): step(x)
for _ in range(2):
    for x in torch.load("loader.pt", weights_only=False): step(x)
""",
    "loaders in a dataset": """
import threading
class Nested(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        parts = list(DataLoader([torch.ones(4)] * 4, 2))
        thread = threading.Thread(target=lambda: parts.extend(DataLoader([torch.ones(4)] * 4, 2)))
        thread.start()
        thread.join()
        return parts[-1][0]
for x in DataLoader(Nested(), 2): step(x)
""",
    "interrupt": """
import builtins, io, os, types
class Interrupting(types.ModuleType):
    def __setattr__(self, name, value):
        if name == "read": raise KeyboardInterrupt
        super().__setattr__(name, value)
usual, loader = builtins.open, DataLoader([torch.ones(4)] * 40, 2)
os.__class__ = Interrupting  # the probe replaces its functions as a batch begins
try: next(iter(loader))
except KeyboardInterrupt: print("interrupted as a batch began")
os.__class__ = types.ModuleType
assert builtins.open is io.open is usual
for x in loader: step(x)
""",
    "signals": """
import functools, signal
from torch.utils.data.dataloader import _BaseDataLoaderIter
class Preempted(Exception): pass
def preempted(*_): raise Preempted
def through_another(*_): preempted()
class Notice:
    def method(self, *_): raise Preempted
    def __call__(self, *_): raise Preempted
def amid_a_hook(call): _BaseDataLoaderIter._headrace_state = property(lambda _: call())
batches = iter(DataLoader([torch.ones(4)] * 40, 2))
step(next(batches))
for handler in (
    preempted, through_another, Notice().method, Notice(), functools.partial(preempted, 1)
):
    signal.signal(signal.SIGUSR1, handler)
    amid_a_hook(lambda: signal.raise_signal(signal.SIGUSR1))
    try: next(batches)
    except Preempted: print("preempted")
    _BaseDataLoaderIter._headrace_state = None  # as the probe has set it
    step(next(batches))
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
amid_a_hook(preempted)  # which is no handler now
step(next(batches))
_BaseDataLoaderIter._headrace_state = None  # as the probe has set it
for x in batches: step(x)
""",
}
FAULT = "fetch_began: Preempted: "
OTHER = """
for _ in range(50): step(torch.ones(2, 4))
for x in DataLoader([torch.ones(4)] * 40, 2, num_workers=2): step(x)
"""

ODD_DATASETS = {
    "asks for the type of its transform": """
class Compose:
    def __call__(self, x): return x + 1
class Data(Dataset):
    def __init__(self): self.transform = Compose()
    def __len__(self): return 160
    def __getitem__(self, i):
        return self.transform(torch.zeros(4)) if isinstance(self.transform, Compose) else None
""",
    "sets, measures and copies its transform": """
class Compose:
    seed = 1
    def __len__(self): return 3
    def __call__(self, x): return x + self.seed
class Data(Dataset):
    def __init__(self): self.transform = Compose()
    def __len__(self): return 160
    def __getitem__(self, i):
        self.transform.seed = i
        return copy.deepcopy(self.transform)(torch.zeros(4)) + len(self.transform)
""",
    "has all its methods from another": """
class Inner(Dataset):
    def __len__(self): return 160
    def __getitem__(self, i): return torch.full((4,), float(i))
    def __getitems__(self, many): return [self[i] for i in many]
class Data:
    def __init__(self): self.inner = Inner()
    def __len__(self): return 160
    def __getitem__(self, i): return self.inner[i]
    def __getattr__(self, name): return getattr(self.__dict__["inner"], name)
""",
    "holds functions and chains of all kinds": """
from collections import namedtuple
from functools import partial
Chain = namedtuple("Chain", "one other")
def plus(x): return x + 1
class Scaled(nn.Module):
    def forward(self, x): return 2 * x
class Slotted:
    __slots__ = ()
    def __call__(self, x): return x - 1
class Data(Dataset):
    def __init__(self):
        self.chain = Chain(plus, Scaled())
        self.many = [plus, Scaled(), Slotted(), partial(torch.add, other=1)]
        self.net = nn.Sequential(Scaled(), Scaled())
    def __len__(self): return 160
    def __getitem__(self, i):
        x = torch.full((4,), float(i))
        for each in [*self.chain, *self.many, self.net]: x = each(x)
        assert self.chain.one is self.chain[0]
        return x
""",
    "has datasets in a list, and transforms in a dictionary": """
import enum
from functools import partial
from torch.utils.data import ConcatDataset
def plus(x): return x + 1
def more(x, by): return x + by
class Scaled:
    def __call__(self, x): return 2 * x
class Split(enum.Enum): one = 1
class Part(Dataset):
    def __init__(self, by):
        self.transforms, self.also = {"first": plus, "then": Scaled()}, plus
        self.known = {plus: 1, more: 2}
        self.partly, self.split, self.splits = partial(more, by=by), Split, [Split]
    def __len__(self): return 40
    def __getitem__(self, i):
        first, then = self.transforms.values()
        assert self.partly.keywords and self.split.one in self.splits[0]
        return self.partly(self.also(then(first(torch.full((4,), float(i)))))) + self.known[first]
class Data(ConcatDataset):
    def __init__(self):
        part = Part(1)
        super().__init__([part, Part(2), part, part])
""",
    "sends its functions, and itself, to a pool": """
import atexit, multiprocessing
from concurrent.futures import ProcessPoolExecutor
POOL = None
def pool():
    global POOL
    if POOL is None:
        POOL = ProcessPoolExecutor(1)
        atexit.register(POOL.shutdown)
    return POOL
def plus(x): return x + 1
class Data(Dataset):
    def __init__(self): self.fn, self.chain = plus, [plus]
    def __len__(self): return 160
    def load(self, i): return float(self.fn(i))
    def __getitems__(self, many):
        if multiprocessing.current_process().daemon:  # a worker may start no pool
            made = [self.load(i) for i in many]
        else:
            made = [*pool().map(self.fn, many), *pool().map(self.load, many)][:len(many)]
        return [torch.full((4,), float(self.chain[0](x))) for x in made]
""",
}


MODULES = [f"odd_{number}" for number in range(len(ODD_DATASETS))]
IMPORTS = "import copy, torch\nfrom torch import nn\nfrom torch.utils.data import Dataset\n"
EACH_ODD_DATASET = """
import importlib, json, sys
made = {}
for name in sys.argv[1:]:
    for workers in (0, 1):
        data = importlib.import_module(name).Data()
        for x in DataLoader(data, 8, num_workers=workers):
            step(x)
            made.setdefault(f"{name} with {workers}", []).append(x.tolist())
print(json.dumps(made))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All these scripts, one after another in one process; the last one has odd datasets."""
    folder = tmp_path_factory.mktemp("harmless")
    (folder / "other.py").write_text(LIGHT_HEAD + OTHER)
    (folder / "odd.py").write_text(LIGHT_HEAD + EACH_ODD_DATASET)
    for name, code in SCRIPTS.items():
        (folder / f"{name}.py").write_text(HEAD + code)
    for module, code in zip(MODULES, ODD_DATASETS.values(), strict=True):
        (folder / f"{module}.py").write_text(IMPORTS + code)
    scripts: list[list[Any]] = [[folder / f"{name}.py"] for name in SCRIPTS]
    run = record_several(folder, [*scripts, [folder / "odd.py", *MODULES]])
    check(run, [FAULT])
    return run


def part(job: Run, name: str) -> Part:
    return Part(job, [*SCRIPTS, "odd"].index(name))


def test_datasets_give_what_they_give(job: Run):
    folder = job.folder.parent
    plain = subprocess.run(
        [sys.executable, "odd.py", *MODULES],
        cwd=folder,
        env=clean_environment(PYTHONPATH=str(PROBED)),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    batches = json.loads(plain.stdout)
    assert {len(each) for each in batches.values()} == {20}
    assert json.loads(job.stdout.splitlines()[-1]) == batches
    timed = part(job, "odd").rows("transforms")
    assert {row["loader"] for row in timed} == set(range(2 * len(ODD_DATASETS)))
    names = {row["name"] for row in timed}
    assert {"Data.__getitem__", "collate_fn", "Data.many[0]: plus", "Data.many[1]: Scaled"} <= names
    assert {"Data.many[2]: Slotted", "Data.datasets[0].also: plus"} <= names
    assert "Data.datasets[0].transforms[then]: Scaled" in names
    places = {row["name"]: (Path(row["file"]).name, row["line"]) for row in timed}
    assert places["Data.datasets[0].also: plus"] == ("odd_4.py", 8)
    assert not any("datasets[2]" in name or "Split" in name for name in names)


def test_batches_with_odd_fields_are_recorded(job: Run):
    assert len(part(job, "odd fields").steps("train")) == 120


def test_datasets_that_are_let_go_die(job: Run):
    assert "alive: 0" in job.stdout.splitlines()


def test_a_loader_in_a_background_thread_is_no_wait_of_the_step(job: Run):
    steps = part(job, "background").steps("train")
    assert len(steps) >= 29
    assert sum(row["data_wait_ns"] for row in steps) == 0


def test_a_script_that_joins_all_threads_joins_none_of_the_probes(job: Run):
    assert "threads: ['MainThread'] 1" in job.stdout.splitlines()
    assert len(part(job, "own threads").steps("train")) == 20


def test_a_closure_is_forward_and_backward_not_optimizer(job: Run):
    steps = part(job, "closure").steps("train")
    assert len(steps) == 10
    assert all(row["forward_ns"] >= 200_000_000 > row["optimizer_ns"] for row in steps)


def test_backward_within_backward_is_backward(job: Run):
    steps = part(job, "checkpointed").steps("train")
    assert len(steps) == 10
    assert all(row["backward_ns"] >= 400_000_000 > row["other_ns"] for row in steps)


def numbers(steps: list[dict[str, Any]]) -> list[int]:
    """Return the steps' numbers, from that of the first one on."""
    return [row["step"] - steps[0]["step"] for row in steps]


def test_programs_that_a_rank_starts_are_not_taken_for_it(job: Run):
    run = part(job, "program")
    assert numbers(run.steps("train")) == [*range(20)]
    # Nor have their loaders left anything in the rank's records.
    assert {row["worker"] for row in run.rows("batches")} == {-1}
    assert [row["workers"] for row in run.rows("loaders")] == [0]
    assert run.rows("processes") == []


def test_a_loader_that_another_process_constructed_is_recorded_where_it_is_iterated(job: Run):
    run = part(job, "pickled")
    assert Counter(row["loader"] for row in run.steps("train")) == {0: 5, 1: 20}
    found = [(row["loader"], row["batch_size"], row["line"]) for row in run.rows("loaders")]
    assert [(number, size) for number, size, _ in found] == [(0, 2), (1, 4), (1, 4)]
    assert [bool(line) for _, _, line in found] == [True, False, False]


def test_a_fork_does_not_repeat_its_parents_steps(job: Run):
    assert numbers(part(job, "fork").steps("train")) == [*range(20)]


def test_optimizers_that_step_in_another_thread_as_gradients_come(job: Run):
    """As autograd does it for an accelerator, in a thread of its own."""
    run = part(job, "optimizers in a thread")
    steps = run.steps("train")
    assert len(steps) == 20
    assert {row["loader"] for row in steps} == {0}
    assert len(run.rows("fetches")) == 21  # the last one: there is none
    assert all(row["backward_ns"] > 0 for row in steps)


def test_one_thread_makes_the_batch_that_is_recorded(job: Run):
    made = part(job, "loaders in a dataset").rows("batches")
    assert [(row["loader"], row["samples"]) for row in made] == [(0, 2)] * 4


def test_an_error_amid_a_batchs_begin_leaves_nothing_in_place(job: Run):
    assert job.stdout.splitlines().count("interrupted as a batch began") == 1
    run = part(job, "interrupt")
    assert numbers(run.steps("train")) == [*range(20)]
    assert len(run.rows("batches")) == 20


def test_what_a_signal_handler_raises_amid_the_probe_is_the_scripts(job: Run):
    """A fault of the probe's own (`FAULT`) costs the record of that batch, and is no error."""
    assert job.stdout.splitlines().count("preempted") == 5
    run = part(job, "signals")
    assert numbers(run.steps("train")) == [*range(20)]
    assert [row["batch"] for row in run.rows("fetches")] == [*range(20)]  # the last: there is none


ODD_RANK = """
import os
# As by `str(args.rank)`, where there is none.
os.environ |= {"RANK": "None", "LOCAL_RANK": "cuda:0", "WORLD_SIZE": "auto"}
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_variables_of_ranks_that_are_no_numbers_are_those_of_no_rank(tmp_path: Path, workers: int):
    script = tmp_path / "odd_rank.py"
    spawned = f"num_workers={workers}, multiprocessing_context={'spawn' if workers else None!r}"
    script.write_text(
        ODD_RANK + LIGHT_HEAD + "if __name__ == '__main__':\n"
        f"    for x in DataLoader([torch.ones(4)] * 40, 2, {spawned}): step(x)\n"
    )
    run = record(tmp_path, script)
    check(run)
    assert [row["rank"] for row in run.steps("train")] == [0] * 20
    assert [(row["rank"], row["workers"]) for row in run.rows("loaders")] == [(0, workers)]
    assert {row["world_size"] for row in run.rows("processes")} == {1}


def test_import_hooks_run_once_found_and_their_faults_fail_no_import(tmp_path: Path):
    """Also of a module that was looked for before."""
    for module in ("oddly", "faulty"):
        (tmp_path / f"{module}.py").write_text("answer = 42\n")
    (tmp_path / "script.py").write_text("""
import importlib
from importlib.util import find_spec
from headrace.core.import_hooks import FAILED_HOOKS, after_import
after_import("oddly", lambda module: print(module.answer))
assert find_spec("oddly") and find_spec("oddly")
import oddly
importlib.reload(oddly)
def hook(module): raise ValueError("no such name")
after_import("faulty", hook)
import faulty
print(faulty.answer, FAILED_HOOKS)
""")
    ended = run_here(tmp_path, "run", "--run-dir", "out", "script.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "42\n42 ['faulty: ValueError: no such name']\n"


def test_what_the_shell_opened_for_a_script_is_open_in_it(tmp_path: Path):
    (tmp_path / "script.py").write_text("import sys; print(open(sys.argv[1]).read())\n")
    command = f"{sys.executable} -m headrace.cli.main run script.py <(echo from the shell)"
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "from the shell" in ended.stdout


def test_ctrl_c_while_python_starts_ends_it_as_ctrl_c_does(tmp_path: Path) -> None:
    # In place of ours, which it would take a race to interrupt.
    module = tmp_path / "headrace" / "bootstrap" / "process_start.py"
    module.parent.mkdir(parents=True)
    for package in (module.parent, module.parent.parent):
        (package / "__init__.py").touch()
    module.write_text(
        "import signal\n"
        "def prepare_process():\n"
        "    if len(__import__('sys').orig_argv) == 3:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
    )
    environment = {**clean_environment(), "PYTHONPATH": f"{tmp_path}:{SITECUSTOMIZE_DIR}"}
    ended = subprocess.run(
        [sys.executable, "-c", "print('begun')"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
    script = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    begun = subprocess.run(
        [sys.executable, "-B", "-c", script],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert begun.stdout == "True\n"
