"""`headrace data`: the group of verbs for datasets."""

from __future__ import annotations

import typer

from headrace.cli.data_cat import register as register_cat
from headrace.cli.data_index import register as register_index
from headrace.cli.data_info import register as register_info
from headrace.cli.data_lint import register as register_lint
from headrace.cli.data_pack import register as register_pack


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Pack, index, check and look into datasets.",
        rich_markup_mode="rich",
    )
    for register_verb in (
        register_pack,
        register_index,
        register_info,
        register_lint,
        register_cat,
    ):
        register_verb(group)
    app.add_typer(group, name="data")
