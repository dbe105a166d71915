"""The hosts that a run could have: those of a price list that train as its own do, or help them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from headrace.core.errors import UsageError
from headrace.decide.cost.price_catalogue import (
    Hardware,
    Price,
    PriceCatalogue,
    UnknownPriceError,
)

MixKind = Literal["as it is", "bigger host", "auxiliary hosts", "more accelerators", "more hosts"]
MOST_AUXILIARY_HOSTS = 8
_TRAINING_HOSTS = (2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedHosts:
    """Hosts of one type.

    Attributes:
        instance_type: "": this host, whose type is not known.
        usd_per_hour: Of each.
        cores: Of each, virtual ones; None: unknown.
        accelerator: Of each; "": it has none, or which is unknown.
        accelerators: Of each; 0: it has none; None: unknown. Of hosts that train, None: they have
            some, which or how many is unknown.
    """

    instance_type: str
    hosts: int
    usd_per_hour: float
    cores: float | None = None
    accelerator: str = ""
    accelerators: float | None = None

    @classmethod
    def of(
        cls, instance_type: str, hardware: Hardware, usd_per_hour: float, hosts: int = 1
    ) -> Self:
        """Return hosts of a type that has so much, as far as that is known."""
        return cls(
            instance_type=instance_type, hosts=hosts, usd_per_hour=usd_per_hour,
            cores=hardware.cores, accelerator=hardware.accelerator,
            accelerators=hardware.accelerators,
        )  # fmt: skip

    def that_train(self, *, on_accelerator: bool) -> Self:
        """Return the hosts of a run, which may train on accelerators of which no price says.

        Accelerators can be attached to a host, its type may be an own name, and a price may say
        nothing of them: then a type without any is no host for the run.
        """
        if self.accelerator and self.accelerators:
            return self
        has_some = on_accelerator or bool(self.accelerator or self.accelerators)
        return replace(self, accelerator="", accelerators=None if has_some else 0.0)

    @property
    def is_without_accelerators(self) -> bool:
        """Whether it has none, as far as is known."""
        return not (self.accelerator or self.accelerators)

    @property
    def name(self) -> str:
        """Its hosts in words: 2 x c5.4xlarge."""
        kind = self.instance_type or "this host"
        return kind if self.hosts == 1 else f"{self.hosts} x {kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMix:
    """Hosts that train, and those that make batches for them, if any.

    Attributes:
        others: What the script itself uses in other ways, such as a parameter server, and needs
            whatever is changed.
    """

    kind: MixKind
    training: PricedHosts
    auxiliary: PricedHosts | None = None
    others: tuple[PricedHosts, ...] = ()

    @property
    def groups(self) -> tuple[PricedHosts, ...]:
        """All of its hosts."""
        return (self.training, *((self.auxiliary,) if self.auxiliary else ()), *self.others)

    @property
    def name(self) -> str:
        """The hosts in words: g5.xlarge + 2 x c5.4xlarge."""
        return " + ".join(group.name for group in self.groups)

    @property
    def usd_per_hour(self) -> float:
        """What all hosts cost."""
        return sum(group.hosts * group.usd_per_hour for group in self.groups)


CLOUDS = ("aws", "gcp", "sagemaker")
_GOOGLES = re.compile(r"[a-z]\d+[a-z]?-[a-z]+-\d+[a-z]*\b")  # n1-standard-8, a2-highgpu-1g
_EC2S = re.compile(r"[a-z][a-z0-9-]*\.(nano|micro|small|medium|\d*x?large|metal(-\d+xl)?)")


def seller_of(instance_type: str, catalogue: PriceCatalogue) -> str:
    """Return the cloud that sells a type, by its name: ml.g5.xlarge, n1-standard-8, g5.xlarge.

    Of a type of another cloud it is the name of the price file that has it: hosts of one file are
    taken to be near each other, and to be far from those of all others. "": not known, as of an
    own machine that has a rate alone.
    """
    if instance_type.startswith("ml."):
        return "sagemaker"
    if _GOOGLES.match(instance_type):
        return "gcp"
    return "aws" if _EC2S.fullmatch(instance_type) else catalogue.origin_of(instance_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """The prices among which hosts are chosen.

    Attributes:
        catalogue: All prices.
        seller: One of `CLOUDS`, or another that `seller_of` returns; "": any.
        region: "": the usual one of each cloud.
        spot: Whether hosts are spot instances; types without a spot price are left out then.
    """

    catalogue: PriceCatalogue
    seller: str = ""
    region: str = ""
    spot: bool = False

    def groups(self) -> list[PricedHosts]:
        """Return all types with known cores that are sold there, cheapest first.

        UsageError: There is none, and not for want of them in a file of other clouds' prices.
        """
        found = [
            PricedHosts.of(price.instance_type, price, usd)
            for price in self.catalogue.prices
            if price.cores
            and not price.is_of_a_part
            and (usd := price.rate(spot=self.spot)) is not None
            and self.seller in {"", seller_of(price.instance_type, self.catalogue)}
            and self._is_here(price)
        ]
        if not found and self.seller in {"", *CLOUDS}:
            raise UsageError(
                f"No {'spot ' if self.spot else ''}price of a type with known cores"
                f"{f' of {self.seller}' if self.seller else ''}"
                f"{f' in {self.region}' if self.region else ''} is known: headrace cost prices "
                "lists those that are, and --prices FILE adds some."
            )
        return sorted(found, key=lambda group: (group.usd_per_hour, group.instance_type))

    def is_elsewhere(self, now: HostMix) -> bool:
        """Whether its hosts are those of another cloud than a run's own, which only show then."""
        home = seller_of(now.training.instance_type, self.catalogue)
        return bool(home) and self.seller not in {"", home}

    def _is_here(self, price: Price) -> bool:
        """Whether a price is that which counts in the region."""
        try:
            return price == self.catalogue.find(price.instance_type, self.region)
        except UnknownPriceError:  # it is sold elsewhere alone
            return False


