"""What the outside sees stays as it was written down, and what older versions made still opens."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from stored import CountingStore, checkpoint_parts
from surfaces import ARTEFACTS, HERE, KINDS, collect

import headrace
from headrace.data.loader.executors.base import InlineExecutor
from headrace.data.loader.serialization import unpickle
from headrace.data.storage.cache.cached_store import CachedStore
from jobs import run_here

EXPECTED = HERE / "expected"
OF_ROOT = ("dry_run", "refusal", "run_json")  # jobs that have /opt/ml to themselves


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_outside_sees_is_what_was_written_down(kind: str) -> None:
    if kind in OF_ROOT and (os.geteuid() != 0 or torch.accelerator.device_count()):
        pytest.skip("written on a host without devices, by root")
    expected = {
        file.relative_to(EXPECTED).with_suffix("").as_posix(): file.read_text()
        for file in (EXPECTED / kind).iterdir()
    }
    found = collect(kind)
    assert found.keys() == expected.keys()
    differing = [name for name, text in found.items() if text != expected[name]]
    for name in differing[:1]:
        assert found[name] == expected[name], f"{differing}; tests/goldens/write.py writes them"


def test_an_old_run_opens_and_is_diagnosed_and_reported(tmp_path: Path) -> None:
    shutil.copytree(ARTEFACTS / "recorded" / "ranks", tmp_path / "ranks")
    run = headrace.open_run(tmp_path / "ranks")
    assert set(run.steps["rank"]) == {0, 1}
    assert len(run.loaders) > 0
    for verb in ("doctor", "report"):
        ended = run_here(tmp_path, verb, "ranks")
        assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "ranks" / "report.html").stat().st_size > 100_000


def test_a_run_in_a_folder_whose_name_is_no_text_is_opened_and_reported(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"no text \xff")
    shutil.copytree(ARTEFACTS / "recorded" / "alone", folder)
    assert len(headrace.open_run(folder).steps) > 0
    for words in (["doctor"], ["report", "--output", "page.html"]):
        ended = run_here(tmp_path, words[0], str(folder), *words[1:])
        assert ended.returncode == 0, ended.stderr
    assert "no text \\udcff" in (tmp_path / "page.html").read_text()


def test_an_old_run_goes_on_with_a_next_attempt(tmp_path: Path) -> None:
    shutil.copytree(ARTEFACTS / "recorded" / "alone", tmp_path / "alone")
    (tmp_path / "train.py").write_text("print('again')\n")
    ended = run_here(tmp_path, "run", "--run-dir", "alone", "--profile", "off", "train.py")
    assert ended.stdout == "again\n", ended.stderr
    assert len(headrace.open_run(tmp_path / "alone").steps) > 0


def test_an_old_dataset_is_read_and_found_without_faults(tmp_path: Path) -> None:
    shutil.copytree(ARTEFACTS / "dataset", tmp_path / "dataset")
    ended = run_here(tmp_path, "data", "lint", "dataset")
    assert "no faults" in ended.stdout, ended
    dataset = headrace.ShardDataset(str(tmp_path / "dataset"))
    images = sorted(path.read_bytes() for path in (ARTEFACTS / "images").rglob("*.jpg"))
    assert len(dataset) == len(images) == 48


def test_an_old_checkpoint_restores_model_optimizer_and_position(tmp_path: Path) -> None:
    shutil.copytree(ARTEFACTS / "checkpoint", tmp_path / "checkpoint")
    model, optimizer, loader = checkpoint_parts(ARTEFACTS / "dataset")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    whole = [batch["__key__"] for batch in loader]
    with torch.no_grad():
        for value in model.parameters():
            value.zero_()
    _, _, resumed = checkpoint_parts(ARTEFACTS / "dataset")
    checkpointer = headrace.Checkpointer(str(tmp_path / "checkpoint"))
    restored = checkpointer.restore(model, optimizer, resumed)
    assert restored is not None
    assert (restored.step, restored.extra) == (2, {"note": "artefact"})
    # `saved` took its step on this machine, whose arithmetic differs in the last bits.
    torch.testing.assert_close(dict(model.state_dict()), saved)
    assert [batch["__key__"] for batch in resumed] == whole[2:]


def test_an_old_cache_serves_its_blocks(tmp_path: Path) -> None:
    shutil.copytree(ARTEFACTS / "cache", tmp_path / "cache")
    behind = CountingStore(ARTEFACTS / "dataset")
    store = CachedStore(behind, tmp_path / "cache", 10**8)
    for info in list(store.list()):
        assert bytes(store.get(info.path)) == (ARTEFACTS / "dataset" / info.path).read_bytes()
    assert behind.read_bytes == 0


def test_what_an_old_rank_sends_to_an_offload_server_makes_the_same_batch() -> None:
    place = Path("/tmp/headrace-goldens")  # noqa: S108 - where it was, as its pickle says
    place.mkdir(exist_ok=True)
    shutil.copytree(ARTEFACTS / "dataset", place / "dataset", dirs_exist_ok=True)
    folder = ARTEFACTS / "offload"
    executor = InlineExecutor(0)
    executor.start(unpickle((folder / "loader_spec.pickle").read_bytes()))
    executor.submit(unpickle((folder / "batch_spec.pickle").read_bytes()))
    batch = executor.next_made(10, lambda: None).content
    shutil.rmtree(place)
    assert json.loads((folder / "batch.json").read_text()) == {
        "keys": batch["__key__"],
        "jpg": hashlib.sha256(batch["jpg"].numpy().tobytes()).hexdigest(),
    }
