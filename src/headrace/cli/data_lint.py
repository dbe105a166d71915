"""`headrace data lint`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.data_options import Json
from headrace.core.units import format_bytes


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("lint")(lint)


def lint(
    url: Annotated[str, typer.Argument(metavar="URL", help="The dataset's folder.")],
    *,
    json: Json = False,
) -> None:
    """Check every checksum of every member; name each fault. Exit code 1 if there is any.

    Example: [bold]headrace data lint s3://bucket/train[/bold]
    """
    from headrace.cli.data_progress import ProgressDisplay
    from headrace.cli.data_report import print_json
    from headrace.data.shards.lint import lint as lint_dataset
    from headrace.data.storage import declare_leaf

    declare_leaf()
    with ProgressDisplay() as progress:
        report = lint_dataset(url, progress=progress)
    if json:
        print_json(asdict(report))
    else:
        for fault in report.faults:
            typer.echo(f"{fault.kind:<10} {fault}")
        verdict = f"{len(report.faults)} faults" if report.faults else "no faults"
        typer.echo(
            f"{report.url}: {verdict} in {report.num_shards:,} shards, {report.num_samples:,} "
            f"samples, {report.num_members:,} files ({format_bytes(report.read_bytes)} read)"
        )
    if report.faults:
        raise typer.Exit(1)
