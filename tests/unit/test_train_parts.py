"""Parts of checkpoints and strategies that need no ranks."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from headrace.core.errors import CheckpointError
from headrace.data.loader.serialization import unpickle
from headrace.train import strategies
from headrace.train.checkpoint_commit import Commit, SavedFile, step_folder, step_of
from headrace.train.state_dicts import SafeCheckpointReader
from headrace.train.strategies import repeated_blocks
from training import Block, Network

COMMIT = Commit(
    step=7,
    save="0123456789ab",
    world_size=2,
    saved_s=1.5,
    files=(SavedFile(name=".metadata", size_bytes=3, crc32c=5),),
    loader=({"position": 3},),
    extra=[1, None],
)


def test_a_commit_reads_back_as_it_was_written():
    assert Commit.from_json(COMMIT.to_json(), "s3://b/c") == COMMIT


@pytest.mark.parametrize(
    "value",
    [
        {30: 1, 60: 2},
        {"a": [{1: {True: "x", None: [], 2.5: 0, "1": "text"}}]},
        {"headrace-pairs": [[1, 2]]},
        {"headrace-pairs": {}, "b": {3: float("inf")}},
        {},
    ],
)
def test_dicts_in_a_commit_keep_their_keys(value: object):
    commit = replace(COMMIT, loader=({0: value}, value), extra=value)
    assert Commit.from_json(commit.to_json(), "s3://b/c") == commit


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"version": 1', b'"version": 2', "format 2; this Headrace reads 1"),
        (b'"step": 7', b'"stop": 7', "no commit of a checkpoint"),
        (b".metadata", b"../../etc", "no file's name"),
        (b"0123456789ab", b"..", "no file's name"),
        (b"{", b"[", "no commit of a checkpoint"),
    ],
)
def test_a_damaged_commit_is_reported_with_its_url(old: bytes, new: bytes, message: str):
    fields = json.loads(COMMIT.to_json())
    del fields["checksum"]  # as of earlier versions
    data = json.dumps(fields).encode()
    assert Commit.from_json(data, "") == COMMIT
    with pytest.raises(CheckpointError, match=message) as raised:
        Commit.from_json(data.replace(old, new), "s3://b/c/commit.json")
    assert "s3://b/c/commit.json" in str(raised.value)


@pytest.mark.parametrize("step", [0, 12, 10**12 - 1, 10**12, 1_790_000_000_000, 10**30])
def test_a_step_is_found_again_in_the_path_of_its_files(step: int):
    assert step_of(f"{step_folder(step)}/x/y") == step


@pytest.mark.parametrize("path", ["step-12/x", "other", f"step-{12:013}/x", f"step-{'٣' * 12}"])
def test_a_folder_that_is_named_otherwise_is_no_step_s(path: str):
    assert step_of(path) is None


def test_blocks_are_what_repeats_below_lists_and_sequences():
    model = Network(depth=3)
    assert repeated_blocks(model) == list(model.blocks)


def test_blocks_of_a_staged_model_are_found_in_each_stage():
    stages = nn.ModuleList(nn.ModuleList(Block(4) for _ in range(2)) for _ in range(3))
    assert len(repeated_blocks(nn.Sequential(nn.Linear(4, 4), stages))) == 6


def test_rows_of_plain_layers_and_single_blocks_are_no_repeated_blocks():
    plain = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    assert repeated_blocks(nn.Sequential(plain, Block(4))) == []


def test_blocks_within_blocks_belong_to_the_outer_one():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ModuleList(Block(4) for _ in range(2))

    model = nn.Sequential(Outer(), Outer())
    assert repeated_blocks(model) == list(model)


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/headrace-evil"),))  # noqa: S108  (never made)


def test_code_in_a_checkpoint_s_description_is_not_run(tmp_path: Path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"asks for .*not to be trusted"):
        SafeCheckpointReader(tmp_path, [".metadata"]).read_metadata()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(torch.Size([1])))
    with pytest.raises(CheckpointError, match="describes no checkpoint"):
        SafeCheckpointReader(tmp_path, [".metadata"]).read_metadata()


def test_a_description_of_any_python_names_the_folder(tmp_path: Path):
    description = Metadata({}, storage_meta=StorageMeta(checkpoint_id=tmp_path))
    written = pickle.dumps(description, protocol=3)  # modules stand in it as lines
    here = f"c{type(tmp_path).__module__}\nPosixPath".encode()
    assert here in written
    for module in (b"pathlib", b"pathlib._local"):  # the latter is 3.13's
        foreign = written.replace(here, b"c" + module + b"\nPosixPath")
        (tmp_path / ".metadata").write_bytes(foreign)
        metadata = SafeCheckpointReader(tmp_path, [".metadata"]).read_metadata()
        assert metadata.storage_meta == StorageMeta(checkpoint_id=tmp_path)


def test_a_dataset_of_any_python_s_paths_is_read(tmp_path: Path):
    here = f"c{type(tmp_path).__module__}\nPosixPath".encode()
    for module in (b"pathlib", b"pathlib._local"):
        foreign = pickle.dumps(tmp_path, protocol=0).replace(here, b"c" + module + b"\nPosixPath")
        assert unpickle(foreign) == tmp_path


def test_at_exit_gloo_s_threads_may_finish_what_needs_the_interpreter():
    begun, freed, ends = threading.Event(), threading.Event(), threading.Event()

    def work_on_as_gloo_does() -> None:
        Path("/proc/thread-self/comm").write_text("pt_gloo_runloop")
        begun.set()
        hashlib.sha256(bytes(16 << 20))  # works without the interpreter, then needs it
        freed.set()
        ends.wait()

    thread = threading.Thread(target=work_on_as_gloo_does)
    thread.start()
    begun.wait()
    strategies._destroy_process_group(os.getpid())
    was_freed = freed.is_set()
    ends.set()
    thread.join()
    assert was_freed
