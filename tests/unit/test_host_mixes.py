"""The hosts that a run could have: none without the accelerator that it trains on."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.decide.cost.host_mixes import (
    HostMix,
    Market,
    PricedHosts,
    cloud_of,
    host_mixes,
    unknown_accelerator,
)
from headrace.decide.cost.price_catalogue import PriceCatalogue

PLAIN = "InstanceType,Price"
CORES = "InstanceType,Price,vCPUs"
WHOLE = "InstanceType,Price,vCPUs,AcceleratorName,AcceleratorCount"
IN_PLACE = {"bigger host", "more accelerators"}


def catalogue_of(folder: Path, head: str, *lines: str) -> PriceCatalogue:
    file = folder / "own.csv"
    file.write_text("\n".join([head, *lines]) + "\n")
    return PriceCatalogue([file])


def hosts_of(catalogue: PriceCatalogue, kind: str, *, on_accelerator: bool) -> PricedHosts:
    found = PricedHosts.of(kind, catalogue.hardware(kind), 1.0)
    return found.that_train(on_accelerator=on_accelerator)


def mixes_of(catalogue: PriceCatalogue, training: PricedHosts) -> list[HostMix]:
    market = Market(catalogue=catalogue, cloud=cloud_of(training.instance_type))
    return list(host_mixes(HostMix(kind="as it is", training=training), market))


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (PLAIN, "n1-standard-8,0.73"),  # and what is attached
        (WHOLE, "n1-standard-8,0.38,8,,"),  # as in skypilot-catalog, without it
        (CORES, "g4ad.xlarge,0.38,4"),
        (CORES, "c5.xlarge,0.17,4"),
        (CORES, "mine,2,8"),
        (WHOLE, "mine,2,8,,"),
        (WHOLE, "mine,2,8,,1"),
        (WHOLE, "mine,2,8,T4,"),
    ],
)
def test_a_run_on_an_unknown_accelerator_is_offered_no_other_type(
    tmp_path: Path, head: str, line: str
):
    catalogue = catalogue_of(tmp_path, head, line)
    training = hosts_of(catalogue, line.partition(",")[0], on_accelerator=True)
    assert training.cores
    mixes = mixes_of(catalogue, training)
    assert {mix.training.instance_type for mix in mixes} == {training.instance_type}
    assert {mix.kind for mix in mixes} >= {"as it is", "more hosts"}
    assert f"{training.instance_type} has an accelerator, and" in unknown_accelerator(training)


@pytest.mark.parametrize(
    ("head", "own", "bigger"),
    [
        (PLAIN, "n1-standard-8,0.38", "n1-standard-96,4.5"),
        (CORES, "mine,2,8", "bigger,3,96"),
        (WHOLE, "mine,2,8,,", "bigger,3,96,,"),
    ],
)
def test_a_run_without_an_accelerator_is_offered_more_cores(
    tmp_path: Path, head: str, own: str, bigger: str
):
    catalogue = catalogue_of(tmp_path, head, own, bigger)
    training = hosts_of(catalogue, own.partition(",")[0], on_accelerator=False)
    mixes = [mix.training for mix in mixes_of(catalogue, training) if mix.kind in IN_PLACE]
    assert bigger.partition(",")[0] in {each.instance_type for each in mixes}
    assert {each.accelerator for each in mixes} == {""}
    assert all((each.cores or 0) > 8 for each in mixes)
    assert unknown_accelerator(training) == ""


@pytest.mark.parametrize("on_accelerator", [True, False])
def test_a_run_on_a_known_accelerator_is_offered_the_same(tmp_path: Path, on_accelerator: bool):
    catalogue = catalogue_of(tmp_path, CORES, "g5.unknown,0.1,192", "g4ad.16xlarge,0.1,64")
    training = hosts_of(catalogue, "g5.xlarge", on_accelerator=on_accelerator)
    mixes = mixes_of(catalogue, training)
    assert {mix.kind for mix in mixes} >= IN_PLACE
    assert {mix.training.accelerator for mix in mixes} == {"A10G"}
