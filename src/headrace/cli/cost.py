"""The `headrace cost` verbs: what a run cost and for what, and the prices that this comes from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import calibrate
from headrace.cli.json_output import print_json
from headrace.cli.parameters import Run, RunsDir, find_run
from headrace.core.errors import UsageError, check_choices

if TYPE_CHECKING:
    from headrace.decide.cost.advice import Advice
    from headrace.decide.cost.price_catalogue import PriceCatalogue
    from headrace.decide.cost.run_cost import Pricing

_SHOW_HELP = """Say what a run cost by group, what that went to, and what 1,000 samples cost.

Instance types are those of --group, or what EC2 and SageMaker say of this host.

Prices come from dated catalogues (headrace cost prices), on demand unless --spot is given.

Example: headrace cost show base --instance-type g5.xlarge
"""
_PRICES_HELP = """List the prices of instance types with day and source, and warn of old ones.

Example: headrace cost prices g5.xlarge g5.4xlarge
"""
_ADVISE_HELP = """Say on which hosts the run would be cheapest, or fast enough, as predicted of it.

Compares the same accelerator with more cores, auxiliary CPU hosts, several accelerators or hosts,
and what the doctor would change, by throughput and by dollars for 1,000 samples.

Example: headrace cost advise base --instance-type g5.xlarge --target 500
"""
_SIMULATE_HELP = """Simulate the run with many ranks: speed, efficiency, cost, demand on storage.

Loaders, stragglers and gradient sync are simulated from what was recorded; nothing is measured.

