"""Prices of instance types: catalogues, the user's files and rates, and what is wrong in them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.decide.cost.price_catalogue import (
    PriceCatalogue,
    UnknownPriceError,
    old_prices,
    shipped_files,
)
from headrace.platforms.instance_groups import instance_type

HEAD = "InstanceType,Price,SpotPrice,Region,AvailabilityZone,PriceDate,Source"


def written(folder: Path, *lines: str, head: str = HEAD) -> Path:
    file = folder / "prices.csv"
    file.write_text("\n".join([head, *lines]) + "\n")
    return file


def test_every_shipped_price_has_a_day_a_source_and_a_known_type():
    shipped = PriceCatalogue([]).prices
    assert {each.stem for each in shipped_files()} == {each.catalogue for each in shipped}
    assert len(shipped) > 100
    for price in shipped:
        assert price.day is not None
        assert price.source.startswith("https://")
        assert price.usd_per_hour > 0
        assert price.region
        known = instance_type(price.instance_type, "here")
        assert (known.cores, known.devices) == (price.cores, price.accelerators)


def test_the_users_files_go_before_the_shipped_ones_and_rates_before_both(tmp_path: Path):
    shipped = PriceCatalogue([]).find("g5.xlarge")
    own = written(tmp_path, "g5.xlarge,0.9,0.3,,,,")
    assert PriceCatalogue([own]).find("g5.xlarge").usd_per_hour == 0.9 != shipped.usd_per_hour
    # A price of the user's without a region is one of all regions.
    assert PriceCatalogue([own]).find("g5.xlarge", "eu-west-1").spot_usd_per_hour == 0.3
    assert PriceCatalogue([own], {"g5.xlarge": 0.5}).find("g5.xlarge").usd_per_hour == 0.5


def test_an_own_price_leaves_a_type_what_it_is(tmp_path: Path):
    shipped = PriceCatalogue([]).find("g5.xlarge")
    short = written(tmp_path, "g5.xlarge,0.9", head="InstanceType,Price")
    for own in (PriceCatalogue([short]), PriceCatalogue([], {"g5.xlarge": 0.9})):
        price = own.find("g5.xlarge")
        assert price.usd_per_hour == 0.9
        assert (price.cores, price.memory_gib) == (shipped.cores, shipped.memory_gib)
        assert (price.accelerator, price.accelerators) == ("A10G", 1)
    more = written(tmp_path, "g5.xlarge,0.9,8", head="InstanceType,Price,vCPUs")
    assert PriceCatalogue([more]).find("g5.xlarge").cores == 8
    assert PriceCatalogue([short], {"rack": 1.0}).find("rack").cores is None


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ("ml.g5.xlarge", (4, 16, "A10G", 1)),
        ("ml.c5.4xlarge", (16, 32, "", 0)),
        ("p5e.48xlarge", (192, 2048, "H200", 8)),
        ("a3-megagpu-8g", (208, 1872, "H100", 8)),
        ("n1-standard-8", (8, 30, "", None)),  # accelerators can be attached
        ("gpu_1x_a10", (None, None, "", None)),
    ],
)
def test_what_a_type_has_is_known_though_no_price_says_it(
    tmp_path: Path, kind: str, has: tuple[float | None, ...]
):
    short = PriceCatalogue([written(tmp_path, f"{kind},1.4", head="InstanceType,Price")])
    own = PriceCatalogue([], {kind: 1.4})
    hosts = [each.find(kind) for each in (short, own)]
    hosts += [each.hardware(kind) for each in (short, own, PriceCatalogue([]))]
    for each in hosts:
        assert (each.cores, each.memory_gib, each.accelerator, each.accelerators) == has


@pytest.mark.parametrize(
    ("columns", "cells", "accelerators"),
    [
        ("AcceleratorName,AcceleratorCount", ",", 0),
        ("AcceleratorName,AcceleratorCount", "T4,1", 1),
        ("AcceleratorName,AcceleratorCount", ",2", 2),
        ("AcceleratorName", "", 0),
        ("AcceleratorName", "T4", None),
        ("AcceleratorCount", "0", 0),
        ("AcceleratorCount", "", None),
        ("Region", "", None),
    ],
)
def test_no_accelerator_is_not_one_that_is_not_stated(
    tmp_path: Path, columns: str, cells: str, accelerators: float | None
):
    for kind in ("rack", "n1-standard-8"):
        file = written(tmp_path, f"{kind},1,{cells}", head=f"InstanceType,Price,{columns}")
        assert PriceCatalogue([file]).find(kind).accelerators == accelerators


@pytest.mark.parametrize(
    ("head", "line"),
    [
        ("InstanceType,Price,Region", "g5.xlarge, 0.8, us-east-1"),
        ("InstanceType, Price, Region", "g5.xlarge,0.8,us-east-1"),
        ("InstanceType ,Price\t,Region ", " g5.xlarge\t,0.8 ,us-east-1 "),
        ("InstanceType,Price,Region", 'g5.xlarge, "0.8", "us-east-1"'),
        ("InstanceType,Price,Region", "G5.XLarge,0.8,us-east-1"),
        ("InstanceType,Price", "G5.xlarge , 0.8"),
    ],
)
def test_a_price_with_blanks_or_capitals_is_that_of_the_type(tmp_path: Path, head: str, line: str):
    own = PriceCatalogue([written(tmp_path, line, head=head)])
    assert own.find("g5.xlarge", "us-east-1").usd_per_hour == 0.8
    assert own.find("g5.xlarge").usd_per_hour == 0.8


def test_a_type_of_an_unknown_cloud_keeps_its_spelling(tmp_path: Path):
    head = "InstanceType,Price"
    own = PriceCatalogue([written(tmp_path, "Standard_NC6,0.9", "ML.G5.xlarge,1.4", head=head)])
    assert own.find("Standard_NC6").usd_per_hour == 0.9
    assert own.find("ml.g5.xlarge").usd_per_hour == 1.4
    with pytest.raises(UsageError, match=r"Did you mean Standard_NC6\?"):
        own.find("standard_nc6")


def test_files_named_by_the_environment_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PRICES", str(written(tmp_path, "mine,2,,,,,")))
    assert PriceCatalogue().find("mine").usd_per_hour == 2.0


@given(prices=st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_of_several_zones_the_cheapest_counts(
    prices: list[float], tmp_path_factory: pytest.TempPathFactory
):
    lines = [f"t,{usd},{usd / 2},r,r-{zone},," for zone, usd in enumerate(prices)]
    price = PriceCatalogue([written(tmp_path_factory.mktemp("zones"), *lines)]).find("t", "r")
    assert price.usd_per_hour == min(prices)
    assert price.spot_usd_per_hour == min(prices) / 2


def test_of_several_days_of_a_zone_the_latest_counts(tmp_path: Path):
    lines = ("t,1,,r,a,2026-01-01,", "t,2,,r,a,2026-11-01,", "t,3,,r,a,,", "t,5,,r,b,,")
    for order in (lines, lines[::-1]):
        price = PriceCatalogue([written(tmp_path, *order)]).find("t", "r")
        assert (price.usd_per_hour, str(price.day)) == (2.0, "2026-11-01")


def test_accelerators_that_are_sold_apart_are_no_hosts(tmp_path: Path):
    known = PriceCatalogue([written(tmp_path, ",4.2,1.1,r,,,", "t,1,,r,,,")])
    assert known.find("t", "r").usd_per_hour == 1.0
    assert "" not in {price.instance_type for price in known.prices}


@pytest.mark.parametrize(
    "kind",
    ["a3-megagpu-8g", "a4x-highgpu-4g", "g4-standard-48"],  # none of which is shipped
)
def test_a_host_whose_accelerators_are_sold_apart_has_no_price_without_them(
    tmp_path: Path, kind: str
):
    head = "InstanceType,vCPUs,Price,AcceleratorName,AcceleratorCount"
    apart = PriceCatalogue([written(tmp_path, f"{kind},12,0.7,,", ",,2.9,A100,1", head=head)])
    with pytest.raises(UnknownPriceError, match="leaves out its accelerators"):
        apart.find(kind)
    assert PriceCatalogue([], {kind: 3.6}).find(kind).usd_per_hour == 3.6
    bare = PriceCatalogue([written(tmp_path, f"{kind},3.6", head="InstanceType,Price")])
    assert bare.find(kind).usd_per_hour == 3.6  # it says nothing of accelerators
    whole = PriceCatalogue([written(tmp_path, f"{kind},12,3.6,A100,1", head=head)])
    assert whole.find(kind).usd_per_hour == 3.6
    plain = PriceCatalogue([written(tmp_path, "n1-standard-8,8,0.4,,", head=head)])
    assert plain.find("n1-standard-8").usd_per_hour == 0.4


def test_a_part_of_a_price_leaves_the_whole_one_that_is_shipped(tmp_path: Path):
    head = "InstanceType,Region,Price,AcceleratorName"
    apart = PriceCatalogue([written(tmp_path, "a2-highgpu-1g,us-central1,0.7,", head=head)])
    shipped = PriceCatalogue([]).find("a2-highgpu-1g")
    assert apart.find("a2-highgpu-1g") == shipped
    assert shipped in apart.prices


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t,,,,,,", "line 2: the price of t is missing"),
        ("t,one,,,,,", "line 2: Price is 'one', and no number from 0 on"),
        ("t,-1,,,,,", "line 2: Price is '-1'"),
        ("t,nan,,,,,", "line 2: Price is 'nan'"),
        ("t,inf,,,,,", "line 2: Price is 'inf'"),
        ("t,1,cheap,,,,", "line 2: SpotPrice is 'cheap'"),
        ("t,1,408,,,,,", "line 2: there are more cells than columns .a decimal comma"),
        ("t,1,,,,July,", "line 2: PriceDate is 'July': write it as 2026-07-20"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, message: str):
    with pytest.raises(UsageError, match=message):
        PriceCatalogue([written(tmp_path, line)])


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("InstanceType,Prise", "no column Price"),
        ("Type,Price", "no column InstanceType"),
        ("InstanceType,Price,SpotPrise", "'SpotPrise' in a catalogue. Did you mean SpotPrice"),
        ("InstanceType,Price,vcpus", "'vcpus' in a catalogue. Did you mean vCPUs"),
        ("InstanceType,Price,Accelerator Name", "Did you mean AcceleratorName"),
        ("", "no column InstanceType"),
    ],
)
def test_a_column_that_is_wrong_is_named(tmp_path: Path, head: str, message: str):
    with pytest.raises(UsageError, match=message):
        PriceCatalogue([written(tmp_path, head=head)])


@pytest.mark.parametrize(
    "names",
    [
        "vCPUs,MemoryGiB,GpuInfo,SpotPrice,Region,Generation",  # skypilot-catalog's of Azure
        "Arch,DeviceMemoryGiB,CapacityBlockPrice",
        "Colour",
        "InstanceFamily",  # InstanceType is there, so this is none of it that is misspelt
        "",
    ],
)
def test_columns_of_other_tools_are_passed_over(tmp_path: Path, names: str):
    cells = "," * names.count(",")
    own = PriceCatalogue([written(tmp_path, f"t,1,{cells}", head=f"InstanceType,Price,{names}")])
    assert own.find("t").usd_per_hour == 1.0


@pytest.mark.parametrize(
    ("currency", "is_dollars"),
    [("USD", True), ("usd", True), ("", True), ("EUR", False), ("CNY", False), ("€", False)],
)
@pytest.mark.parametrize("column", ["Currency", "currency"])
def test_prices_in_another_currency_are_not_taken_for_dollars(
    tmp_path: Path, column: str, currency: str, is_dollars: bool
):
    file = written(tmp_path, f"t,1,{currency}", head=f"InstanceType,Price,{column}")
    if is_dollars:
        assert PriceCatalogue([file]).find("t").usd_per_hour == 1.0
        return
    with pytest.raises(UsageError, match=f"line 2: its currency is {currency}, and prices are in"):
        PriceCatalogue([file])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match=r"none\.csv: the prices cannot be read"):
        PriceCatalogue([tmp_path / "none.csv"])
    (tmp_path / "picture.csv").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(UsageError, match=r"picture\.csv: the prices cannot be read"):
        PriceCatalogue([tmp_path / "picture.csv"])


def test_a_price_that_is_not_known_is_not_guessed():
    known = PriceCatalogue([])
    with pytest.raises(
        UsageError, match=r"price of ml\.g5\.xlarge is known\. That of g5\.xlarge is EC2's"
    ):
        known.find("ml.g5.xlarge")
    with pytest.raises(UsageError, match=r"Did you mean g5\.xlarge\? .*--price g5\.xlarg="):
        known.find("g5.xlarg")
    with pytest.raises(UsageError, match=r"of g5\.xlarge in mars-1 is known, but in us-east-1"):
        known.find("g5.xlarge", "mars-1")


def test_prices_grow_old(tmp_path: Path):
    prices = PriceCatalogue([written(tmp_path, "a,1,,,,2026-01-01,", "b,1,,,,,")]).prices
    own = [price for price in prices if price.catalogue == "prices"]
    today = date(2026, 7, 1)
    assert [price.instance_type for price in old_prices(own, 181, today)] == ["b"]
    assert [price.instance_type for price in old_prices(own, 180, today)] == ["a", "b"]
