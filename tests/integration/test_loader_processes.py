"""What happens to worker processes, their memory and their loader when things go wrong."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from headrace import DataLoader
from headrace.core.errors import LoaderError, LoaderTimeoutError
from headrace.data.loader.batch_builder import LoaderSpec
from headrace.data.loader.workers.pool import pickle_loader_spec
from jobs import eventually
from plain_datasets import Draws, Hangs, HoldsLock, Images, KillsItsWorker, WaitsForOthers
from sample_datasets import assert_same

TESTS = Path(__file__).parents[1]
DESCRIPTORS = Path("/proc/self/fd")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written to


def forkservers() -> list[psutil.Process]:
    """Return the forkservers of loaders; the S3 server that other tests use is a child as well."""
    return [child for child in psutil.Process().children() if is_forkserver(child)]


def is_forkserver(process: psutil.Process) -> bool:
    try:
        return "headrace.data.loader.workers.forkserver" in " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False


@pytest.fixture(autouse=True)
def _no_loaders_of_other_tests() -> None:
    """Loaders that a failure's traceback still holds would be taken for the test's own."""
    gc.collect()
    for server in forkservers():
        server.kill()
        server.wait()


def worker_processes() -> list[psutil.Process]:
    return [worker for server in forkservers() for worker in server.children()]


def gone(processes: list[psutil.Process], timeout_s: float = 120) -> bool:
    return not psutil.wait_procs(processes, timeout=timeout_s)[1]


def test_a_killed_workers_batch_is_made_again(tmp_path: Path):
    expected = list(DataLoader(Draws(40), 4, num_workers=0))
    loader = DataLoader(KillsItsWorker(40, tmp_path / "killed"), 4, num_workers=2)
    for mine, yours in zip(loader, expected, strict=True):
        assert_same(mine, yours)
    assert (tmp_path / "killed").exists()


def test_a_free_worker_takes_the_next_batch_whoever_s_turn_it_would_be(tmp_path: Path):
    loader = DataLoader(
        WaitsForOthers(tmp_path / "others are done"), 1, num_workers=2, prefetch_batches=8
    )
    assert [int(batch) for batch in loader] == list(range(8))


def test_workers_killed_from_outside_are_replaced():
    expected = list(DataLoader(Draws(400), 4, num_workers=0))
    loader = DataLoader(Draws(400), 4, num_workers=2)
    batches = []
    for number, batch in enumerate(loader):
        batches.append(batch)
        if number in {1, 20, 50}:
            for worker in worker_processes():
                worker.kill()
    for mine, yours in zip(batches, expected, strict=True):
        assert_same(mine, yours)


def test_a_sample_that_kills_every_worker_is_named():
    loader = DataLoader(KillsItsWorker(40, None), 4, num_workers=2)
    with pytest.raises(LoaderError, match=r"SIGKILL at sample 13"):
        list(loader)


def test_a_wait_has_a_deadline_that_names_worker_and_sample():
    loader = DataLoader(Hangs(40), 4, num_workers=2, timeout_s=5)
    with pytest.raises(LoaderTimeoutError, match=r"rank 0: batch 3 .* Worker \d is at sample 13"):
        list(loader)


def test_kept_batches_stay_intact_when_slots_run_out():
    kept = list(DataLoader(Images(), 2, num_workers=2))
    for number, batch in enumerate(kept):
        assert batch[:, 0, 0].tolist() == [2 * number, 2 * number + 1]
        assert bool((batch[1] == 2 * number + 1).all())


def test_what_autograd_keeps_stays_intact():
    weight = torch.ones((), requires_grad=True)
    losses = [(weight * batch.float()).sum() for batch in DataLoader(Images(), 4, num_workers=2)]
    torch.stack(losses).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == 512 * 512 * sum(range(64))


def test_a_view_keeps_its_slot_and_the_batch_may_go():
    rows = [batch[1, :3] for batch in DataLoader(Images(), 4, num_workers=1)]
    gc.collect()
    assert [row[0, 0].item() for row in rows] == list(range(1, 64, 4))


def test_slots_are_reused_and_files_closed():
    before = len([link for link in DESCRIPTORS.iterdir() if "headrace" in _target(link)])
    loader = DataLoader(Images(), 4, num_workers=2)
    assert sum(1 for _ in loader) == 16  # every slot has been lent, and so mapped
    descriptors = len(list(DESCRIPTORS.iterdir()))
    for _ in range(5):
        assert sum(1 for _ in loader) == 16
    assert len(list(DESCRIPTORS.iterdir())) <= descriptors
    loader = None
    gc.collect()
    assert len([link for link in DESCRIPTORS.iterdir() if "headrace" in _target(link)]) == before


def test_a_loader_that_only_its_iteration_keeps_is_closed_with_it():
    before = len([link for link in DESCRIPTORS.iterdir() if "headrace" in _target(link)])
    assert sum(1 for _ in DataLoader(Images(), 4, num_workers=2)) == 16

    class Trainer:
        """Keeps both, and itself."""

        def __init__(self) -> None:
            self.loader = DataLoader(Images(), 4, num_workers=2)
            self.batches = iter(self.loader)
            self.trainer = self

    next(Trainer().batches)
    gc.collect()
    assert len([link for link in DESCRIPTORS.iterdir() if "headrace" in _target(link)]) == before
    assert gone([*forkservers(), *worker_processes()])


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the descriptor that listed the folder
        return ""


def test_nothing_lies_in_dev_shm():
    before = set(SHARED_MEMORY.iterdir())
    loader = iter(DataLoader(Images(), 8, num_workers=2))
    next(loader)
    # Others put something there for a moment.
    eventually(lambda: set(SHARED_MEMORY.iterdir()) <= before, "nothing more than before")


def test_dropping_the_loader_ends_its_processes():
    loader = DataLoader(Draws(40), 4, num_workers=2)
    next(iter(loader))
    eventually(lambda: len(worker_processes()) == 2, "both workers")
    processes = [*forkservers(), *worker_processes()]
    assert len(processes) == 3
    del loader
    gc.collect()
    assert gone(processes)


SCRIPT = textwrap.dedent("""
    import os, signal, sys
    from itertools import islice
    from plain_datasets import Draws
    from headrace import DataLoader
    signals = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    received = []
    for number in signals:
        signal.signal(number, lambda number, _: received.append(number))
    if __name__ == "__main__":
        batches = iter(DataLoader(Draws(100000), 4, num_workers=2))
        came = [*islice(batches, 10)]
        for number in signals if "stop" in sys.argv else ():
            os.killpg(0, number)
        print(len(received), len([*islice(batches, 90)]), flush=True)
        for batch in batches:
            pass
