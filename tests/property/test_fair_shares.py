"""Cores of an auxiliary host among ranks: max-min fair, and none left while one is wanted."""

from __future__ import annotations

from threading import Lock

from hypothesis import given
from hypothesis import strategies as st

from headrace.offload.capacity import SharedCores, fair_shares

WANTED = st.dictionaries(st.integers(0, 9), st.integers(0, 40), min_size=1, max_size=8)


@given(cores=st.integers(1, 64), wanted=WANTED)
def test_who_gets_less_than_wanted_has_no_less_than_others(cores: int, wanted: dict[int, int]):
    shares = fair_shares(cores, wanted)
    wanting = {who: share for who, share in shares.items() if wanted[who]}
    assert min(shares.values()) >= 1
    for who in shares.keys() - wanting.keys():
        assert shares[who] <= max(1, cores - sum(wanted.values()))
    assert sum(wanting.values()) == max(cores, len(wanting)) or not wanting
    for who, share in wanting.items():
        assert share >= wanted[who] or share >= max(wanting.values()) - 1


@given(cores=st.integers(1, 16), asked=st.lists(st.integers(0, 2), max_size=80))
def test_no_more_is_at_work_than_cores_and_a_few(cores: int, asked: list[int]):
    host = SharedCores(cores, 0, Lock())
    for who in range(3):
        host.join(who, lambda: None)
    taken = [0, 0, 0]
    for who in asked:
        taken[who] += host.take(who, waiting=1)
        spare = max(1, cores // 4) if taken.count(0) == 2 else 0
        assert sum(taken) <= cores + spare


def test_who_comes_later_gets_the_next_free_core():
    host = SharedCores(4, 0, Lock())
    woken: list[int] = []
    for who in (1, 2):
        host.join(who, lambda who=who: woken.append(who))  # type: ignore[misc]
    assert host.share_of(1)[1] == 3, "both may begin"
    host.want(1, 20)
    assert host.share_of(1)[1] == 5, "who wants none keeps none from others"
    while host.take(1, waiting=20):
        pass
    host.want(2, 20)
    assert (host.share_of(1)[1], host.share_of(2)[1]) == (3, 3)
    assert not host.take(2, waiting=20)
    woken.clear()
    host.give(1)
    assert woken == [2]
    host.give(1)
    assert not host.take(1, waiting=20), "it has more than its share already"
    assert host.take(2, waiting=20)


@given(
    memory=st.integers(0, 1000),
    wanted=st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
def test_those_who_want_batches_share_the_memory_and_others_keep_little(
    memory: int, wanted: list[int]
):
    host = SharedCores(4, memory, Lock())
    for who, batches in enumerate(wanted):
        host.join(who, lambda: None)
        host.want(who, batches)
    takes, keeps = zip(*map(host.memory_of, range(len(wanted))), strict=True)
    wanting = [who for who, batches in enumerate(wanted) if batches]
    assert all(takes[who] == keeps[who] == memory // len(wanting) for who in wanting)
    assert sum(keeps) <= 2 * memory
    assert all(takes[who] >= memory // (len(wanting) + 1) for who in range(len(wanted)))
