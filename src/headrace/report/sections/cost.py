"""The section that says what the run cost, where the prices of its hosts are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.units import format_seconds, format_usd
from headrace.report.formatting import UNKNOWN
from headrace.report.markup import Section, definitions, explanation, note, section, table
from headrace.report.page_data import PageData

if TYPE_CHECKING:
    from headrace.decide.cost.run_cost import GroupCost, RunCost

_HEAD = ("Group", "Instance type", "Price", "Hosts", "$ an hour each", "$")


def cost_section(data: PageData) -> Section | None:
    """Return the section on the run's cost; None where a price is not known."""
    cost = data.cost
    if cost is None:
        return section("cost", "Cost", note(data.cost_fault)) if data.cost_fault else None
    return section(
        "cost",
        "Cost",
        explanation(
            cost.sentence,
            " All hosts are paid for from the begin of each attempt to its end, on demand.",
        ),
        table(_HEAD, [_row(group) for group in cost.groups], numbers=3),
        definitions(_facts(cost), class_="phases"),
    )


def _row(group: GroupCost) -> tuple[str, ...]:
    price, origin = group.price, UNKNOWN
    if price is not None:
        day = "" if price.day is None else price.day.isoformat()
        origin = ", ".join(filter(None, (price.region, day, price.source or price.catalogue)))
    return (
        group.name, group.instance_type, origin, f"{group.hosts}", f"{group.usd_per_hour:.3f}",
        format_usd(group.usd),
    )  # fmt: skip


def _facts(cost: RunCost) -> dict[str, str]:
    """Return what the dollars went to, and those of 1,000 samples and of an epoch, if known."""
    facts = {"All attempts": f"{cost.attempts}, {format_seconds(cost.seconds)}"}
    if cost.failed_attempts:
        facts["Failed attempts"] = f"{cost.failed_attempts}, ${format_usd(cost.failed_usd)}"
    if cost.usd_per_1k_samples is not None:
        facts["1,000 samples"] = f"${format_usd(cost.usd_per_1k_samples)}"
    if cost.usd_per_epoch is not None:
        facts["An epoch"] = f"${format_usd(cost.usd_per_epoch)}"
    return facts
