"""Overrides of `run --apply` read back from their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.overrides import Override, parse_overrides

PLACES = st.sampled_from(["", "train.py:40", "data/loaders.py:7"])
OVERRIDES = st.one_of(
    st.builds(Override, st.just("num_workers"), st.integers(0, 64), PLACES),
    st.builds(Override, st.just("prefetch_factor"), st.integers(1, 64), PLACES),
    st.builds(Override, st.sampled_from(["worker_threads", "rank_threads"]), st.integers(1, 64)),
    st.builds(
        Override, st.sampled_from(["pin_memory", "persistent_workers"]), st.booleans(), PLACES
    ),
)


@given(st.lists(OVERRIDES, max_size=5))
def test_what_is_written_reads_back(overrides: list[Override]):
    assert parse_overrides(",".join(map(str, overrides))) == tuple(overrides)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("num_worker=2", "Did you mean num_workers?"),
        ("num_workers", "write NAME=VALUE"),
        ("num_workers=-1", "0 or more"),
        ("prefetch_factor=0", "1 or more"),
        ("worker_threads=0", "1 or more"),
        ("rank_threads@train.py:40=1", "of all loaders"),
        ("pin_memory=maybe", "on or off"),
        ("batch_size=8", "write NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_reported(text: str, says: str):
    with pytest.raises(UsageError, match=says.replace("?", r"\?")):
        parse_overrides(text)
