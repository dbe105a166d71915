"""Checkpoints of model, optimizer and loader, saved by all ranks, complete or absent.

Collective steps exchange their outcome, so that every rank learns of a failure on any rank.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save as write_states
from torch.optim import Optimizer

from headrace.core.errors import CheckpointError, UsageError
from headrace.core.files import sync_folder
from headrace.core.scratch_folder import ScratchFolder
from headrace.core.world import current_world
from headrace.data.storage import StorageConfig, open_store, parse_url
from headrace.train.checkpoint_commit import Commit, SavedFile, json_copy, step_folder
from headrace.train.checkpoint_store import (
    CheckpointCatalog,
    describe_file,
    fetch_file,
    rank_files,
)
from headrace.train.state_dicts import (
    PlainCheckpointWriter,
    SafeCheckpointReader,
    SafeLoadPlanner,
    SafeSavePlanner,
    TrainingState,
    apply_state,
    check_state_fits,
    collect_state,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result of one rank's action: its value, or its error."""

    value: Any = None
    error: str | None = None


def this_rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return dist.get_rank() if dist.is_initialized() else 0


def on_all_ranks(action: Callable[[], T]) -> T:
    """Run `action` on all ranks, return this one's value; CheckpointError on all if any failed."""
    outcome, error = _run_action(action)
    _gather_outcomes(_Outcome(error=outcome.error), error)
    value: T = outcome.value
    return value


def gather_values(action: Callable[[], T]) -> list[T]:
    """Run `action` on every rank and return every rank's value; raises as `on_all_ranks`."""
    return [each.value for each in _gather_outcomes(*_run_action(action))]


def on_rank_0(action: Callable[[], T]) -> T:
    """Run `action` on rank 0 and return its value on every rank; raises as `on_all_ranks`."""
    outcome, error = _run_action(action) if this_rank() == 0 else (None, None)
    if dist.is_initialized():
        outcomes: list[Any] = [outcome]
        dist.broadcast_object_list(outcomes, src=0)
        outcome = outcomes[0]
    assert outcome is not None
    if outcome.error is not None:
        _raise_interruption(error)
        raise CheckpointError(outcome.error) from error
    value: T = outcome.value
    return value


def _gather_outcomes(outcome: _Outcome, error: BaseException | None) -> list[_Outcome]:
    outcomes: list[Any] = [outcome]
    if dist.is_initialized():
        outcomes = [None] * dist.get_world_size()
        dist.all_gather_object(outcomes, outcome)
    failed = {rank: each.error for rank, each in enumerate(outcomes) if each.error is not None}
    if failed:
        text = " ".join(f"rank {rank}: {message}" for rank, message in failed.items())
        _raise_interruption(error)
        is_same = len(failed) == len(outcomes) and len(set(failed.values())) == 1
        raise CheckpointError(failed[0] if is_same else text) from error
    return outcomes


def _run_action(action: Callable[[], Any]) -> tuple[_Outcome, BaseException | None]:
    # Every error must reach the other ranks: they would wait for this one until the process
    # group's deadline. It is raised again once they know.
    try:
        return _Outcome(value=action()), None
    except (Exception, CheckpointException) as error:  # noqa: BLE001
        return _Outcome(error=_error_text(error)), error


def _raise_interruption(error: BaseException | None) -> None:
    """Raise ctrl-C or an exit in this rank as what it is: torch hands it on as a failure."""
    if isinstance(error, CheckpointException):
        cause, _ = error.failures.get(this_rank(), (None, None))
        if isinstance(cause, (KeyboardInterrupt, SystemExit)):
            raise cause


def _error_text(error: BaseException) -> str:
    if isinstance(error, CheckpointException):  # of torch, with the errors of ranks
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {_error_text(cause)}"
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"


class Stateful(Protocol):
    """A loader for `save` and `restore`: anything with a state dict."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as values that JSON can hold."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Continue from a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The parts of a checkpoint that `restore` does not load: the step, and `save`'s `extra`."""

    step: int
    extra: Any


