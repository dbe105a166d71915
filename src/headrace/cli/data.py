"""`headrace data`: the group of verbs for datasets."""

from __future__ import annotations

import typer

from headrace.cli import data_cat, data_index, data_info, data_lint, data_pack


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Pack, index, check and look into datasets.",
        rich_markup_mode="rich",
    )
    for verb in (data_pack, data_index, data_info, data_lint, data_cat):
        verb.register(group)
    app.add_typer(group, name="data")
