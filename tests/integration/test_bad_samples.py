"""Damaged samples: replaced by a rule, named, and too many of them stop all ranks alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest
from slow_proxy import Faults, slow_proxy
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader

from headrace import DataLoader, ShardDataset
from headrace.core.errors import TooManyBadSamplesError
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from packed import pack_images

COUNT = 80


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return Path(pack_images(folder / "images", str(folder / "packed"), COUNT))


@pytest.fixture
def url(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset that the test may damage; the test's folder is where its records go."""
    monkeypatch.chdir(tmp_path)
    return str(shutil.copytree(packed, tmp_path / "packed"))


def damage(url: str, samples: list[int]) -> list[str]:
    """Flip a byte in the image of each sample; return their keys."""
    index = ShardDataset(url).index
    keys = []
    for sample in samples:
        location = index.locate(sample)
        image = next(member for member in location.members if member.extension == "jpg")
        with (Path(url) / location.path).open("r+b") as shard:
            shard.seek(image.offset + image.size_bytes // 2)
            byte = shard.read(1)[0]
            shard.seek(-1, 1)
            shard.write(bytes([byte ^ 0xFF]))
        keys.append(location.key)
    return keys


def quarantined(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "quarantine.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_is_replaced_within_its_shard_and_named(
    url: str, tmp_path: Path, workers: int, caplog: pytest.LogCaptureFixture
):
    (bad_key,) = damage(url, [33])
    dataset = ShardDataset(url)
    epochs = []
    for _ in range(2):
        loader = DataLoader(dataset, 8, num_workers=workers)
        epochs.append([key for batch in loader for key in batch["__key__"]])
    assert epochs[0] == epochs[1]
    assert len(epochs[0]) == COUNT
    assert bad_key not in epochs[0]
    (warning,) = [each.message for each in caplog.records if "was replaced" in each.message]
    assert bad_key in warning
    record = quarantined(tmp_path)[0]
    assert record["key"] == bad_key
    assert record["sample"] == 33
    assert record["error"] == "CorruptError"
    assert epochs[0][33] == record["replacement_key"]
    assert dataset.index.locate(33).shard == dataset.index.locate(record["replacement"]).shard


@pytest.mark.parametrize(
    "load",
    [
        lambda dataset: DataLoader(dataset, 8, num_workers=0),
        lambda dataset: TorchDataLoader(dataset, 8),
        lambda dataset: DataLoader(Subset(dataset, range(COUNT)), 8, num_workers=0),
        lambda dataset: TorchDataLoader(ConcatDataset([dataset]), 8),
        lambda dataset: ({"__key__": [dataset[number]["__key__"]]} for number in range(COUNT)),
    ],
)
def test_training_goes_on_where_bad_samples_cannot_be_written_down(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    load: Callable[[ShardDataset], Iterable[dict]],
):
    damage(url, [3, 33, 40])
    monkeypatch.setenv("HEADRACE_RUN_DIR", str(tmp_path / "nowhere"))
    loader = load(ShardDataset(url, max_bad_rate=0.5))
    assert sum(len(batch["__key__"]) for batch in loader) == COUNT
    (message,) = [each.message for each in caplog.records if "cannot be written" in each.message]
    assert f"{tmp_path}/nowhere/quarantine.jsonl (No such file or directory)" in message


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
def test_a_byte_that_was_damaged_on_the_way_is_fetched_once_more(
    s3_url: str, s3_server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cached: bool
):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 255, (2, 160, 160, 3), np.uint8)
    for number, image in enumerate(noise):  # so large that the flipped bit lies in the image
        (tmp_path / "images/x").mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(tmp_path / f"images/x/{number}.jpg"), image)
    pack(str(tmp_path / "images"), s3_url, PackOptions(shard_bytes=1))
    expected = ShardDataset(s3_url)[1]
    dataset = ShardDataset(s3_url, cache_dir=tmp_path / "cache" if cached else None)
    with slow_proxy(s3_server.endpoint, faults=Faults(flip=1.0, at_most=1)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        sample = dataset[1]
        counts = proxy.counts()
    assert counts["flip"] == 1
    assert counts["requests"] >= 2
    assert sample["__key__"] == expected["__key__"]
    np.testing.assert_array_equal(sample["jpg"], expected["jpg"])
    assert not (tmp_path / "quarantine.jsonl").exists()


def test_torchs_loader_gets_replacements_too(url: str, tmp_path: Path):
    (bad_key,) = damage(url, [5])
    loader = TorchDataLoader(ShardDataset(url), 8, num_workers=2)
    keys = [key for batch in loader for key in batch["__key__"]]
    assert bad_key not in keys
    assert [record["key"] for record in quarantined(tmp_path)] == [bad_key]


def test_workers_of_torchs_go_on_where_bad_samples_cannot_be_written_down(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (bad_key,) = damage(url, [5])
    monkeypatch.setenv("HEADRACE_RUN_DIR", str(tmp_path / "nowhere"))
    keys = [b["__key__"][0] for b in TorchDataLoader(ShardDataset(url), 1, num_workers=2)]
    assert len(keys) == COUNT
    assert bad_key not in keys


def test_bad_samples_that_cannot_be_written_down_stop_the_run_none_the_less(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    damage(url, [1, 2, 3])
    monkeypatch.setenv("HEADRACE_RUN_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(TooManyBadSamplesError, match="3 of 4 samples"):
        list(TorchDataLoader(ShardDataset(url), 8))


def test_without_verification_a_decoder_may_still_refuse(url: str, tmp_path: Path):
    location = ShardDataset(url).index.locate(7)
    image = next(member for member in location.members if member.extension == "jpg")
    with (Path(url) / location.path).open("r+b") as shard:
        shard.seek(image.offset)
        shard.write(bytes(image.size_bytes))
    keys = [b["__key__"][0] for b in DataLoader(ShardDataset(url, verify=False), 1, num_workers=0)]
    assert location.key not in keys
    assert quarantined(tmp_path)[0]["error"] == "BadSampleError"


@pytest.mark.parametrize("workers", [0, 2])
def test_too_many_bad_samples_stop_the_run_from_the_third_on(url: str, workers: int):
    damage(url, [1, 2])
    assert len(list(DataLoader(ShardDataset(url), 8, num_workers=workers))) == COUNT // 8
    damage(url, [40])
    with pytest.raises(TooManyBadSamplesError, match=r"3 of 48 .* quarantine\.jsonl"):
        list(DataLoader(ShardDataset(url), 8, num_workers=workers))
    allowed = ShardDataset(url, max_bad_rate=0.1)
    assert len(list(DataLoader(allowed, 8, num_workers=workers))) == COUNT // 8


def test_a_shard_of_nothing_but_damage_is_an_error(url: str):
    first = int(ShardDataset(url).shard_sizes[0])
    damage(url, list(range(first)))
    with pytest.raises(TooManyBadSamplesError, match="are all bad"):
        ShardDataset(url)[0]


RANK_SCRIPT = textwrap.dedent("""
    import sys, torch, torch.distributed as dist
    from pathlib import Path
    from torch import multiprocessing
    from headrace import DataLoader, ShardDataset
    from headrace.core.errors import TooManyBadSamplesError

    def train(rank, url):
        method = f"file://{Path.cwd()}/meeting"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=2)
        if rank == 0 and sys.argv[2] == "validates":
            DataLoader(ShardDataset(url), 4, num_workers=0, rank=0, world=1)
        elif rank == 0 and sys.argv[2] == "has another":
            DataLoader(range(8), 4, num_workers=0)
        loader = DataLoader(ShardDataset(url), 4, shuffle=False, num_workers=1)
        steps = 0
        try:
            for batch in loader:
                steps += 1
                dist.all_reduce(torch.ones(1))  # ranks in step, as gradients keep them
        except TooManyBadSamplesError as error:
            # Not to the shared output, where lines of two ranks may end up in one.
            Path(f"stop-{rank}").write_text(f"{steps} {error}")
        dist.barrier()
        dist.destroy_process_group()

    if __name__ == "__main__":
        multiprocessing.start_processes(train, (sys.argv[1],), nprocs=2, start_method="fork")
""")


@pytest.mark.parametrize("first", ["", "validates", "has another"])
def test_every_rank_stops_at_the_same_step_with_the_same_error(
    url: str, tmp_path: Path, first: str
):
    """Whatever other loaders rank 0 has made before."""
    keys = damage(url, [0, 13, 18])  # with two ranks of 4: batches 0, 1 and 2, on ranks 0, 1 and 0
    (tmp_path / "ranks.py").write_text(RANK_SCRIPT)
    run = subprocess.run(
        [sys.executable, str(tmp_path / "ranks.py"), url, first],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    stops = [(tmp_path / f"stop-{rank}").read_text() for rank in range(2)]
    assert stops[0] == stops[1]
    assert stops[0].startswith("3 3 of 24")
    ranks = {record["key"]: record["rank"] for record in quarantined(tmp_path)}
    assert [ranks[key] for key in keys] == [0, 1, 0]  # no rank alone has met three
