"""`headrace data`: the group of verbs for datasets."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(no_args_is_help=True, help="Pack, check and look into datasets.")
    app.add_typer(group, name="data")
