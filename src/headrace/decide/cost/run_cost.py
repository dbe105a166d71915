"""What a run cost: its hosts' rates over the time of its attempts, and what that money went to.

    dollars = sum over groups of hosts x dollars an hour x hours of the attempts

All hosts of an attempt are paid for from its begin to its end, whatever they do. What is
spent on data wait is the share of that time in which the accelerators waited for data, as the mean
over the ranks. What failed attempts cost is a figure of its own: samples may be trained again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError, UsageError
from headrace.core.units import format_usd
from headrace.decide.cost.price_catalogue import Price, PriceCatalogue, UnknownPriceError
from headrace.decide.cost.run_use import (
    AttemptUse,
    Utilisation,
    attempt_uses,
    auxiliary_hosts,
    trained_epochs,
    utilisation_by_role,
)
from headrace.platforms.instance_groups import TRAINING, has_types
from headrace.records.run_folder import Attempt, RunFolder

_HOUR_S = 3600.0
THIS_HOST = "this host"
"""The only group of a job that named none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """Where the rates of a run's hosts come from.

    Attributes:
        catalogue: The prices by instance type.
        rates: Dollars an hour of a host by the name of its group, before the catalogue's; "" is
            any group.
        types: Instance types by the name of a group, before those of the run; "" is any group.
        region: Of the prices; "": the usual one of each cloud.
        spot: Whether the hosts are spot instances.
    """

    catalogue: PriceCatalogue
    rates: Mapping[str, float] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    spot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCost:
    """What the hosts of an instance group cost."""

    name: str
    hosts: int
    instance_type: str  # "": unknown, as the rate was given
    usd_per_hour: float  # of one host
    usd: float
    price: Price | None  # None: the rate was given
    cpu_utilisation: float | None = None  # 0 to 1, while steps ran; None: not recorded
    gpu_utilisation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What all attempts of a run cost together."""

    run: str
    groups: tuple[GroupCost, ...]
    attempts: int
    failed_attempts: int
    running: bool  # the last attempt has not ended
    seconds: float
    usd: float
    data_wait_usd: float | None  # None: no step was recorded
    known_wait_usd: float  # that the attempts cost of which it is known
    failed_usd: float  # of attempts that failed
    samples: int  # that were trained on; 0: unknown
    epochs: float  # that these are; 0: unknown

    @property
    def sentence(self) -> str:
        """What it cost, and what of it went to waiting for data."""
        regions = sorted({each.price.region for each in self.groups if each.price} - {""})
        cost = (
            f"The run {self.run} cost ${format_usd(self.usd)}{' so far' if self.running else ''}"
            f"{' at prices of ' if regions else ''}{' and '.join(regions)}"
        )
        if self.data_wait_usd is None:
            return f"{cost}; what of it was spent on waiting for data is not recorded."
        share = self.data_wait_usd / self.known_wait_usd if self.known_wait_usd else 0.0
        waiting, of = f"${format_usd(self.data_wait_usd)} of it", f"{share:.0%}"
        if self.known_wait_usd < self.usd:
            of += f" of the ${format_usd(self.known_wait_usd)} of attempts whose steps are recorded"
        return f"{cost}, {waiting} ({of}) waiting for data."

    @property
    def usd_per_1k_samples(self) -> float | None:
        """Dollars for a thousand samples; None if it is unknown how many there were."""
        return 1000 * self.usd / self.samples if self.samples else None

    @property
    def usd_per_epoch(self) -> float | None:
        """Dollars for an epoch; None if none came to its end."""
        return self.usd / self.epochs if self.epochs else None

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second over the whole time of the attempts; None if unknown."""
        return self.samples / self.seconds if self.samples and self.seconds else None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        derived = ("usd_per_1k_samples", "usd_per_epoch", "samples_per_s")
        groups = [_group_json(group) for group in self.groups]
        return {
            **asdict(replace(self, groups=())),
            "groups": groups,
            **{name: getattr(self, name) for name in derived},
        }


def _group_json(group: GroupCost) -> dict[str, Any]:
    price = None if group.price is None else price_json(group.price)
    return {**asdict(replace(group, price=None)), "price": price}


def price_json(price: Price) -> dict[str, Any]:
    """Return a price as JSON."""
    return {**asdict(price), "day": None if price.day is None else price.day.isoformat()}


_UNKNOWN_USE: Mapping[str, Utilisation] = {}


def known_cost(
    run: Path, *, busy: Mapping[str, Utilisation] | None = _UNKNOWN_USE, training: bool = True
) -> RunCost | None:
    """Return what a run has cost so far; None where a price is not known: see `run_cost`.

    How busy its hosts were is not read unless `busy` is None.

    UsageError: A file of prices that HEADRACE_PRICES names cannot be read.
    """
    attempts = RunFolder(run).attempts()
    if not attempts or not has_types(attempts[-1].groups):
        return None
    try:
        pricing = Pricing(catalogue=PriceCatalogue())
        return run_cost(run, pricing, busy=busy, training=training)
    except UnknownPriceError:
        return None


