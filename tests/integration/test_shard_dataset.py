"""ShardDataset in both loaders, on local and S3 URLs, with a cache, in forked processes."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchDataLoader

from headrace import Checkpointer, DataLoader, ShardDataset
from headrace.core.errors import (
    BadSampleError,
    DatasetError,
    NotFoundError,
    StorageError,
    UsageError,
    WorkerError,
)
from headrace.data.shards.in_place_index import index_in_place
from headrace.data.shards.pack import pack
from headrace.data.shards.shard_packer import PackOptions
from headrace.data.transforms.decode import decode_image, decode_member
from headrace.transforms import Compose, OnMembers, RandomResizedCrop
from packed import pack_images, write_images
from shard_transforms import Tabled, fails_on_two

COUNT = 60


@pytest.fixture(scope="module")
def packed_once() -> dict[str, str]:
    """Where the dataset lies that tests read and do not change, by kind of store."""
    return {}


@pytest.fixture
def remote(packed_once: dict[str, str], tmp_path_factory, s3_url: str) -> str:
    """The dataset in a bucket; `s3_url` gives each test the server's address and keys."""
    if "s3" not in packed_once:
        packed_once["s3"] = pack_images(tmp_path_factory.mktemp("images"), s3_url, COUNT)
    return packed_once["s3"]


@pytest.fixture
def local(packed_once: dict[str, str], tmp_path_factory) -> str:
    if "local" not in packed_once:
        folder = tmp_path_factory.mktemp("local")
        packed_once["local"] = pack_images(folder / "images", str(folder / "packed"), COUNT)
    return packed_once["local"]


