"""`headrace data info`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.data_options import Json


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("info")(info)


def info(
    url: Annotated[str, typer.Argument(metavar="URL", help="The dataset's folder.")],
    *,
    json: Json = False,
) -> None:
    """Show what a dataset holds.

    Example: [bold]headrace data info s3://bucket/train[/bold]
    """
    from headrace.cli.data_report import as_json, describe, print_json
    from headrace.data.shards.index import open_index
    from headrace.data.storage import declare_leaf

    declare_leaf()
    index = open_index(url)
    key = index.locate(0).key
    if json:
        print_json(as_json(index.url, index.manifest) | {"first_key": key})
        return
    typer.echo("\n".join([index.url, *describe(index.manifest), f"first key    {key}"]))
