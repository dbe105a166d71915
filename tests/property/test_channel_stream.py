"""A channel's stream: every byte of every object, in the order of the keys, bounded ahead."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import StorageError
from headrace.data.channels.listing import list_channel
from headrace.data.channels.pipe import epoch_pipes
from headrace.data.channels.pipe.epoch_pipes import ChannelStream
from headrace.data.channels.sidecar_client import ChannelRequest
from headrace.data.storage import StorageConfig
from headrace.data.storage.store import CacheableStore, Part


def opened(folder: str, number: int = 0, of: int = 1) -> ChannelStream:
    wanted = ChannelRequest(name="train", url=folder, folder="", number=number, of=of)
    return ChannelStream(list_channel(wanted, StorageConfig()), StorageConfig())


class Counting:
    """A store that notes the lengths of what it was asked for."""

    def __init__(self, store: CacheableStore) -> None:
        self.url, self.begun, self._store = store.url, list[int](), store

    def submit_part(self, path: str, start: int, length: int) -> Future[Part]:
        self.begun.append(length)
        return self._store.submit_part(path, start, length)


def begun(channel: ChannelStream) -> list[int]:
    """The lengths of all pieces that were begun to be fetched."""
    if not isinstance(channel._store, Counting):
        channel._store = Counting(channel._store)
    return channel._store.begun


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    limits=st.tuples(st.integers(1, 16), st.integers(1, 32), st.integers(1, 5)),
    of=st.integers(1, 3),
)
def test_all_bytes_come_once_and_in_order(
    sizes: list[int], limits: tuple[int, int, int], of: int
) -> None:
    of = min(of, len(sizes))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for name, limit in zip(
            ("PIECE_BYTES", "_AHEAD_BYTES", "_AHEAD_PIECES"), limits, strict=True
        ):
            patch.setattr(epoch_pipes, name, limit)
        chosen = random.Random(len(sizes))
        objects = [chosen.randbytes(size) for size in sizes]
        for number, data in enumerate(objects):
            path = Path(folder, "deep" if number % 2 else "", f"{number:03}.bin")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        order = [*objects[::2], *objects[1::2]]  # "000.bin" and the like before "deep/"
        for share in range(of):
            channel = opened(folder, share, of)
            begun(channel)
            pieces = []
            for piece in channel.pieces():
                pieces.append(piece)
                ahead = begun(channel)[len(pieces) :]
                assert len(ahead) < limits[2]
                assert sum(ahead) < max(limits[1], limits[0]) + limits[0]
            assert begun(channel) == [piece.length for piece in pieces]
            assert all(piece.length <= limits[0] for piece in pieces)
            assert b"".join(piece.data() for piece in pieces) == b"".join(order[share::of])


def test_a_file_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    channel = opened(str(tmp_path))
    (tmp_path / "a").write_bytes(b"another")
    with pytest.raises(StorageError, match="replaced after the channel was listed"):
        [piece.data() for piece in channel.pieces()]
