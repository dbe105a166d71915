"""Dated prices of instance types: the catalogues that come with Headrace, and files of the user's.

A catalogue is a CSV file with the columns of skypilot-catalog and two more: `PriceDate`, the day
for which a price was valid, and `Source`, where it stands. A file of the user's may leave out all
columns but `InstanceType` and `Price`, and have others, so that one of skypilot-catalog's can be
used as it is; what it prices takes the place of the same in the catalogues. Prices of EC2 and of
SageMaker's `ml.` types differ: each is looked up by its own name alone.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import known_type

COLUMNS = (
    "InstanceType", "vCPUs", "MemoryGiB", "AcceleratorName", "AcceleratorCount", "GpuInfo",
    "Region", "AvailabilityZone", "Price", "SpotPrice", "PriceDate", "Source",
)  # fmt: skip
_NEEDED = ("InstanceType", "Price")
_IGNORED = ("DeviceMemoryGiB",)  # of skypilot-catalog's: close to a known name, and another thing
_DOLLARS = {"usd", "us$", "$"}
_CATALOGUES = Path(__file__).with_name("catalogues")
_OWN = "own rate"
_WITH_ACCELERATORS = re.compile(r"(a\d+x?|g\d+)-")
"""Of Google Cloud: types that have them. In skypilot-catalog's files an accelerator is a row of its
own, without an instance type, whose price comes on top of the host's."""


_ATTACHED = re.compile(r"n1-")
"""Of Google Cloud: types to which accelerators can be attached, which are sold apart."""


_Layer = dict[str, dict[str, "Price"]]
"""The prices of one origin, by type and region."""


class UnknownPriceError(UsageError):
    """The price of a host's type, or the type itself, is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a host of a type has; None: unknown."""

    cores: float | None = None  # virtual ones
    memory_gib: float | None = None
    accelerator: str = ""  # its kind; "": it has none, or which is unknown
    accelerators: float | None = None  # 0: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Hardware):
    """What an instance of a type costs while it runs, in US dollars an hour."""

    instance_type: str
    usd_per_hour: float
    spot_usd_per_hour: float | None = None  # None: unknown
    region: str = ""  # "": any
    zone: str = ""  # of the region; "": any
    is_without_accelerators: bool = False  # it is that of a host without any, as its row says
    day: date | None = None  # of the price; None: unknown
    source: str = ""
    catalogue: str = ""  # the file's name without its suffix, or where a rate was given

    @property
    def is_of_a_part(self) -> bool:
        """Whether it leaves out the accelerators that the type has, which are priced apart."""
        return self.is_without_accelerators and bool(_WITH_ACCELERATORS.match(self.instance_type))

    def age_days(self, today: date) -> int | None:
        """Return how old the price is; None if its day is unknown."""
        return None if self.day is None else (today - self.day).days

    def rate(self, *, spot: bool) -> float | None:
        """Return the dollars an hour on demand, or as a spot instance; None if that is unknown."""
        return self.spot_usd_per_hour if spot else self.usd_per_hour


class PriceCatalogue:
    """The prices that are known, those of the user's files before those that come with Headrace.

    Args:
        files: CSV files of the user's; None: those that HEADRACE_PRICES names.
        rates: Dollars an hour by instance type, before all others.

    Raises:
        UsageError: A file cannot be read, or says what is no price: with its name and line.
    """

    def __init__(
        self, files: Sequence[Path] | None = None, rates: Mapping[str, float] | None = None
    ) -> None:
        own = user_files() if files is None else tuple(files)
        layers = [
            [_own_rate(name, usd) for name, usd in (rates or {}).items()],
            *(list(_read_prices(file, needs_source=False)) for file in own),
            [each for file in shipped_files() for each in _read_prices(file, needs_source=True)],
        ]
        self._layers = _with_hardware([_by_type(layer) for layer in layers])

    @property
    def prices(self) -> tuple[Price, ...]:
        """All prices that count, by type and region."""
        found: dict[tuple[str, str], Price] = {}
        for layer in self._layers:
            for name, regions in layer.items():
                for region, price in regions.items():
                    known = found.get((name, region))
                    if known is None or (known.is_of_a_part and not price.is_of_a_part):
                        found[name, region] = price
        return tuple(found[key] for key in sorted(found))

    def find(self, instance_type: str, region: str = "") -> Price:
        """Return the price of a type in a region; "": in the only one, or the cloud's usual one.

        UnknownPriceError: there is none; the message says what comes nearest, and what to do.
        """
        part: Price | None = None
        for layer in self._layers:
            regions = layer.get(instance_type, {})
            wanted = (region, "") if region else ("", *USUAL_REGIONS, *sorted(regions))
            price = next((regions[each] for each in wanted if each in regions), None)
            if price is not None and not price.is_of_a_part:
                return price
            part = part or price
        if part is not None:
            raise UnknownPriceError(
                f"The price of {instance_type} in {part.catalogue} leaves out its accelerators, "
                f"which are sold apart there. {self._how(instance_type)}"
            )
        raise UnknownPriceError(self._unknown(instance_type, region))

    def hardware(self, instance_type: str) -> Hardware:
        """Return what a host of a type has, as far as it is known; it need not have a price."""
        for layer in self._layers:
            if instance_type in layer:
                return next(iter(layer[instance_type].values()))
        return _known_hardware(instance_type)

    def origin_of(self, instance_type: str) -> str:
        """Return the catalogue that has a price of a type; "": none, it has a rate at most."""
        for layer in self._layers:
            for price in layer.get(instance_type, {}).values():
                if price.catalogue != _OWN:
                    return price.catalogue
        return ""

    def _unknown(self, instance_type: str, region: str) -> str:
        regions = sorted(
            {each.region for each in self.prices if each.instance_type == instance_type}
        )
        how = self._how(instance_type)
        if regions:
            return (
                f"No price of {instance_type} in {region} is known, but in {', '.join(regions)}. "
                f"{how}"
            )
        return f"No price of {instance_type} is known.{self._nearest(instance_type)} {how}"

    def _how(self, instance_type: str) -> str:
        return (
            f"Give one with --price {instance_type}=USD_AN_HOUR, or in a CSV file with the columns "
            "InstanceType and Price that HEADRACE_PRICES or --prices names."
        )

    def _nearest(self, instance_type: str) -> str:
        known = {each.instance_type for each in self.prices}
        plain = instance_type.removeprefix("ml.")
        if plain != instance_type and plain in known:
            return f" That of {plain} is EC2's, and SageMaker asks for more."
        near = difflib.get_close_matches(instance_type, known, n=1, cutoff=0.6)
        return f" Did you mean {near[0]}?" if near else ""


