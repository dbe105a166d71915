"""What workers read over the network is recorded, whoever receives it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest

from headrace.data.storage import open_store
from packed import pack_images
from recorded import Run, check
from services.object_servers import WebHandler, object_server

SIZE, SAMPLES = 100_000, 480  # so many that what a last look may miss is little


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("received") / "run", "received")
    check(run)
    return run


def test_bytes_over_sockets_are_counted_in_workers_and_without(received: Run):
    rows = sorted(received.rows("batches"), key=itemgetter("loader"))
    loaders = {number: list(own) for number, own in groupby(rows, key=itemgetter("loader"))}
    assert len(loaders) == 2
    for own in loaders.values():
        # To the byte: parts, files and what was decrypted; nothing twice.
        assert sum(row["network_bytes"] for row in own) == SAMPLES * SIZE
    made_by_workers, made_by_the_rank = loaders.values()
    assert {row["worker"] for row in made_by_workers} == {0, 1}
    assert {row["worker"] for row in made_by_the_rank} == {-1}
    # With what came for TLS besides, and what else was read; but no sample twice.
    read = sum(row["read_bytes"] for row in made_by_workers)
    assert SAMPLES * SIZE * 0.9 < read < SAMPLES * SIZE * 1.5
    assert sum(row["reads"] for row in made_by_workers) > SAMPLES


def test_time_in_reads_is_part_of_making_a_batch(received: Run):
    for row in received.rows("batches"):
        assert 0 < row["read_ns"] <= row["wall_ns"]


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Shards on a web server: their address, and the bytes of their images."""
    local = tmp_path / "packed"
    pack_images(tmp_path / "images", str(local), 32)
    with object_server(WebHandler) as server:
        url = f"{server.endpoint}/dataset"
        for file in local.iterdir():
            open_store(url).put(file.name, file.read_bytes())
        yield url, sum(file.stat().st_size for file in (tmp_path / "images").rglob("*.jpg"))


def test_what_headraces_storage_receives_is_counted(dataset: tuple[str, int], tmp_path: Path):
    url, image_bytes = dataset
    run = Run(tmp_path / "run", "remote_shards", url)
    check(run)
    rows = run.rows("batches")
    assert len(rows) == 8
    assert image_bytes <= sum(row["network_bytes"] for row in rows) < 3 * image_bytes
    assert all(row["network_bytes"] <= row["read_bytes"] for row in rows)
    assert all(0 < row["read_ns"] <= row["wall_ns"] for row in rows)