Example: headrace cost simulate base --ranks 64
"""
_PRICE_HELP = (
    "Dollars an hour of a host: USD of all, TYPE=USD of an instance type, GROUP=USD of a group's. "
    "May be repeated."
)
_FILES_HELP = (
    "A CSV file of prices, before the others. May be repeated; HEADRACE_PRICES names some."
)
_TYPE_HELP = "The instance type of all hosts, or GROUP=TYPE of a group's. May be repeated."
_REGION_HELP = "Whose prices count; by default us-east-1 or us-central1."
Prices = Annotated[list[str] | None, typer.Option(metavar="[NAME=]USD", help=_PRICE_HELP)]
Types = Annotated[list[str] | None, typer.Option(metavar="[GROUP=]TYPE", help=_TYPE_HELP)]
Region = Annotated[str, typer.Option(help=_REGION_HELP)]
Spot = Annotated[bool, typer.Option("--spot", help="The hosts are spot instances.")]
PriceFiles = Annotated[list[Path] | None, typer.Option(metavar="FILE", help=_FILES_HELP)]
_DAYS = re.compile(r"(\d+)\s*d?")


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="What a run cost and for what; the prices that this comes from.",
        rich_markup_mode="rich",
    )
    group.callback()(lambda: None)
    group.command(name="show", help=_SHOW_HELP)(_show)
    group.command(name="advise", help=_ADVISE_HELP)(_advise)
    group.command(name="calibrate", help=calibrate.HELP)(calibrate.calibrate)
    group.command(name="simulate", help=_SIMULATE_HELP)(_simulate)
    group.command(name="prices", help=_PRICES_HELP)(_prices)
    app.add_typer(group, name="cost")


def _show(
    run: Run = None,
    *,
    price: Prices = None,
    instance_type: Types = None,
    region: Region = "",
    spot: Spot = False,
    prices: PriceFiles = None,
    json: Annotated[bool, typer.Option("--json", help="Print the cost as JSON.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.decide.cost.run_cost import run_cost

    found = find_run(run, runs_dir)
    pricing = _pricing(price or (), instance_type or (), prices or (), region, spot=spot)
    cost = run_cost(found, pricing)
    if json:
        print_json(cost.to_json())
        return
    from headrace.cli.cost_report import print_run_cost

    print_run_cost(cost)


def _advise(
    run: Run = None,
    *,
    target: Annotated[
        float | None, typer.Option(min=0, help="At least so many samples a second.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Train on all samples within it: 2h, 30min.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, metavar="USD", help="Train on all samples for no more.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="All samples; by default those that the run trained on.")
    ] = 0,
    cloud: Annotated[
        str, typer.Option(help="aws, gcp or sagemaker; by default that of the run's hosts.")
    ] = "",
    price: Prices = None,
    instance_type: Types = None,
    region: Region = "",
    spot: Spot = False,
    prices: PriceFiles = None,
    speeds: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="How fast hosts are, by headrace cost calibrate."),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write a page: cost against throughput.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.decide.cost.advice import Goal, advise
    from headrace.decide.cost.host_mixes import CLOUDS
    from headrace.decide.cost.host_speeds import HostSpeeds, user_speed_files
    from headrace.decide.cost.predicted_mixes import compare_hosts

    if cloud:
        check_choices([cloud], CLOUDS, "--cloud ")
    goal = Goal(
        samples_per_s=target, deadline_s=None if deadline is None else _deadline_s(deadline),
        budget_usd=budget, samples=samples,
    )  # fmt: skip
    pricing = _pricing(price or (), instance_type or (), prices or (), region, spot=spot)
    known = HostSpeeds([*(speeds or ()), *user_speed_files()])
    found = compare_hosts(find_run(run, runs_dir), pricing, cloud=cloud, speeds=known)
    advice = advise(found, goal)
    _show_advice(advice, html=html, json=json)


def _show_advice(advice: Advice, *, html: str | None, json: bool) -> None:
    if html is not None:
        from headrace.report.advice_page import write_advice

        path = write_advice(advice, html)
        if not json:
            typer.echo(str(path))
    if json:
        print_json(advice.to_json())
    elif html is None:
        from headrace.cli.advice_report import print_advice

        print_advice(advice)


def _simulate(
    run: Run = None,
    *,
    ranks: Annotated[int, typer.Option(min=1, help="How many ranks, at most.")] = 64,
    hosts: Annotated[
        int | None,
        typer.Option(min=1, help="On how many hosts; by default as many ranks on each as now."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Workers of each rank's loader; by default as now.")
    ] = None,
    auxiliary_cores: Annotated[
        float, typer.Option(min=0, help="Cores of auxiliary hosts for each rank.")
    ] = 0.0,
    storage_limit: Annotated[
        str | None, typer.Option(metavar="BYTES", help="What storage gives a second: 10GB.")
    ] = None,
    price: Prices = None,
    instance_type: Types = None,
    region: Region = "",
    spot: Spot = False,
    prices: PriceFiles = None,
    json: Annotated[bool, typer.Option("--json", help="Print the simulation as JSON.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    from headrace.core.units import parse_bytes
    from headrace.decide.cost.rank_scaling import ScalingRequest, simulate_ranks

    request = ScalingRequest(
        ranks=ranks, hosts=hosts, workers=workers, auxiliary_cores=auxiliary_cores,
        storage_bytes_per_s=None if storage_limit is None else parse_bytes(storage_limit),
    )  # fmt: skip
    pricing = _pricing(price or (), instance_type or (), prices or (), region, spot=spot)
    scaling = simulate_ranks(find_run(run, runs_dir), request, pricing)
    if json:
        print_json(scaling.to_json())
        return
    from headrace.cli.scaling_report import print_scaling

    print_scaling(scaling)


def _prices(
    types: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TYPE]...", help="Instance types; all by default."),
    ] = None,
    *,
    region: Annotated[str, typer.Option(help="Only prices of this region.")] = "",
    max_age: Annotated[
        str, typer.Option(help="Warn of prices that are older than so many days.")
    ] = "180d",
    prices: PriceFiles = None,
    json: Annotated[bool, typer.Option("--json", help="Print the prices as JSON.")] = False,
) -> None:
    from headrace.decide.cost.price_catalogue import old_prices

    catalogue = _catalogue(prices or (), {})
    shown = [catalogue.find(name, region) for name in types or ()] or [
        each for each in catalogue.prices if region in ("", each.region)
    ]
    if not shown:
        known = sorted({each.region for each in catalogue.prices if each.region})
        raise UsageError(f"--region {region}: no price is known. There are: {', '.join(known)}.")
    if json:
        from headrace.decide.cost.run_cost import price_json

        print_json({"prices": [price_json(each) for each in shown]})
        return
    from headrace.cli.cost_report import print_prices

    days = _days(max_age)
    today = datetime.now(UTC).date()
    print_prices(shown, old_prices(shown, days, today), days)


def _pricing(
    prices: Sequence[str], types: Sequence[str], files: Sequence[Path], region: str, *, spot: bool
) -> Pricing:
    from headrace.decide.cost.run_cost import Pricing

    rates = dict(_rate(text) for text in prices)
    return Pricing(
        catalogue=_catalogue(files, {name: usd for name, usd in rates.items() if name}),
        rates=rates,
        types=dict(_named(text) for text in types),
        region=region,
        spot=spot,
    )


def _catalogue(files: Sequence[Path], rates: dict[str, float]) -> PriceCatalogue:
    from headrace.decide.cost.price_catalogue import PriceCatalogue, user_files

    return PriceCatalogue([*files, *user_files()], rates)


def _named(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`; the name is "" where there is none."""
    name, equals, value = text.rpartition("=")
    if (equals and not name) or not value:
        raise UsageError(f"{text!r}: write it as VALUE for all hosts, or NAME=VALUE.")
    return name, value


def _rate(text: str) -> tuple[str, float]:
    name, value = _named(text)
    try:
        usd = float(value)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < float("inf"):
        raise UsageError(f"--price {text}: {value} is no number of dollars an hour.")
    return name, usd


def _deadline_s(text: str) -> float:
    from headrace.jobs.options import parse_max_run

    try:
        found = parse_max_run(text)
    except UsageError:
        found = 0.0
    if found <= 0:
        raise UsageError(f"--deadline {text}: write it as 2h, 30min or 90s.")
    return found


def _days(text: str) -> int:
    match = _DAYS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--max-age {text}: write it in days, as 180d.")
    return int(match[1])