@pytest.fixture(params=["local", "remote"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(request.param)


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


_WORKERS_MODULES = """
import sys
import psutil
from headrace import DataLoader, ShardDataset

batches = iter(DataLoader(ShardDataset(sys.argv[1]), 8, num_workers=2))
next(batches)
children = psutil.Process().children(recursive=True)
workers = [each for each in children if "workers.forkserver" in " ".join(each.cmdline())]
assert len(workers) >= 2
print([each.path for worker in workers for each in worker.memory_maps() if "_hashlib" in each.path])
"""


def test_workers_that_check_the_index_do_without_openssl(local: str):
    ended = subprocess.run(
        [sys.executable, "-c", _WORKERS_MODULES, local], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == "[]", ended.stderr


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


def test_a_second_job_starts_from_the_cache(remote: str, tmp_path: Path):
    cache = tmp_path / "cache"
    first = ShardDataset(remote, cache_dir=cache)
    assert len(keys_of(DataLoader(first, 8, num_workers=1))) == COUNT
    # The worker writes its last blocks while the next job begins: this one reads or writes them.
    second = ShardDataset(remote, cache_dir=cache)
    assert len(keys_of(DataLoader(second, 8, num_workers=0))) == COUNT
    second._store.close()
    third = ShardDataset(remote, cache_dir=cache)
    assert len(keys_of(DataLoader(third, 8, num_workers=0))) == COUNT
    stats = third._store.stats()
    assert stats.hit_bytes > 0
    assert stats.miss_bytes == 0


def test_a_cache_may_lie_in_the_home_folder(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HEADRACE_CACHE_DIR", "~/shared")
    for cache_dir, folder in ((None, "shared"), ("~/own", "own")):
        dataset = ShardDataset(remote, cache_dir=cache_dir)
        assert dataset[1]["jpg"].shape == (48, 64, 3)
        dataset._store.close()
        assert list((tmp_path / "home" / folder / "indexes").iterdir())
    assert not (tmp_path / "~").exists()


class Length:
    """The length of an image's file."""

    wants_bytes = frozenset({"jpg"})

    def __call__(self, sample: dict) -> int:
        assert isinstance(sample["jpg"], bytes)
        return len(sample["jpg"])


def test_a_transform_is_applied_and_may_ask_for_bytes(url: str):
    assert ShardDataset(url, transform=Length())[3] > 300


def test_missing_datasets_are_named(tmp_path: Path, s3_url: str):
    for url in (str(tmp_path / "nothing"), s3_url):
        with pytest.raises((NotFoundError, DatasetError), match=url.rpartition("/")[2]):
            ShardDataset(url)


def test_a_store_that_fails_is_an_error_not_a_replacement(tmp_path: Path, local: str):
    dataset = ShardDataset(str(shutil.copytree(local, tmp_path / "packed")))
    (tmp_path / "packed" / "000001.tar").unlink()
    lost = int(dataset.shard_sizes[0])
    assert dataset[lost - 1]
    with pytest.raises(StorageError, match=r"000001\.tar"):
        dataset[lost]
    with pytest.raises(StorageError, match=r"000001\.tar"):
        list(DataLoader(dataset, 8, num_workers=2))


def broken_in_the_middle(file: Path) -> None:
    """Take bytes out of a JPEG's entropy code: the decoder notices that at the file's end."""
    data = bytearray(file.read_bytes())
    begin = data.index(b"\xff\xda") + 14
    place = begin + (len(data) - begin) // 4
    del data[place : place + (len(data) - begin) // 4]
    file.write_bytes(data)
    with pytest.raises(BadSampleError, match="premature end"):
        decode_image(bytes(data))


def test_damage_from_before_is_found_where_packing_did_not_decode(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 255, (200, 300, 3), np.uint8)
    for name in ("a", "b", "c"):
        file = tmp_path / "photos" / "x" / f"{name}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(file), cv2.GaussianBlur(noise, (9, 9), 0))
    broken_in_the_middle(tmp_path / "photos/x/b.jpg")
    index_in_place(str(tmp_path / "photos"))
    crop = OnMembers("jpg", RandomResizedCrop(32, scale=(0.08, 0.1)))
    dataset = ShardDataset(str(tmp_path / "photos"), transform=crop, max_bad_rate=1.0)
    with dataset.collecting_bad() as bad:
        for _ in range(20):
            dataset[1]
    assert [record["key"] for record in bad] == ["x/b"] * 20


def test_packing_that_decodes_lets_crops_skip_rows_and_nothing_else_changes(tmp_path: Path):
    write_images(tmp_path / "images", 12)
    for name, check in (("decoded", decode_member), ("plain", None)):
        pack(str(tmp_path / "images"), str(tmp_path / name), PackOptions(), check=check)
    crop = OnMembers("jpg", RandomResizedCrop(16))
    decoded, plain = (
        ShardDataset(str(tmp_path / name), transform=crop) for name in ("decoded", "plain")
    )
    assert decoded._undecoded == {"jpg"}
    assert plain._undecoded == frozenset()
    assert ShardDataset(decoded.url, transform=crop, verify=False)._undecoded == frozenset()
    for sample in range(12):
        random.seed(sample)
        one = decoded[sample]["jpg"]
        random.seed(sample)
        np.testing.assert_array_equal(one, plain[sample]["jpg"])


@pytest.fixture
def decoded(tmp_path: Path) -> str:
    """A dataset whose files packing has decoded."""
    write_images(tmp_path / "images", 4)
    pack(str(tmp_path / "images"), str(tmp_path / "packed"), PackOptions(), check=decode_member)
    return str(tmp_path / "packed")


@pytest.mark.parametrize(
    "copied",
    [
        lambda dataset: dataset,
        copy.copy,
        copy.deepcopy,
        lambda dataset: pickle.loads(pickle.dumps(dataset)),
    ],
)
def test_another_transform_gets_what_it_takes(decoded: str, copied):
    whole = ShardDataset(decoded)[0]["jpg"]
    first = ShardDataset(decoded, transform=OnMembers("jpg", RandomResizedCrop(16)))
    dataset = copied(first)
    for transform in (None, OnMembers("jpg", np.copy), None):
        dataset.transform = transform
        np.testing.assert_array_equal(dataset[0]["jpg"], whole)
    dataset.transform = Length()
    assert dataset[0] > 300
    dataset.transform = OnMembers("jpg", RandomResizedCrop(16))
    assert dataset._undecoded == {"jpg"}
    dataset.verify = False
    assert dataset._undecoded == frozenset()
    assert dataset[0]["jpg"].shape == first[0]["jpg"].shape == (16, 16, 3)


def flipped(image: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(image[:, ::-1])


def test_a_chain_that_is_changed_gets_what_its_first_transform_takes(decoded: str):
    chain = Compose([RandomResizedCrop(16)])
    members = OnMembers("jpg", chain)
    dataset = ShardDataset(decoded, transform=Compose([members]))
    assert dataset[0]["jpg"].shape == (16, 16, 3)
    chain.transforms.insert(0, flipped)
    assert dataset[0]["jpg"].shape == (16, 16, 3)
    members.transform = flipped
    np.testing.assert_array_equal(dataset[0]["jpg"], ShardDataset(decoded)[0]["jpg"][:, ::-1])


def test_checksums_are_compared_while_verify_is_on(decoded: str):
    dataset = ShardDataset(decoded, transform=Length(), max_bad_rate=1.0)
    location = dataset.index.locate(0)
    shard = Path(decoded, location.path)
    data = bytearray(shard.read_bytes())
    (member,) = [each for each in location.members if each.extension == "jpg"]
    data[member.offset + 30] ^= 0xFF
    shard.write_bytes(data)
    counts = []
    with dataset.collecting_bad() as bad:
        for verify in (True, False, True):
            dataset.verify = verify
            dataset[0]
            counts.append(len(bad))
    assert counts == [1, 1, 2]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_names_the_sample_s_key_and_shard(url: str, workers: int):
    dataset = ShardDataset(url, transform=OnMembers("cls", fails_on_two))
    labels = [ShardDataset(url)[number]["cls"] for number in range(COUNT)]
    first = dataset.index.locate(labels.index(2))
    with pytest.raises(WorkerError) as caught:
        list(DataLoader(dataset, 8, num_workers=workers))
    message = str(caught.value)
    name = f"sample {first.key} (number {first.sample})"
    assert f"{name} of {first.path} in {dataset.index.url}" in message
    assert "ZeroDivisionError: two" in message
    assert "in fails_on_two" in message


def test_a_subclass_keeps_its_own_attributes_in_workers(url: str):
    batches = list(DataLoader(Tabled(url), 8, num_workers=1))
    assert all((batch["cls"] == 7).all() for batch in batches)


def test_numbers_from_the_end_work_and_others_are_reported(url: str):
    dataset = ShardDataset(url)
    assert dataset.__getitems__([-1])[0]["__key__"] == dataset[COUNT - 1]["__key__"]
    with pytest.raises(IndexError):
        dataset.__getitems__([COUNT])
    assert dataset[np.int64(2)]["__key__"] == dataset[2]["__key__"]
    for wrong in (1.0, 1.9, "1", None, [1]):
        with pytest.raises(TypeError):
            dataset[wrong]
        with pytest.raises(TypeError):
            dataset.__getitems__([wrong])


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": None}, {"url": b"photos"}, {"max_bad_rate": "1%"}, {"max_bad_rate": None},
        {"cache_bytes": None}, {"cache_bytes": "much"}, {"storage": {"in_flight": 3}},
    ],
)  # fmt: skip
def test_arguments_of_another_kind_are_refused(local: str, wrong: dict[str, object]):
    with pytest.raises(UsageError, match=re.escape(repr(*wrong.values()))):
        ShardDataset(**{"url": local} | wrong)


def test_a_cache_in_a_bucket_is_refused_though_a_local_dataset_needs_none(local: str):
    with pytest.raises(UsageError, match="cache_dir=s3://bucket/cache: a cache lies in a folder"):
        ShardDataset(local, cache_dir="s3://bucket/cache")


def test_a_bad_sample_that_is_made_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is, in a worker where the transform is the first to import NumPy's generators."""
    url = pack_images(tmp_path / "images", str(tmp_path / "packed"), 16)
    location = ShardDataset(url).index.locate(0)
    shard = tmp_path / "packed" / location.path
    data = bytearray(shard.read_bytes())
    data[location.members[-1].offset + 30] ^= 0xFF
    shard.write_bytes(data)
    (tmp_path / "drawing.py").write_text(
        "import numpy as np\n\n\ndef draw(label):\n    return float(np.random.random())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    draw = importlib.import_module("drawing").draw
    loaders = [
        DataLoader(
            ShardDataset(url, transform=OnMembers("cls", draw), max_bad_rate=1.0),
            8,
            num_workers=workers,
        )
        for workers in (1, 0)
    ]
    from_worker, inline = (torch.cat([batch["cls"] for batch in loader]) for loader in loaders)
    assert torch.equal(from_worker, inline)
    records = (tmp_path / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(record)["sample"] for record in records] == [0, 0]  # once a loader
