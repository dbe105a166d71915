"""How many samples a batch has: by what named them, by its structure, or unknown."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from headrace.observe.probe.batch_samples import indices_in, samples_in
from headrace.observe.probe.iterator_state import IteratorState, delivered
from headrace.observe.probe.sampler_reads import SamplerReads

B, UNKNOWN = 8, -1
IMAGES = torch.zeros(B, 3, 9, 9)
WAVES = [torch.zeros(16_000 + i) for i in range(B)]
PICTURES = [torch.zeros(3, 9, 9 + i) for i in range(B)]
TARGETS = [{"boxes": torch.zeros(i % 4, 4), "image_id": i} for i in range(B)]
TEXTS = ["a dog"] * B
Pair = namedtuple("Pair", ["images", "labels"])  # noqa: PYI024


@dataclass
class Collated:
    tokens: torch.Tensor
    lengths: torch.Tensor
    name: str = "train"


class Encoding(UserDict[str, Any]):
    """Like a BatchEncoding of transformers."""


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (IMAGES, B),
        (np.zeros((B, 4)), B),
        ([IMAGES, torch.zeros(B)], B),
        ((IMAGES, torch.zeros(B)), B),
        ((torch.zeros(B, 16), torch.zeros(B, 16)), B),
        ({"x": IMAGES, "y": torch.zeros(B)}, B),
        (Encoding({"input_ids": torch.zeros(B, 16), "attention_mask": torch.zeros(B, 16)}), B),
        (Encoding({"input_ids": [[1, 2]] * B, "labels": torch.zeros(B)}), B),
        (Pair(IMAGES, torch.zeros(B)), B),
        (Collated(torch.zeros(B, 4), torch.zeros(B)), B),
        ({"inputs": {"image": IMAGES, "text": TEXTS}, "targets": (torch.zeros(B), TEXTS)}, B),
        (WAVES, B),
        ((WAVES, TEXTS), B),
        ({"images": PICTURES, "y": torch.zeros(B)}, B),
        (tuple(zip(*zip(PICTURES, TARGETS, strict=True), strict=True)), B),
        ([{"image": image, **target} for image, target in zip(PICTURES, TARGETS, strict=True)], B),
        (list(zip(PICTURES, range(B), strict=True)), B),
        (pack_sequence([torch.zeros(5, 2) for _ in range(B)]), B),
        (pack_sequence([torch.zeros(9 - i, 2) for i in range(B)]), B),
        ((pack_sequence([torch.zeros(5, 2) for _ in range(B)]), torch.zeros(B)), B),
        (torch.nested.nested_tensor(WAVES, layout=torch.jagged), B),
        ({"epoch": torch.tensor(3), "x": torch.zeros(B, 2)}, B),
        (SimpleNamespace(is_nested=True, size=lambda _: B), B),  # a nested one has no shape
        (TEXTS, B),
        ([1.0] * B, B),
        ([torch.tensor(1.0)] * B, B),
        (SimpleNamespace(x=torch.zeros(70, 5), num_graphs=B), B),  # torch_geometric's batches
        (SimpleNamespace(batch_size=torch.Size([B, 2])), B),  # tensordict's
        # It may be either number, or none of them.
        ({"points": torch.zeros(1000, 3), "offsets": torch.zeros(B)}, UNKNOWN),
        ([torch.zeros(1000, 3), torch.zeros(B)], UNKNOWN),
        ((torch.zeros(256, B), torch.zeros(B)), UNKNOWN),  # time first
        ((torch.zeros(1000), torch.zeros(B + 1)), UNKNOWN),  # packed tokens, where each begins
        ([torch.zeros(3, 9, 9) for _ in range(B)], UNKNOWN),
        ((torch.zeros(3, 9, 9), 1), UNKNOWN),  # one sample
        ({}, UNKNOWN),
        ([], UNKNOWN),
        (None, UNKNOWN),
        (object(), UNKNOWN),
        (iter([IMAGES]), UNKNOWN),
    ],
)  # fmt: skip
def test_a_batchs_structure_gives_its_samples_or_nothing(batch: object, samples: int):
    assert samples_in(batch) == samples


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(256, B), B),  # time first
        (torch.zeros(B, 256), B),
        (PICTURES, B),
        (object(), B),
        ({"points": torch.zeros(1000, 3), "offsets": torch.zeros(B)}, B),
        ((torch.zeros(5, 3), torch.zeros(5)), 5),  # the last ones of a stream
        ([torch.zeros(3, 9, 9) for _ in range(B)], B),
    ],
)
def test_what_was_asked_for_counts_unless_a_batch_is_shorter(batch: object, samples: int):
    assert samples_in(batch, asked_for=B) == samples


def test_an_index_names_samples_or_may_be_a_whole_batch():
    assert indices_in([4, 1, 2]) == 3
    assert indices_in(torch.tensor([4, 1])) == 2
    assert indices_in(np.array([4, 1])) == 2
    assert indices_in(range(10, 20, 3)) == 4
    assert indices_in(slice(10, 20)) == 10
    for whole in (7, torch.tensor(7), np.int64(7), "shard-7", iter([1, 2]), slice(None), None):
        assert indices_in(whole) == UNKNOWN


class Broken:
    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("not yet")

    def __len__(self) -> int:
        raise RuntimeError("not yet")


class Shapeless:
    shape = None


def test_a_batch_whose_methods_fail_has_an_unknown_number():
    assert samples_in(Broken()) == UNKNOWN
    assert samples_in({"x": Broken()}) == UNKNOWN


@pytest.mark.parametrize(
    "index",
    [
        slice("2020-01", "2020-02"), slice(dt.date(2020, 1, 1), dt.date(2020, 2, 1)),
        slice(np.datetime64("2020-01"), np.datetime64("2020-02")), slice(0.0, 1.5),
        slice(0, "end"), slice(-4, 2), slice(0, -1), Broken(),
        {"clip": 3, "begin": 0.5}, {},
    ],
)  # fmt: skip
def test_an_index_of_any_kind_that_names_no_samples_breaks_no_script(index: object):
    assert indices_in(index) == UNKNOWN
    reads = SamplerReads()
    reads.add(0, index)
    assert reads.delivered(0) == UNKNOWN


def delivered_of_stream(batch: object) -> int:
    """Return the samples of a batch for which an iterable dataset was asked for B."""
    state = IteratorState()
    state.sampler = SamplerReads(stream_batch=B)
    return delivered(object(), state, batch, ended=False)[0]


@pytest.mark.parametrize("packed", [torch.zeros(1, 512), {"input_ids": torch.zeros(1, 512)}])
def test_one_row_is_a_whole_batch_until_a_batch_has_had_a_row_a_sample(packed: Any):
    state = IteratorState()
    state.sampler = SamplerReads(stream_batch=B)
    assert [delivered(object(), state, packed, ended=False)[0] for _ in range(2)] == [B, B]
    assert delivered(object(), state, torch.zeros(B, 512), ended=False)[0] == B
    assert delivered(object(), state, packed, ended=False)[0] == 1  # the last of a stream


@pytest.mark.parametrize("only", [Shapeless(), Broken()])
def test_a_batch_of_one_sample_without_a_shape_is_counted(only: object):
    assert delivered_of_stream([only]) == samples_in([only], B)


PARTS = [
    torch.zeros(B, 2), torch.zeros(B), torch.zeros(B - 1), torch.zeros(3, 4), torch.tensor(1.0),
    torch.nested.nested_tensor(WAVES, layout=torch.jagged), np.zeros((B, 2)), TEXTS, TEXTS[1:], 7,
    "a dog", WAVES, [torch.zeros(B), torch.zeros(B, 3)], {"x": torch.zeros(B - 1)}, [], None,
]  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "make", [list, tuple, lambda parts: dict(enumerate(parts)), lambda p: p[0]]
)
def test_a_first_tensor_of_the_size_asked_for_says_what_all_parts_say(
    make: Callable[[list[Any]], Any], count: int
):
    for parts in itertools.product(PARTS, repeat=count):
        batch = make(list(parts))
        assert delivered_of_stream(batch) == samples_in(batch, B), parts


def test_tensors_of_a_size_in_a_short_list_are_still_samples():
    batch = [torch.zeros(B), *(torch.zeros(i + 1) for i in range(4))]
    assert delivered_of_stream(batch) == samples_in(batch, B) == 5


def test_of_three_parts_a_first_tensor_of_the_size_asked_for_says_the_same():
    for kind, *rest in itertools.product([list, tuple], PARTS[::2], PARTS[1::2]):
        batch = kind([PARTS[0], *rest])
        assert delivered_of_stream(batch) == samples_in(batch, B), batch