""")


def start_script(
    tmp_path: Path, *arguments: str
) -> tuple[subprocess.Popen, str, list[psutil.Process]]:
    """Start a script; return it, what it printed, its forkserver and workers."""
    (tmp_path / "script.py").write_text(SCRIPT)
    script = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)])},
        start_new_session=True,
    )
    assert script.stdout is not None
    printed = script.stdout.readline()
    assert printed, script.communicate()[1]

    def children() -> list[psutil.Process]:
        found = psutil.Process(script.pid).children(recursive=True)
        return found if len(found) == 3 else []

    return script, printed, eventually(children, "the forkserver and two workers")


def test_kill_9_of_the_training_process_leaves_nothing(tmp_path: Path):
    script, _, children = start_script(tmp_path)
    script.kill()
    script.wait()
    assert gone(children)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, int, bool]:
    """What a script prints that is asked to stop, then gets ctrl-C, its code, whether all ended."""
    script, printed, children = start_script(tmp_path_factory.mktemp("stopped"), "stop")
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=60)
    return printed, errors, script.returncode, gone(children)


def test_a_job_that_is_asked_to_stop_has_its_batches_until_it_does(stopped):
    """Launchers and schedulers signal the whole process group."""
    assert stopped[0].split() == ["4", "90"]


def test_ctrl_c_ends_everything_with_one_traceback(stopped):
    _, errors, code, all_ended = stopped
    assert code != 0
    assert errors.count("Traceback") == 1
    assert "KeyboardInterrupt" in errors
    assert all_ended


def test_kill_9_of_the_forkserver_is_an_error_not_a_hang():
    loader = iter(DataLoader(Draws(100000), 4, num_workers=2, timeout_s=60))
    next(loader)
    forkservers()[-1].kill()
    with pytest.raises(LoaderError, match="forkserver ended"):
        for _ in loader:
            pass


def test_unpicklable_datasets_are_named():
    with pytest.raises(LoaderError, match=r"dataset\.guard is a lock"):
        iter(DataLoader(HoldsLock(9), 3, num_workers=1))


def test_worker_init_fn_runs_and_its_error_is_reported():
    def fail(worker: int) -> None:
        raise OSError(f"no licence for worker {worker}")

    with pytest.raises(LoaderError, match="no licence"):
        list(DataLoader(Draws(9), 3, num_workers=1, worker_init_fn=fail))


def test_a_changed_dataset_reaches_the_workers():
    dataset = Draws(6)
    loader = DataLoader(dataset, 2, sampler=[0, 1, 2, 3], num_workers=1)
    assert len(list(loader)) == 2
    dataset.samples = 4
    dataset.extra = "more"
    first = worker_processes()
    assert len(list(loader)) == 2
    assert gone(first)


def mapped(path: Path, mode: str = "r", **more: object) -> np.memmap:
    return np.memmap(path, np.int32, mode, **more)


@pytest.fixture
def numbers_file(tmp_path: Path) -> Path:
    path = tmp_path / "many numbers"
    path.write_bytes(np.arange(96_000, dtype=np.int32).tobytes())
    np.save(tmp_path / "saved.npy", np.arange(96_000).reshape(400, 240))
    return path


def pickled(dataset: object, *, maps_files: bool = True) -> bytes:
    spec = LoaderSpec(dataset=dataset, collate_fn=None)
    return pickle_loader_spec(spec, maps_files=maps_files).content


@pytest.mark.parametrize(
    "make",
    [
        mapped,
        lambda path: mapped(path, "r+"),
        lambda path: mapped(path.with_name("new"), "w+", shape=(400, 240)),
        lambda path: mapped(path, offset=20, shape=(400, 200)),
        lambda path: mapped(path, shape=(400, 240), order="F"),
        lambda path: mapped(path)[20_000:70_001],
        lambda path: mapped(path, offset=8192)[1:],
        lambda path: np.asarray(mapped(path)).reshape(400, 240)[3:],
        lambda path: mapped(path).view(np.uint8)[2:],
        lambda path: np.load(path.with_name("saved.npy"), mmap_mode="r"),
        lambda path: np.load(path.with_name("saved.npy"), mmap_mode="r+").T,
    ],
)
def test_workers_map_the_files_that_the_dataset_has_mapped(numbers_file: Path, make):
    array = make(numbers_file)
    content = pickled({"data": array, "again": array})
    assert len(content) < array.nbytes / 4
    dataset = pickle.loads(content).dataset
    sent = dataset["data"]
    assert dataset["again"] is sent
    assert type(sent) is type(array)
    assert sent.dtype == array.dtype
    assert (sent.flags.writeable, sent.flags.c_contiguous, sent.flags.f_contiguous) == (
        array.flags.writeable, array.flags.c_contiguous, array.flags.f_contiguous,
    )  # fmt: skip
    np.testing.assert_array_equal(sent, array)
    if array.flags.writeable:
        sent[-1] = 7
        np.testing.assert_array_equal(sent, array)


def changed_copy(path: Path) -> np.memmap:
    array = mapped(path, "c")
    array[:] += 1
    return array


def deleted(path: Path) -> np.memmap:
    array = mapped(path)
    path.unlink()
    return array


def replaced(path: Path) -> np.memmap:
    array = mapped(path)
    path.with_name("other").write_bytes(bytes(array.nbytes))
    path.with_name("other").replace(path)
    return array


@pytest.mark.parametrize(
    "make",
    [
        changed_copy,
        deleted,
        replaced,
        lambda path: mapped(path)[::2],
        lambda path: mapped(path) + 1,
    ],
)
def test_other_arrays_are_sent_as_they_are(numbers_file: Path, make):
    array = make(numbers_file)
    content = pickled(array)
    assert len(content) > array.nbytes
    np.testing.assert_array_equal(pickle.loads(content).dataset, array)


def test_other_hosts_get_what_a_file_holds(numbers_file: Path):
    array = mapped(numbers_file)
    content = pickled(array, maps_files=False)
    numbers_file.unlink()
    np.testing.assert_array_equal(pickle.loads(content).dataset, array)


def test_samples_of_a_memory_map_reach_the_script(numbers_file: Path):
    loader = DataLoader(mapped(numbers_file), 32_000, num_workers=1)
    for number in (5, 6):
        mapped(numbers_file, "r+")[95_999] = number
        assert [batch[-1].item() for batch in loader] == [31_999, 63_999, number]


def test_many_open_slots_stay_within_the_descriptor_limit():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
    loaders = [DataLoader(Draws(8), 2, num_workers=1) for _ in range(4)]
    assert sum(len(list(loader)) for loader in loaders) == 16