_RESTORE_TRIES = 5  # to restore, while a job that is training removes the checkpoint being read
_SCRATCH = "headrace-checkpoint-"


class Checkpointer:
    """Saves model, optimizer and loader together, and restores the newest complete checkpoint.

    A checkpoint is a folder `step-<n>` below the URL. It counts once its commit file, written
    last, exists; a save that ends before that leaves the previous checkpoint the newest. DDP, FSDP
    and bare models read one another's checkpoints, at any world size.

    Args:
        url: A path or any writable URL. All ranks must see it, and only one run may write to it.
        keep: Number of checkpoints to keep; older ones are deleted after each save.
        storage: Retries and connections for remote URLs.

    Raises:
        UsageError: `keep` is below 1, or the URL names no store.
    """

    def __init__(self, url: str, keep: int = 3, *, storage: StorageConfig | None = None) -> None:
        if keep < 1:
            raise UsageError(f"keep={keep}: a checkpointer keeps one checkpoint or more.")
        location = parse_url(url)
        self._local = Path(location.prefix) if location.kind == "local" else None
        self._store = open_store(url, config=storage)
        self._catalog = CheckpointCatalog(self._store, self._local)
        self._keep = keep

    def latest(self) -> int | None:
        """Return the step of the newest complete checkpoint, or None. Any rank may call it alone.

        StorageError: the store fails. CheckpointError: a commit file is damaged.
        """
        newest = self._catalog.newest()
        return None if newest is None else newest.step

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        loader: Stateful | None = None,
        extra: Any = None,
    ) -> None:
        """Save a checkpoint; all ranks call this, and it returns once the checkpoint counts.

        Args:
            step: 0 or more, and not below the newest one's. The same step again replaces it.
            model: As `prepare` returned it, or bare. Buffers are rank 0's.
            optimizer: The optimizer of the model's parameters.
            loader: Its `state_dict()` is saved, as JSON.
            extra: Rank 0's is saved: anything JSON can hold, such as the epoch or a scheduler's
                state. Dicts may also have numbers as keys; tuples come back as lists.

        Raises:
            CheckpointError: On every rank: it could not be written, a value cannot be saved, or the
                ranks' loaders have different seeds. Earlier checkpoints are untouched.
        """
        loaders = gather_values(lambda: None if loader is None else _as_json(loader.state_dict()))
        _check_one_seed(loaders)
        json_extra = on_all_ranks(lambda: _as_json(extra))
        save = on_rank_0(lambda: self._begin(step))
        folder = f"{step_folder(step)}/{save}"
        with self._write_folder(folder) as files_dir:
            states = on_all_ranks(lambda: collect_state(model, optimizer))
            on_all_ranks(lambda: _write_states(states, files_dir))
            files = gather_values(lambda: self._upload_files(files_dir, folder))
            on_rank_0(lambda: _check_reads_back(files_dir, files, states))
        same = all(state == loaders[0] for state in loaders)
        commit = Commit(
            step=step,
            save=save,
            world_size=len(files),
            saved_s=time.time(),
            files=tuple(file for of_rank in files for file in of_rank),
            loader=None if loader is None else tuple(loaders[:1] if same else loaders),
            extra=json_extra,
        )
        on_rank_0(lambda: self._catalog.add(commit))
        on_rank_0(lambda: self._catalog.prune(commit, self._keep))

    def restore(
        self, model: nn.Module, optimizer: Optimizer | None = None, loader: Stateful | None = None
    ) -> Restored | None:
        """Load the newest complete checkpoint; all ranks call this. Returns None without one.

        Every file is verified. A saved optimizer or loader that is not passed is ignored.

        Args:
            model: As `prepare` returned it, or bare; it may be sharded differently than when saved.
            optimizer: The optimizer of the model's parameters, new or used.
            loader: Receives its saved state.

        Raises:
            CheckpointError: On every rank: the checkpoint is damaged, or does not fit (the
                parameters are named). Model, optimizer and loader are unchanged.
        """
        with ExitStack() as stack:
            fetched = self._fetch_newest(loader, stack)
            if fetched is None:
                return None
            commit, files_dir = fetched
            reader = SafeCheckpointReader(files_dir, [file.name for file in commit.files])
            saved = on_all_ranks(reader.read_metadata)
            before = on_all_ranks(lambda: None if loader is None else loader.state_dict())
            collected: list[TrainingState] = []  # this rank's, also where another one fails
            try:
                on_all_ranks(lambda: collected.append(collect_state(model, optimizer, saved=saved)))
                (states,) = collected
                on_all_ranks(lambda: check_state_fits(states, saved, self._url_of(commit)))
                # Before the model: it may refuse.
                on_all_ranks(lambda: _restore_loader(commit, loader))
                on_all_ranks(lambda: _read_states(states, reader))
                on_all_ranks(lambda: apply_state(states))
            except CheckpointError:
                for states in collected:
                    states.abandon()
                if loader is not None and before is not None:
                    loader.load_state_dict(before)
                raise
        return Restored(step=commit.step, extra=commit.extra)

    def _fetch_newest(
        self, loader: Stateful | None, stack: ExitStack
    ) -> tuple[Commit, Path] | None:
        """Return the newest checkpoint and the folder with its verified files, or None.

        Where a job that is training removes it during the fetch, the next newer one is fetched.
        """
        commit = on_rank_0(self._catalog.newest)
        for tries_left in reversed(range(_RESTORE_TRIES)):
            if commit is None:
                return None
            tried: Commit = commit
            on_all_ranks(lambda: self._check_loader(tried, loader))  # noqa: B023 - called at once
            try:
                return tried, stack.enter_context(self._fetched(tried))
            except CheckpointError:
                commit = on_rank_0(self._catalog.newest)
                if not tries_left or commit is None or commit == tried or commit.step < tried.step:
                    raise
        raise AssertionError("the last try returns or raises")

    def _begin(self, step: int) -> str:
        if step < 0:
            raise CheckpointError(f"step={step}: steps count from 0.")
        newest = self.latest()
        if newest is not None and step < newest:
            raise CheckpointError(
                f"{self._store.url} already holds step {newest}, so a checkpoint of step {step} "
                "would never be restored. Call restore() first to go on from there, or save to "
                "another folder."
            )
        return uuid.uuid4().hex[:12]

    @contextmanager
    def _write_folder(self, folder: str) -> Iterator[Path]:
        """Yield the folder for torch's files: the final one on disk, or a temporary one."""
        if self._local is not None:
            yield self._local / folder
        else:
            with ScratchFolder(_SCRATCH) as scratch:
                yield scratch / "files"

    def _upload_files(self, files_dir: Path, folder: str) -> list[SavedFile]:
        files = rank_files(files_dir, this_rank())
        described = [describe_file(file) for file in files]
        if self._local is None:
            for file in files:
                self._store.put(f"{folder}/{file.name}", file)
        else:  # torch flushes files; their names are in folders, which may be new
            for place in (files_dir, files_dir.parent, self._local, self._local.parent):
                sync_folder(place)
        return described

    @contextmanager
    def _fetched(self, commit: Commit) -> Iterator[Path]:
        """Yield the folder with a checkpoint's verified files, shared by the ranks of a host."""
        folder = f"{step_folder(commit.step)}/{commit.save}"
        with nullcontext() if self._local is not None else ScratchFolder(_SCRATCH) as scratch:
            host_ranks = _ranks_of_host()
            shared = None
            if scratch is not None:
                shared = Path(gather_values(lambda: str(scratch))[host_ranks[0]])
            share = commit.files[host_ranks.index(this_rank()) :: len(host_ranks)]
            on_all_ranks(lambda: self._fetch(share, folder, shared))
            if self._local is not None:
                yield self._local / folder
            elif shared is not None:
                yield shared
                on_all_ranks(lambda: None)  # the folder goes once nobody reads it any more

    def _fetch(self, files: Sequence[SavedFile], folder: str, destination: Path | None) -> None:
        for file in files:
            fetch_file(file, self._store, folder, destination)

    def _check_loader(self, commit: Commit, loader: Stateful | None) -> None:
        if loader is None:
            return
        if commit.loader is None:
            raise CheckpointError(
                f"{self._url_of(commit)} holds no loader's state. Restore it without a loader, or "
                "save with one."
            )
        size = dist.get_world_size() if dist.is_initialized() else 1
        if len(commit.loader) not in {1, size}:
            raise CheckpointError(
                f"{self._url_of(commit)} holds a loader's state for each of {len(commit.loader)} "
                f"ranks, which differ, and there are {size} now. Restore it on "
                f"{len(commit.loader)}, or use headrace.DataLoader, whose state fits any world."
            )

    def _url_of(self, commit: Commit) -> str:
        return f"{self._store.url}/{step_folder(commit.step)}"


