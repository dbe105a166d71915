"""`headrace`: its verbs, its standard streams, and how an error ends it.

A verb is a file of this package with `register(app)`, named once in `VERBS`. A verb raises
HeadraceError and never prints one: here it becomes one message and an exit code (2 for wrong use, 1
for a fault, 130 for ctrl-C). A standard stream that is closed, as by `>&-`, becomes /dev/null.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import typer

from headrace.cli.cluster import register as register_cluster
from headrace.cli.compare import register as register_compare
from headrace.cli.data import register as register_data
from headrace.cli.doctor import register as register_doctor
from headrace.cli.profile import register as register_profile
from headrace.cli.report import register as register_report
from headrace.cli.run import register as register_run
from headrace.cli.run import register_resume
from headrace.cli.top import register as register_top
from headrace.cli.tune import register as register_tune
from headrace.core.errors import HeadraceError


def open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed.

    Python has None for such a stream, and the next file opened would get its descriptor. Call this
    before anything else opens a file.
    """
    for descriptor in range(3):
        if not _is_open(descriptor):
            # The lowest that is free, so this very one; what is started inherits it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # For as long as the process lives, as Python opens its own.
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


VERBS: tuple[Callable[[typer.Typer], None], ...] = (
    register_run,
    register_resume,
    register_tune,
    register_doctor,
    register_report,
    register_top,
    register_profile,
    register_compare,
    register_data,
    register_cluster,
)


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
    open_closed_streams()
    _exit(run_command_line())


def run_command_line(arguments: Sequence[str] | None = None) -> str | int | None:
    """Run a command line within this process and return what to exit with.

    Args:
        arguments: What follows `headrace`; None: the process's own.
    """
    try:
        build_app()(arguments, prog_name="headrace")
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        return error.exit_code
    except SystemExit as end:  # how typer ends, whatever the outcome
        return end.code
    return 0


def _exit(code: str | int | None) -> None:
    """Exit; where a thread may still want the interpreter, without taking it apart.

    Those of the object-store client live on to the end, and a daemon thread may be in the middle
    of native code. Once the interpreter is gone, either ends the process with an abort: seen after
    a packing that had succeeded, and as the live view was left while a diagnosis was made.
    """
    from headrace.data.storage.remote_store import is_leaf

    at_work = is_leaf() or any(thread.daemon for thread in threading.enumerate())
    if not isinstance(code, int | None) or not at_work:
        sys.exit(code)
    with suppress(BrokenPipeError):  # the reader of a pipe has gone; nobody is left to be told
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def _root() -> None:
    """Hold the verbs: with a callback, typer keeps them as verbs even while there is only one."""


if __name__ == "__main__":
    main()