USUAL_REGIONS = ("us-east-1", "us-central1")
"""Whose prices count where no region is given: the first regions of AWS and Google Cloud."""


def user_files() -> tuple[Path, ...]:
    """Return the files that HEADRACE_PRICES names, separated by colons."""
    names = (env.PRICES.get() or "").split(":")
    return tuple(Path(name).expanduser() for name in names if name)


def shipped_files() -> list[Path]:
    """Return the catalogues that come with Headrace."""
    return sorted(_CATALOGUES.glob("*.csv"))


def old_prices(prices: Iterable[Price], longest_days: int, today: date) -> list[Price]:
    """Return the prices that are older than so many days, or whose day is unknown."""
    ages = ((price, price.age_days(today)) for price in prices)
    return [price for price, age in ages if age is None or age > longest_days]


def _own_rate(instance_type: str, usd_per_hour: float) -> Price:
    """Return a rate that was given: it is what is paid, as a spot instance, too."""
    return Price(
        instance_type=instance_type, usd_per_hour=usd_per_hour, spot_usd_per_hour=usd_per_hour,
        catalogue=_OWN,
    )  # fmt: skip


def _with_hardware(layers: Sequence[_Layer]) -> list[_Layer]:
    """Return layers of prices that have what a host of a type is, also where they do not say it.

    An own rate, or a file of types and prices alone, says what is paid for a type, and nothing of
    its cores or accelerators: these are as in the layers below, or as the cloud lists the type.
    """
    found: list[_Layer] = []
    known: dict[str, Hardware] = {}  # of the types in the layers below
    for layer in reversed(layers):
        completed = {
            name: {
                region: _completed(price, known.get(name) or _known_hardware(name))
                for region, price in regions.items()
            }
            for name, regions in layer.items()
        }
        found.insert(0, completed)
        known |= {name: next(iter(regions.values())) for name, regions in completed.items()}
    return found


def _known_hardware(instance_type: str) -> Hardware:
    """Return what a cloud says of a type that it has."""
    known = known_type(instance_type)
    if known is None:
        return Hardware()
    return Hardware(
        cores=known.cores, memory_gib=known.memory_gib, accelerator=known.device,
        accelerators=None if _ATTACHED.match(instance_type) else known.devices,
    )  # fmt: skip


def _completed(price: Price, other: Hardware) -> Price:
    """Return a price with what it does not say of its hosts.

    One that says that they have no accelerator leaves out those which the type has.
    """
    own = price.accelerators
    return replace(
        price,
        cores=other.cores if price.cores is None else price.cores,
        memory_gib=other.memory_gib if price.memory_gib is None else price.memory_gib,
        accelerator=price.accelerator or other.accelerator,
        accelerators=own or (own if other.accelerators is None else other.accelerators),
    )


def _by_type(prices: Iterable[Price]) -> _Layer:
    """Return the prices by type and region: of several zones the cheapest one.

    Of several days of a zone the latest counts.
    """
    latest: dict[tuple[str, str, str], Price] = {}
    for price in prices:
        place = price.instance_type, price.region, price.zone
        other = latest.get(place)
        latest[place] = price if other is None else _later(other, price)
    found: dict[str, dict[str, Price]] = {}
    for price in latest.values():
        regions = found.setdefault(price.instance_type, {})
        other = regions.get(price.region)
        regions[price.region] = price if other is None else _cheaper(other, price)
    return found