def _ranks_of_host() -> list[int]:
    """Return the ranks of this host, if the launcher sets LOCAL_RANK; else this one."""
    world = current_world()
    first = world.rank - world.local_rank
    return [rank for rank, other in enumerate(gather_values(lambda: first)) if other == first]


def _check_one_seed(states: Sequence[Any]) -> None:
    """Raise CheckpointError where ranks should share one order of samples but differ in seed.

    Each would take its part of its own permutation: samples are lost, and others come twice.
    """
    seeds = {
        rank: state.get("seed")
        for rank, state in enumerate(states)
        if isinstance(state, dict) and state.get("kind") == "plan" and state.get("shuffle")
    }
    if len(set(seeds.values())) > 1:
        listed = ", ".join(f"rank {rank}: {seed}" for rank, seed in seeds.items())
        raise CheckpointError(
            f"The ranks' loaders have different seeds ({listed}), so they do not share the samples "
            "out: some come twice and others never. Give all ranks' DataLoaders one seed."
        )


def _restore_loader(commit: Commit, loader: Stateful | None) -> None:
    """Load a loader's state: this rank's own, or the one common to all ranks."""
    if loader is not None and commit.loader is not None:
        number = 0 if len(commit.loader) == 1 else this_rank()
        loader.load_state_dict(commit.loader[number])