def run_cost(
    run: Path,
    pricing: Pricing,
    *,
    busy: Mapping[str, Utilisation] | None = None,
    training: bool = True,
) -> RunCost:
    """Return what a run has cost so far.

    Args:
        run: The run's folder.
        pricing: Where rates come from.
        busy: How busy its hosts were, by their role; None: that is read.
        training: Whether to find waits and samples, for which all steps are read.

    Raises:
        UsageError: A rate or a type was given for a group that the run does not have.
        UnknownPriceError: The type or price of a group's hosts is unknown; the message says which.
        RecordsError: There is no attempt, or its records are broken.
    """
    uses = list(attempt_uses(run, training=training))
    if not uses:
        raise RecordsError(f"{run} has no attempt: nothing was started there.")
    busy = utilisation_by_role(run) if busy is None else busy
    paid = [
        [_group_cost(group, use, pricing, busy) for group in _groups(run, attempt)]
        for attempt, use in uses
    ]
    _check_names(pricing, [group for groups in paid for group in groups])
    done = [
        (use, sum(group.usd for group in groups))
        for (_, use), groups in zip(uses, paid, strict=True)
    ]
    waits = [
        (usd * use.data_wait_s / use.seconds, usd)
        for use, usd in done
        if use.data_wait_s is not None and use.seconds > 0
    ]
    return RunCost(
        run=run.name,
        groups=_added(paid),
        attempts=len(done),
        failed_attempts=sum(use.failed for use, _ in done),
        running=done[-1][0].running,
        seconds=sum(use.seconds for use, _ in done),
        usd=sum(usd for _, usd in done),
        data_wait_usd=sum(waited for waited, _ in waits) if waits else None,
        known_wait_usd=sum(usd for _, usd in waits),
        failed_usd=sum(usd for use, usd in done if use.failed),
        samples=sum(use.samples for use, _ in done),
        epochs=trained_epochs([use for use, _ in done]),
    )


def last_groups(
    run: Path, pricing: Pricing, *, candidates: bool = False
) -> list[tuple[str, GroupCost]]:
    """Return (role, group) of a run's last attempt; raises as `run_cost` does.

    With `candidates` rates may be given for types of hosts that the run does not have, too.
    """
    uses = list(attempt_uses(run, training=False))
    if not uses:
        raise RecordsError(f"{run} has no attempt: nothing was started there.")
    attempt, use = uses[-1]
    found = [
        (str(group["role"]), _group_cost(group, use, pricing, {}))
        for group in _groups(run, attempt)
    ]
    types = {each.instance_type for each in pricing.catalogue.prices if each.cores}
    _check_names(pricing, [group for _, group in found], types if candidates else frozenset())
    return found


def _added(paid: Sequence[Sequence[GroupCost]]) -> tuple[GroupCost, ...]:
    """Return each group as it was in its last attempt, with the dollars of all attempts."""
    found: dict[str, GroupCost] = {}
    for group in (group for groups in paid for group in groups):
        before = found.get(group.name)
        found[group.name] = replace(group, usd=group.usd + (before.usd if before else 0.0))
    return tuple(found.values())


def _check_names(
    pricing: Pricing, groups: Sequence[GroupCost], candidates: Collection[str] = ()
) -> None:
    """Raise UsageError where a rate or a type was given for what the run does not have."""
    names = {"", *(group.name for group in groups)}
    types = {group.instance_type for group in groups}
    for flag, given, known in (
        ("--price", pricing.rates, names | types), ("--instance-type", pricing.types, names)
    ):  # fmt: skip
        for name in given:
            if name not in known and not (flag == "--price" and name in candidates):
                there = ", ".join(sorted(known - {""}))
                raise UsageError(f"{flag} {name}=...: the run has no {name}, but {there}.")


def _groups(run: Path, attempt: Attempt) -> list[dict[str, Any]]:
    """Return the groups of an attempt, without those of no host; older files have none at all."""
    alone = {"name": "", "hosts": 1, "instance_type": "", "role": TRAINING}
    groups = list(attempt.groups) or [alone]
    counted = [
        {**group, "hosts": group["hosts"] or auxiliary_hosts(run, attempt.number)}
        for group in groups
    ]
    return [group for group in counted if group["hosts"]]


def _group_cost(
    group: Mapping[str, Any], use: AttemptUse, pricing: Pricing, busy: Mapping[str, Utilisation]
) -> GroupCost:
    utilisation = busy.get(group["role"], Utilisation())
    name, hosts = str(group["name"]), int(group["hosts"])
    kind = pricing.types.get(name) or pricing.types.get("") or str(group["instance_type"])
    # The rate of a type is in the catalogue.
    of_all = None if kind and kind in pricing.rates else pricing.rates.get("")
    rate, price = pricing.rates.get(name, of_all), None
    if rate is None:
        price = _price(name or THIS_HOST, kind, pricing)
        rate = _rate(price, pricing)
    return GroupCost(
        name=name or THIS_HOST,
        hosts=hosts,
        instance_type=kind,
        usd_per_hour=rate,
        usd=hosts * rate * use.seconds / _HOUR_S,
        price=price,
        cpu_utilisation=utilisation.cpu,
        gpu_utilisation=utilisation.gpu,
    )


def _price(name: str, instance_type: str, pricing: Pricing) -> Price:
    if not instance_type:
        raise UnknownPriceError(
            f"The instance type of {name} is unknown, and so is its price: give it with "
            "--instance-type g5.xlarge, or the rate itself with --price USD_AN_HOUR."
        )
    return pricing.catalogue.find(instance_type, pricing.region)


def _rate(price: Price, pricing: Pricing) -> float:
    rate = price.rate(spot=pricing.spot)
    if rate is None:
        known = [each for each in pricing.catalogue.prices if each.catalogue == price.catalogue]
        has_none = all(each.spot_usd_per_hour is None for each in known)
        raise UnknownPriceError(
            f"No spot price of {price.instance_type} in {price.region or 'any region'} is known"
            f"{f' ({price.catalogue} has none at all)' if has_none else ''}: leave out --spot, "
            f"give one with --price {price.instance_type}=USD_AN_HOUR, or a file that has a column "
            "SpotPrice with --prices."
        )
    return rate
