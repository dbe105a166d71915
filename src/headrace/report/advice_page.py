"""The page of advice on hosts: the recommendation, cost against throughput, and all mixes."""

from __future__ import annotations

from pathlib import Path

from headrace.core.units import format_usd
from headrace.decide.cost.advice import Advice
from headrace.decide.cost.predicted_mixes import PredictedMix
from headrace.report.charts.host_mixes import cost_against_throughput
from headrace.report.document import html_document, write_document
from headrace.report.formatting import format_share
from headrace.report.markup import Section, chart_place, element, explanation, section, table

ADVICE_FILE = "advice.html"


def write_advice(advice: Advice, output: str | Path) -> Path:
    """Write the page into a file or folder, and return its path; raises UsageError."""
    subtitle = f"{len(advice.mixes)} mixes of hosts for {advice.run}, as predicted of it"
    sections = [_advice_section(advice), _mixes_section(advice)]
    document = html_document(advice.run, "advice", sections, subtitle=subtitle)
    return write_document(document, output, ADVICE_FILE, flag="--html")


def _advice_section(advice: Advice) -> Section:
    return section(
        "advice",
        "Which hosts",
        element("p", advice.reason, class_="sentence info"),
        chart_place(
            "mixes",
            "Dollars per 1,000 samples against samples a second of each mix of hosts.",
            cost_against_throughput(advice),
        ),
        explanation(
            "Both axes are logarithmic: to the right is faster, downwards is cheaper. Mixes on the "
            "dotted line are those than which no other is both without a change of the script; the "
            "ring is the recommendation."
        ),
    )


def _mixes_section(advice: Advice) -> Section:
    head = (
        "Hosts", "Kind", "On the line", "$/hour", "Samples/s", "90% interval", "Data wait",
        "$/1,000 samples",
    )  # fmt: skip
    mixes = sorted(advice.mixes, key=lambda mix: mix.usd_per_1k_samples.value)
    texts = dict.fromkeys(text for mix in advice.mixes for text in mix.assumptions)
    return section(
        "all",
        "All mixes",
        table(head, [_row(mix, advice) for mix in mixes], numbers=5),
        explanation("Start-up is left out."),
        explanation(advice.left_out) if advice.left_out else None,
        *(explanation(f"Assumed: {text}.") for text in texts),
    )


def _row(mix: PredictedMix, advice: Advice) -> tuple[str, ...]:
    rate = mix.samples_per_s
    is_on_front = any(mix is each for each in advice.front)
    return (
        mix.name, "remedy" if mix.remedy else mix.mix.kind, "yes" if is_on_front else "",
        f"{mix.mix.usd_per_hour:,.3f}", f"{rate.value:,.4g}",
        f"{rate.low:,.3g} to {rate.high:,.3g}",
        "" if mix.wait_share is None else format_share(mix.wait_share),
        f"${format_usd(mix.usd_per_1k_samples.value)}",
    )  # fmt: skip