def _later(one: Price, other: Price) -> Price:
    """Return the price of the later day; of one day the cheaper one, with the lower spot price."""
    one_day, other_day = one.day or date.min, other.day or date.min
    if one_day == other_day:
        return _cheaper(one, other)
    return one if one_day > other_day else other


def _cheaper(one: Price, other: Price) -> Price:
    """Return the cheaper one of two prices, with the lower price as a spot instance."""
    spots = [each.spot_usd_per_hour for each in (one, other) if each.spot_usd_per_hour is not None]
    cheaper = min(one, other, key=lambda price: price.usd_per_hour)
    return replace(cheaper, spot_usd_per_hour=min(spots, default=None))


def _read_prices(file: Path, *, needs_source: bool) -> Iterator[Price]:
    """Yield the prices of a catalogue.

    Rows without an instance type are accelerators that are sold apart, in skypilot-catalog's files,
    and no price of a host. Blanks around cells, as people write them after commas, mean nothing.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = csv.DictReader(opened, skipinitialspace=True)
            names = [name.strip() for name in rows.fieldnames or ()]
            _check_columns(file, names)
            rows.fieldnames = names
            for row in rows:
                cells = {
                    name: cell.strip() if isinstance(cell, str) else cell
                    for name, cell in row.items()
                }
                if cells["InstanceType"]:
                    yield _Line(file, rows.line_num, cells).price(needs_source=needs_source)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file}: the prices cannot be read: {error}.") from error


def _check_columns(file: Path, names: Sequence[str]) -> None:
    for name in _NEEDED:
        if name not in names:
            raise UsageError(
                f"{file}: there is no column {name}. A catalogue has {', '.join(COLUMNS)}; "
                f"{' and '.join(_NEEDED)} are needed."
            )
    # A column of a name that is not known is one of another tool's, or a known one misspelt.
    lacking = {name.lower(): name for name in COLUMNS if name not in names}
    for name in names:
        is_known = name in COLUMNS or name in _IGNORED
        near = [] if is_known else difflib.get_close_matches(name.lower(), lacking, n=1)
        if near:
            raise UsageError(
                f"{file}: there is no column {name!r} in a catalogue. Did you mean "
                f"{lacking[near[0]]}? Rename it, or remove it."
            )


def _usual_spelling(instance_type: str) -> str:
    """Return a type as its cloud spells it, if that is known; those of AWS and Google are small."""
    small = instance_type.lower()
    return instance_type if known_type(small) is None else small


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a catalogue, and the errors about it."""

    file: Path
    number: int
    cells: Mapping[str | None, Any]  # those beyond the last column under None

    def price(self, *, needs_source: bool) -> Price:
        """Return the line's price; raises UsageError with the line's number."""
        if None in self.cells:
            raise self._error("there are more cells than columns (a decimal comma?)")
        self._check_currency()
        usd = self._number("Price")
        if usd is None:
            raise self._error(f"the price of {self.cells['InstanceType']} is missing")
        source, day = self.cells.get("Source") or "", self._day()
        accelerators = self._accelerators()
        if needs_source and (not source or day is None):
            raise self._error("a price needs its PriceDate and its Source")
        return Price(
            instance_type=_usual_spelling(self.cells["InstanceType"]),
            usd_per_hour=usd,
            spot_usd_per_hour=self._number("SpotPrice"),
            region=self.cells.get("Region") or "",
            zone=self.cells.get("AvailabilityZone") or "",
            cores=self._number("vCPUs"),
            memory_gib=self._number("MemoryGiB"),
            accelerator=self.cells.get("AcceleratorName") or "",
            accelerators=accelerators,
            is_without_accelerators=accelerators == 0,
            day=day,
            source=source,
            catalogue=self.file.stem,
        )

    def _check_currency(self) -> None:
        """Raise UsageError where a column of another tool's says that prices are no dollars."""
        currency = self.cells.get("Currency") or self.cells.get("currency") or ""
        if currency and currency.lower() not in _DOLLARS:
            raise self._error(f"its currency is {currency}, and prices are in US dollars here")

    def _accelerators(self) -> float | None:
        """Return how many the host has; None: the line does not say it."""
        count, name = self._number("AcceleratorCount"), self.cells.get("AcceleratorName")
        return 0.0 if count is None and name == "" else count

    def _number(self, column: str) -> float | None:
        text = self.cells.get(column) or ""
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise self._error(f"{column} is {text!r}, and no number from 0 on")
        return value

    def _day(self) -> date | None:
        text = self.cells.get("PriceDate") or ""
        try:
            return date.fromisoformat(text) if text else None
        except ValueError:
            raise self._error(f"PriceDate is {text!r}: write it as 2026-07-20") from None

    def _error(self, what: str) -> UsageError:
        return UsageError(f"{self.file}, line {self.number}: {what}.")
