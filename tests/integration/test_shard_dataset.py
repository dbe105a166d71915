"""ShardDataset in both loaders, on local and S3 URLs, with a cache, in forked processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace import Checkpointer, DataLoader, ShardDataset
from headrace.core.errors import DatasetError, NotFoundError, StorageError
from packed import pack_images

COUNT = 60


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return pack_images(tmp_path / "images", str(tmp_path / "packed"), COUNT)
    return pack_images(tmp_path / "images", request.getfixturevalue("s3_url"), COUNT)


def keys_of(batches) -> list[str]:
    return [key for batch in batches for key in batch["__key__"]]


def test_samples_are_decoded_dicts(url: str):
    dataset = ShardDataset(url)
    assert len(dataset) == COUNT
    assert int(np.sum(dataset.shard_sizes)) == COUNT
    assert len(dataset.shard_sizes) > 2
    for number in (0, 7, -1):
        sample = dataset[number]
        name = sample["__key__"].rpartition("/")[2]
        assert sample["jpg"].shape == (48, 64, 3)
        assert abs(int(sample["jpg"][0, 0, 0]) - int(name) % 200) <= 1
        assert sample["cls"] == int(name) % 4
    with pytest.raises(IndexError):
        dataset[COUNT]


def test_both_loaders_deliver_every_sample_once(url: str):
    dataset = ShardDataset(url)
    ours = DataLoader(dataset, 8, shuffle=True, num_workers=2)
    torchs = TorchDataLoader(dataset, 8, num_workers=2)
    for _ in range(2):
        assert len(set(keys_of(ours))) == COUNT
    assert len(set(keys_of(torchs))) == COUNT


def test_batches_are_the_same_inline_and_from_workers(url: str):
    inline, workers = (
        list(DataLoader(ShardDataset(url), 8, shuffle=True, num_workers=n)) for n in (0, 2)
    )
    for one, other in zip(inline, workers, strict=True):
        assert one["__key__"] == other["__key__"]
        assert torch.equal(one["jpg"], other["jpg"])


def test_the_parent_may_read_then_fork_then_save_then_fork_again(url: str, tmp_path: Path):
    dataset = ShardDataset(url)
    assert dataset[0]["jpg"].shape == (48, 64, 3)
    forking = TorchDataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork")
    assert len(keys_of(forking)) == COUNT
    model = torch.nn.Linear(2, 2)
    where = f"{url}-checkpoints" if url.startswith("s3") else str(tmp_path / "checkpoints")
    Checkpointer(where).save(1, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(keys_of(forking)) == COUNT
    assert dataset[1]["jpg"].shape == (48, 64, 3)


def test_a_second_job_starts_from_the_cache(s3_url: str, tmp_path: Path, s3_server):
    url = pack_images(tmp_path / "images", s3_url, COUNT)
    cache = tmp_path / "cache"
    first = ShardDataset(url, cache_dir=cache)
    assert len(keys_of(DataLoader(first, 8, num_workers=1))) == COUNT
    second = ShardDataset(url, cache_dir=cache)
    assert len(keys_of(DataLoader(second, 8, num_workers=0))) == COUNT
    stats = second._store.stats()
    assert stats.hit_bytes > 0
    assert stats.miss_bytes == 0


def test_a_transform_is_applied_and_may_ask_for_bytes(url: str):
    class Length:
        wants_bytes = frozenset({"jpg"})

        def __call__(self, sample: dict) -> int:
            assert isinstance(sample["jpg"], bytes)
            return len(sample["jpg"])

    assert ShardDataset(url, transform=Length())[3] > 300


def test_missing_datasets_are_named(tmp_path: Path, s3_url: str):
    for url in (str(tmp_path / "nothing"), s3_url):
        with pytest.raises((NotFoundError, DatasetError), match=url.rpartition("/")[2]):
            ShardDataset(url)


def test_a_store_that_fails_is_an_error_not_a_replacement(tmp_path: Path):
    url = pack_images(tmp_path / "images", str(tmp_path / "packed"), COUNT)
    dataset = ShardDataset(url)
    (tmp_path / "packed" / "000001.tar").unlink()
    lost = int(dataset.shard_sizes[0])
    assert dataset[lost - 1]
    with pytest.raises(StorageError, match=r"000001\.tar"):
        dataset[lost]
    with pytest.raises(StorageError, match=r"000001\.tar"):
        list(DataLoader(dataset, 8, num_workers=2))
