"""Throughput and cost of a measured run on other hosts, as the what-if model predicts them.

    dollars per 1,000 samples = dollars an hour of all hosts / (3.6 x samples a second)

Throughput is the measured one times what the what-if model predicts of the change (see
headrace/observe/whatif): more cores with as many workers each, auxiliary hosts, several ranks on a
host or several hosts. Cores of other types are as fast as host_speeds.py knows, else as those of
the run's host, in auxiliary hosts 0.8 to 1.25 times so. Gradient sync that was not measured, as of
one rank, or by a library that the probe does not see, is assumed to take between nothing and a
fifth of a rank's own time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.core.errors import RecordsError, UsageError
from headrace.decide.cost.host_mixes import (
    HostMix,
    Market,
    PricedHosts,
    host_mixes,
    seller_of,
    why_no_other_type,
)
from headrace.decide.cost.host_speeds import HostSpeeds
from headrace.decide.cost.run_cost import GroupCost, Pricing, last_groups
from headrace.decide.cost.run_use import attempt_uses
from headrace.observe.doctor.diagnosis import (
    HOST_REMEDIES,
    OTHER_TIME_RULES,
    change_phrase,
    diagnose,
)
from headrace.observe.doctor.findings import Diagnosis
from headrace.observe.whatif.measured_pipeline import measure, read_host_usage
from headrace.observe.whatif.prediction import (
    Estimate,
    Prediction,
    Simulator,
    interval_width,
    with_auxiliary,
    with_workers,
)
from headrace.observe.whatif.rank_times import rank_times
from headrace.observe.whatif.tables import CachedTables, Tables, columns
from headrace.observe.whatif.train_steps import TrainSteps, read_steps
from headrace.platforms.instance_groups import AUXILIARY, TRAINING
from headrace.records.reader import open_records

_ROLES = {TRAINING, AUXILIARY}
_MOST_AUXILIARY_CORES = 128.0  # for each rank, as the model simulates no more
_UNMEASURED_SYNC = 0.2  # of a rank's own time, at most
_WORTH_MENTIONING = 1.05
_ASSUMED_SPEED = (
    "a core of an auxiliary host is 0.8 to 1.25 times as fast as one of the run's (headrace cost "
    "calibrate measures it)"
)
_Speeds = tuple[float, float]
"""At least and at most."""
_UNCHANGED = Prediction(
    speedup=1.0, low=1.0 - interval_width(1.0), high=1.0 + interval_width(1.0), wait_share=0.0
)
"""Of the same hosts: two runs differ."""
_NO_WAIT, _NO_GAIN, _MORE_CORES = 0.01, 1.002, 1.5
"""More auxiliary cores give nothing more where data is waited for less than this share of the time,
or where so many times the cores were no faster than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMix:
    """Hosts, with what is predicted of the run on them.

    Attributes:
        remedy: What is changed on the run's own hosts; "": nothing.
        needs_code: Whether the remedy is a change of the script.
        workers: Of each rank's loader; None: as they are.
        samples_per_s: Of all ranks together.
        speedup: Over the run as it is.
        wait_share: Of step time, waiting for data; None: not predicted.
        assumptions: What was not measured, a sentence each.
    """

    mix: HostMix
    remedy: str = ""
    needs_code: bool = False
    workers: int | None = None
    samples_per_s: Estimate
    speedup: float
    wait_share: float | None
    assumptions: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The hosts, and what is changed there."""
        with_workers = f"{self.workers} workers a rank" if self.workers is not None else ""
        change = self.remedy or with_workers
        return f"{self.mix.name}, {change}" if change else self.mix.name

    @property
    def usd_per_1k_samples(self) -> Estimate:
        """Dollars for 1,000 samples, start-up left out."""
        rate, usd = self.samples_per_s, self.mix.usd_per_hour / 3.6
        return Estimate(usd / rate.value, usd / rate.high, usd / max(rate.low, 1e-9))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON's own types."""
        rate, cost = self.samples_per_s, self.usd_per_1k_samples
        return {
            "name": self.name, "kind": "remedy" if self.remedy else self.mix.kind,
            "usd_per_hour": self.mix.usd_per_hour, "needs_code": self.needs_code,
            "workers": self.workers, "speedup": self.speedup, "wait_share": self.wait_share,
            "samples_per_s": {"value": rate.value, "low": rate.low, "high": rate.high},
            "usd_per_1k_samples": {"value": cost.value, "low": cost.low, "high": cost.high},
            "assumptions": list(self.assumptions),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHosts:
    """The mixes that a run could train on, as it is first.

    Attributes:
        run: Its name.
        samples: That it has trained on.
        are_own_offered: Whether the run's own hosts are among those to choose from; those of
            another cloud than the one asked for are not.
        left_out: Which hosts are not compared, and why, in a sentence; "": none.
    """

    run: str
    mixes: tuple[PredictedMix, ...]
    samples: int
    are_own_offered: bool = True
    left_out: str = ""

    @property
    def choices(self) -> tuple[PredictedMix, ...]:
        """Those to choose from, none of which takes a change of the script."""
        offered = self.mixes if self.are_own_offered else self.mixes[1:]
        return tuple(mix for mix in offered if not mix.needs_code)


def compare_hosts(
    run: Path, pricing: Pricing, *, cloud: str = "", speeds: HostSpeeds | None = None
) -> ComparedHosts:
    """Return what is predicted of a recorded run on each mix of hosts that has prices.

    Args:
        run: Its folder.
        pricing: Of its own hosts, and of others.
        cloud: Whose hosts are considered; "": those of the cloud that has the run's own, or of
            the price file that has them where that is no cloud that is known.
        speeds: Of their cores; None: those that come with Headrace and of HEADRACE_SPEEDS.

    Raises:
        RecordsError: Too little of the run was recorded, or it counted no samples.
        UnknownPriceError: The type or price of its own hosts is unknown.
        UsageError: No price of other hosts is known.
    """
    tables = CachedTables(open_records(run))
    steps = read_steps(tables)
    measured = measure(tables)
    rate = steps.samples_per_s
    if measured is None or rate is None:
        why = "it counted no samples" if measured is not None else "too few steps were recorded"
        raise RecordsError(f"Nothing can be predicted of {run.name}: {why}.")
    own = _own_hosts(run, pricing, on_accelerator=_uses_accelerator(tables, steps))
    times = rank_times(steps)
    model = _RunModel(
        simulator=Simulator(measured), steps=steps, rate=rate, speeds=speeds or HostSpeeds(),
        own_type=own.training.instance_type,
        sync_is_measured=times is not None and times.sync_ns is not None,
    )  # fmt: skip
    seller = cloud or seller_of(own.training.instance_type, pricing.catalogue)
    market = Market(
        catalogue=pricing.catalogue, seller=seller, region=pricing.region, spot=pricing.spot
    )
    mixes = list(_predicted(model, own, market))
    are_own_offered = not market.is_elsewhere(own)
    if are_own_offered:
        mixes += remedied_mixes(mixes[0], diagnose(tables))
    return ComparedHosts(
        run=run.name, mixes=tuple(mixes), are_own_offered=are_own_offered,
        samples=sum(use.samples for _, use in attempt_uses(run)),
        left_out=_left_out(own.training),
    )  # fmt: skip


def _left_out(training: PricedHosts) -> str:
    why = why_no_other_type(training)
    return f"Hosts of other types to train on are left out: {why}" if why else ""


def _uses_accelerator(tables: Tables, steps: TrainSteps) -> bool:
    """Return whether a run's host has accelerators, or its steps were seen on one."""
    if columns(tables, "device_steps").count:
        return True
    return read_host_usage(tables, steps.span_ns).accelerators > 0


def _own_hosts(run: Path, pricing: Pricing, *, on_accelerator: bool) -> HostMix:
    """Return the hosts of a run; raises UsageError where they train as several groups."""
    groups: dict[str, list[PricedHosts]] = {}
    for role, group in last_groups(run, pricing, candidates=True):
        groups.setdefault(role, []).append(_host_group(group, pricing))
    training, auxiliary = groups.get(TRAINING, []), groups.get(AUXILIARY, [])
    if len(training) != 1:
        raise UsageError(
            f"{run.name} trains on {len(training)} groups of hosts; advice is given for one."
        )
    rest = [group for role, found in groups.items() if role not in _ROLES for group in found]
    return HostMix(
        kind="as it is", training=training[0].that_train(on_accelerator=on_accelerator),
        auxiliary=auxiliary[0] if auxiliary else None, others=tuple(rest),
    )  # fmt: skip


def _host_group(group: GroupCost, pricing: Pricing) -> PricedHosts:
    """Return a group's hosts; of one with a rate of its own the type says what they are."""
    hardware = group.price or pricing.catalogue.hardware(group.instance_type)
    return PricedHosts.of(group.instance_type, hardware, group.usd_per_hour, group.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunModel:
    """A measured run, and what is predicted of it on other hosts."""

    simulator: Simulator
    steps: TrainSteps
    rate: float  # samples a second of all ranks
    speeds: HostSpeeds
    own_type: str
    sync_is_measured: bool
    # By the speeds of such cores and their number for each rank
    _by_auxiliary: dict[_Speeds | None, dict[float, Prediction]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """On each host."""
        return self.simulator.measured.ranks

    @property
    def cores(self) -> float:
        """Of a host, as the job may use them."""
        return self.simulator.measured.pipeline.cores * self.ranks

    def unchanged(self, mix: HostMix) -> PredictedMix:
        wait = self.simulator.before.wait_share
        return self._of(mix, replace(_UNCHANGED, wait_share=wait))

    def on_other_host(self, mix: HostMix, now: PricedHosts) -> PredictedMix:
        """Return what is predicted of a host with other cores, or with more accelerators."""
        factor = (mix.training.cores or 0.0) / (now.cores or self.cores)
        cores, times = self.cores * factor, 1.0
        if mix.kind == "more accelerators":
            times = (mix.training.accelerators or 1.0) / (now.accelerators or 1.0)
        ranks = round(self.ranks * times)
        workers = self.simulator.measured.pipeline.workers * self.ranks
        a_rank = max(round(workers * factor / ranks), int(cores / ranks), 1)
        speed = self._speeds_of(mix.training)
        found = with_workers(
            self.simulator, a_rank, cores=cores, ranks=ranks,
            core_speed=1.0 if speed is None else (speed[0] * speed[1]) ** 0.5,
        )  # fmt: skip
        if times == 1.0:
            return self._of(mix, found, workers=a_rank)
        return self._of(mix, *self._with_sync(found, ranks), times=times, workers=a_rank)

    def on_more_hosts(self, mix: HostMix, now: PricedHosts) -> PredictedMix:
        times = mix.training.hosts / now.hosts
        world = len(self.steps.ranks)
        found = replace(_UNCHANGED, wait_share=self.simulator.before.wait_share)
        return self._of(mix, *self._with_sync(found, round(world * times)), times=times)

    def with_auxiliary(self, mix: HostMix, hosts: PricedHosts, cores: float) -> PredictedMix:
        """Return what is predicted of auxiliary cores for each rank.

        Those beyond what it can use are not simulated, which takes long.
        """
        speeds = self._speeds_of(hosts)
        known = self._by_auxiliary.setdefault(speeds, {})
        enough = _enough_cores(known)
        if cores not in known and cores < enough:
            known[cores] = with_auxiliary(self.simulator, cores, speeds)
        assumed = () if speeds is not None else (_ASSUMED_SPEED,)
        return self._of(mix, known[min(cores, enough)], *assumed)

    def _speeds_of(self, hosts: PricedHosts) -> _Speeds | None:
        """Return how fast a core there is over one of the run's host; None: not known."""
        return self.speeds.relative(hosts.instance_type, self.own_type)

    def _with_sync(self, found: Prediction, world: int) -> tuple[Prediction, str]:
        """Return a prediction with gradient sync of a number of ranks, and what is assumed of it.

        A ring sends 2 (n - 1) / n times the gradients over each of its connections.
        """
        now = len(self.steps.ranks)
        own_share = 1.0 - self.steps.data_wait_share
        if self.sync_is_measured:
            grown = ((world - 1) / world) / ((now - 1) / now) - 1.0
            share, text = self.steps.share("sync") * grown, "gradient sync as between its ranks"
            slower = Estimate(share, share, share)
        else:
            most = _UNMEASURED_SYNC * own_share
            slower = Estimate(most / 2, 0.0, most)
            text = f"gradient sync, not measured, takes up to {_UNMEASURED_SYNC:.0%} of a step"
        # While data is waited for, sync takes place in that time.
        hidden = found.wait_share
        return replace(
            found,
            speedup=found.speedup / (1.0 + slower.value * (1.0 - hidden)),
            low=found.low / (1.0 + slower.high * (1.0 - hidden)),
            high=found.high / (1.0 + slower.low * (1.0 - hidden)),
        ), text

    def _of(
        self, mix: HostMix, found: Prediction, *assumptions: str, times: float = 1.0,
        workers: int | None = None,
    ) -> PredictedMix:  # fmt: skip
        speedups = Estimate(found.speedup, found.low, found.high)
        return PredictedMix(
            mix=mix, workers=workers, samples_per_s=speedups.times(self.rate * times),
            speedup=found.speedup * times, wait_share=found.wait_share, assumptions=assumptions,
        )  # fmt: skip


def _enough_cores(by_cores: Mapping[float, Prediction]) -> float:
    """Return from how many auxiliary cores on more of them give nothing, as far as known."""
    known = sorted(by_cores.items())
    for place, (cores, found) in enumerate(known):
        more = [each.speedup for other, each in known[place:] if other >= _MORE_CORES * cores]
        # Whole batches are made by whole cores, so that the next number of them may give nothing.
        is_level = len(more) > 1 and max(more) < _NO_GAIN * found.speedup
        if found.wait_share < _NO_WAIT or is_level:
            return cores
    return float("inf")


def _predicted(model: _RunModel, own: HostMix, market: Market) -> Iterator[PredictedMix]:
    """Yield what is predicted of each mix, the run's own first."""
    training = own.training
    for mix in host_mixes(own, market):
        if mix.kind == "as it is":
            yield model.unchanged(mix)
        elif mix.kind == "more hosts":
            yield model.on_more_hosts(mix, training)
        elif mix.kind != "auxiliary hosts" or mix.auxiliary is None:
            yield model.on_other_host(mix, training)
        else:
            hosts = mix.auxiliary.hosts / training.hosts
            cores = hosts * (mix.auxiliary.cores or 0.0) / model.ranks
            if cores <= _MOST_AUXILIARY_CORES:
                yield model.with_auxiliary(mix, mix.auxiliary, cores)


def remedied_mixes(now: PredictedMix, diagnosis: Diagnosis) -> Iterator[PredictedMix]:
    """Yield what the doctor's remedies give on the run's own hosts.

    Rates are those of steps, which remedies for the time outside of steps do not change. Hosts that
    a remedy adds are mixes of their own, at their own prices.
    """
    seen: set[str] = set()
    for finding in diagnosis.findings:
        if finding.rule in OTHER_TIME_RULES:
            continue
        for remedy in finding.remedies:
            text = change_phrase(remedy)
            worth = (remedy.predicted_speedup or 0.0) >= _WORTH_MENTIONING
            adds_hosts = remedy.name in HOST_REMEDIES
            if finding.forecast or adds_hosts or not worth or text in seen:
                continue
            seen.add(text)
            speedup = remedy.predicted_speedup or 1.0
            rate = now.samples_per_s.value
            yield replace(
                now, remedy=text, needs_code=not remedy.overrides, speedup=speedup, wait_share=None,
                samples_per_s=Estimate(
                    rate * speedup, rate * (remedy.low or speedup), rate * (remedy.high or speedup)
                ),
            )  # fmt: skip