def _as_json(state: Any) -> Any:
    try:
        return json_copy(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"The loader's state and `extra` are kept as JSON, and this cannot be: {error}. Give "
            "numbers, texts, lists and dicts of them."
        ) from error


@contextmanager
def _without_single_process_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _check_reads_back(
    files_dir: Path, files: Sequence[Sequence[SavedFile]], states: TrainingState
) -> None:
    """Raise CheckpointError where a description that was written cannot be read, or lacks a value.

    It would count, have older checkpoints deleted, and fail when it is needed.
    """
    names = [file.name for of_rank in files for file in of_rank]
    saved = SafeCheckpointReader(files_dir, names).read_metadata().state_dict_metadata
    if missing := [key for key in states.values if key not in saved]:
        raise CheckpointError(
            f"{files_dir / '.metadata'} was written without {missing[0]}, one of {len(missing)} "
            "values that it should describe. Earlier checkpoints are untouched."
        )


@_without_single_process_warning()
def _write_states(states: TrainingState, files_dir: Path) -> None:
    writer = PlainCheckpointWriter(files_dir)
    write_states(states.values, storage_writer=writer, planner=SafeSavePlanner())


@_without_single_process_warning()
def _read_states(states: TrainingState, reader: SafeCheckpointReader) -> None:
    load(states.values, storage_reader=reader, planner=SafeLoadPlanner())
