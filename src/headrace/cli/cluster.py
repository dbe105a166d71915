"""`headrace cluster`: the group of verbs for clusters."""

from __future__ import annotations

import typer

from headrace.cli.cluster_env import register as register_env
from headrace.cli.cluster_join import register as register_join


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Make a cluster of a job's hosts; show what scripts on them are told.",
        rich_markup_mode="rich",
    )
    group.callback()(_root)
    register_join(group)
    register_env(group)
    app.add_typer(group, name="cluster")


def _root() -> None:
    """Hold the verbs: with a callback, typer keeps them as verbs even while there is only one."""
