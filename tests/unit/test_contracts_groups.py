"""`--group`: what it says, and what it cannot say."""

from __future__ import annotations

import pytest

from headrace.contracts.groups import Group, parse_groups
from headrace.core.errors import UsageError


def test_groups_in_their_order_with_what_is_emulated():
    assert parse_groups(["gpu=1", "cpu=2:cpus=8,gpus=0"]) == (
        Group(name="gpu", hosts=1),
        Group(name="cpu", hosts=2, cpus=8, gpus=0),
    )
    assert parse_groups(["a.b-c_1=3"])[0].host_names() == ["a.b-c_1-0", "a.b-c_1-1", "a.b-c_1-2"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu", "how many hosts"),
        ("gpu=", "nothing is no whole number"),
        ("gpu=0", "0 is no whole number above 0"),
        ("gpu=-1", "-1 is no whole number"),
        ("=1", "a name has letters"),
        ("-gpu=1", "a name has letters"),
        ("g pu=1", "a name has letters"),
        (f"{'g' * 64}=1", "63 at most"),
        ("gpu=1:cores=2", "cores is none of cpus, gpus"),
        ("gpu=1:cpus=0", "0 is no whole number above 0"),
        ("gpu=1:cpus", "nothing is no whole number"),
    ],
)
def test_what_is_no_group_is_told_with_how_one_is_written(text: str, said: str):
    with pytest.raises(UsageError, match=said) as told:
        parse_groups([text])
    assert "NAME=HOSTS" in str(told.value)


def test_a_group_twice():
    with pytest.raises(UsageError, match="--group gpu is given twice"):
        parse_groups(["gpu=1", "gpu=2"])
