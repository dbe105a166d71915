"""`headrace`: its verbs, and how an error ends it.

A verb is a file of this package with `register(app)`, named once in `VERBS`. A verb raises
HeadraceError and never prints one: here it becomes one message and an exit code (2 for wrong use,
1 for a fault, 130 for ctrl-C).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from headrace.cli import data, run
from headrace.core.errors import HeadraceError

VERBS: tuple[Callable[[typer.Typer], None], ...] = (run.register, data.register)


def build_app() -> typer.Typer:
    """Return the whole command line, verbs in the order in which they are shown."""
    app = typer.Typer(
        name="headrace",
        help="Keeps accelerators fed: packs and streams training data, launches and resumes jobs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_root)
    for register in VERBS:
        register(app)
    return app


def main() -> None:
    """Run the command line and exit."""
    try:
        build_app()(prog_name="headrace")
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        sys.exit(error.exit_code)


def _root() -> None:
    """Hold the verbs: with a callback, typer keeps them as verbs even while there is only one."""


if __name__ == "__main__":
    main()
