"""The hosts that a run could have: with the accelerator that it trains on, of its own seller."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.decide.cost.host_mixes import (
    HostMix,
    Market,
    PricedHosts,
    host_mixes,
    seller_of,
    unknown_accelerator,
)
from headrace.decide.cost.price_catalogue import PriceCatalogue

PLAIN = "InstanceType,Price"
CORES = "InstanceType,Price,vCPUs"
WHOLE = "InstanceType,Price,vCPUs,AcceleratorName,AcceleratorCount"
IN_PLACE = {"bigger host", "more accelerators"}


def written(folder: Path, name: str, head: str, *lines: str) -> Path:
    file = folder / f"{name}.csv"
    file.write_text("\n".join([head, *lines]) + "\n")
    return file


def catalogue_of(folder: Path, head: str, *lines: str) -> PriceCatalogue:
    return PriceCatalogue([written(folder, "own", head, *lines)])


def hosts_of(catalogue: PriceCatalogue, kind: str, *, on_accelerator: bool) -> PricedHosts:
    found = PricedHosts.of(kind, catalogue.hardware(kind), 1.0)
    return found.that_train(on_accelerator=on_accelerator)


def mixes_of(catalogue: PriceCatalogue, training: PricedHosts, cloud: str = "") -> list[HostMix]:
    seller = cloud or seller_of(training.instance_type, catalogue)
    market = Market(catalogue=catalogue, seller=seller)
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


@pytest.mark.parametrize("has_rate", [False, True])
@pytest.mark.parametrize("kind", ["Standard_NC4as_T4_v3", "gpu_1x_a10", "rack.gpu", "mine"])
def test_a_type_of_an_unknown_cloud_is_offered_those_of_its_price_file(
    tmp_path: Path, kind: str, has_rate: bool
):
    own = written(tmp_path, "one", WHOLE, f"{kind},2,4,T4,1", f"{kind}_big,3,64,T4,1",
                  f"{kind}_cpu,1,16,,")  # fmt: skip
    other = written(tmp_path, "other", WHOLE, "other_big,2,64,T4,1", "other_cpu,1,16,,")
    catalogue = PriceCatalogue([other, own], {kind: 1.5} if has_rate else {})
    training = hosts_of(catalogue, kind, on_accelerator=True)
    mixes = mixes_of(catalogue, training)
    assert {group.instance_type for mix in mixes for group in mix.groups} == {
        kind, f"{kind}_big", f"{kind}_cpu"
    }  # fmt: skip
    assert {mix.kind for mix in mixes} == {
        "as it is", "bigger host", "auxiliary hosts", "more hosts"
    }  # fmt: skip
    now, *others = mixes_of(catalogue, training, cloud="aws")  # which is another one
    assert now.name == kind
    assert others
    assert {seller_of(mix.name, catalogue) for mix in others} == {"aws"}


def test_a_file_without_hardware_leaves_a_run_its_own_hosts(tmp_path: Path):
    catalogue = catalogue_of(tmp_path, PLAIN, "mine,2", "other,1")
    for on_accelerator, kinds in ((True, {"as it is", "more hosts"}), (False, {"as it is"})):
        training = hosts_of(catalogue, "mine", on_accelerator=on_accelerator)
        assert {mix.kind for mix in mixes_of(catalogue, training)} == kinds


def test_a_host_of_no_known_type_may_be_anywhere():
    catalogue = PriceCatalogue([], {"mine": 2.0})
    for kind in ("", "mine"):
        assert seller_of(kind, catalogue) == ""
        mixes = mixes_of(catalogue, hosts_of(catalogue, kind, on_accelerator=False))
        helpers = {mix.auxiliary.instance_type for mix in mixes if mix.auxiliary is not None}
        assert helpers >= {"c5.large", "n2-standard-2"}


def test_every_shipped_type_has_a_cloud():
    catalogue = PriceCatalogue([])
    sellers = {seller_of(price.instance_type, catalogue) for price in catalogue.prices}
    assert sellers == {"aws", "gcp"}
    assert seller_of("ml.g5.xlarge", catalogue) == "sagemaker"