def host_mixes(now: HostMix, market: Market) -> Iterator[HostMix]:
    """Yield a run's hosts, then those of a market that could take their place.

    Auxiliary hosts stay, unless they are what is changed; those of another cloud would be too far
    away. Raises UsageError: nothing is sold there (`Market.groups`), or nothing that will do.
    """
    yield now
    groups = market.groups()
    is_elsewhere = market.is_elsewhere(now)
    others = list(_other_hosts(now, groups, is_elsewhere=is_elsewhere))
    if is_elsewhere:
        if not others:
            raise UsageError(_nothing_elsewhere(now, market))
        yield from others
        return
    yield from others
    for group in groups:
        if group.is_without_accelerators:
            for hosts in range(1, MOST_AUXILIARY_HOSTS + 1):
                several = replace(group, hosts=hosts)
                yield replace(now, kind="auxiliary hosts", auxiliary=several)
    if now.training.accelerators != 0:
        for hosts in _TRAINING_HOSTS:
            yield replace(
                now, kind="more hosts", training=_times(now.training, hosts),
                auxiliary=now.auxiliary and _times(now.auxiliary, hosts),
                others=tuple(_times(each, hosts) for each in now.others),
            )  # fmt: skip


def _nothing_elsewhere(now: HostMix, market: Market) -> str:
    training = now.training
    if training.hosts > 1 or len(now.groups) > 1 or training.cores is None:
        return (
            f"--cloud {market.seller}: {now.name} can be compared with its own cloud's hosts alone,"
            f" with those of {market.seller} only a run on one host of a known type."
        )
    if why := unknown_accelerator(training):
        return f"--cloud {market.seller}: {why}"
    return (
        f"No host of {market.seller} can take the place of {training.instance_type}: none that has "
        f"a price has as many cores and {training.accelerator or 'no accelerator'}. headrace cost "
        "prices lists them."
    )


def unknown_accelerator(training: PricedHosts) -> str:
    """Return why none is known that could take the place of hosts that train; "": they may be."""
    if training.accelerators is not None:
        return ""
    return (
        f"{replace(training, hosts=1).name} has an accelerator, and no price says which: a file "
        "for --prices does, with the columns AcceleratorName and AcceleratorCount."
    )


def why_no_other_type(training: PricedHosts) -> str:
    """Return why no hosts of other types are compared with those that train; "": they may be."""
    if why := unknown_accelerator(training):
        return why
    if training.hosts > 1:
        return f"the run has {training.hosts}, and other types are predicted of a run on one host."
    if training.cores is None:
        how = "a file for --prices says it, in the column vCPUs"
        own = how if training.instance_type else f"--instance-type says which type it is, or {how}"
        return f"how many cores {training.name} has is not known: {own}."
    return ""


def _times(group: PricedHosts, times: int) -> PricedHosts:
    return replace(group, hosts=group.hosts * times)


def _other_hosts(
    now: HostMix, groups: Sequence[PricedHosts], *, is_elsewhere: bool
) -> Iterator[HostMix]:
    """Yield hosts with the same accelerator: with more cores, or with several of them.

    In another cloud as many will do, but none is offered where other hosts stay in this one.
    """
    training = now.training
    if is_elsewhere and len(now.groups) > 1:
        return
    if training.cores is None or training.accelerators is None or why_no_other_type(training):
        return
    for group in groups:
        if group.accelerator != training.accelerator or not group.cores:
            continue
        accelerators = group.accelerators or 0.0  # unknown ones are of no use to a run without any
        if accelerators == training.accelerators:
            if group.cores > training.cores or (is_elsewhere and group.cores == training.cores):
                yield replace(now, kind="bigger host", training=group)
        elif accelerators > training.accelerators > 0:
            yield replace(now, kind="more accelerators", training=group)
