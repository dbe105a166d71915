"""The `headrace` command: its verbs, its standard streams, and how an error ends it.

A verb is a file of this package with `register(app)`, listed once in `VERBS`. A verb raises
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

    Python sets such a stream to None, and the next file opened would get its descriptor. Call this
    before anything else opens a file.
    """
    for descriptor in range(3):
        if not _is_open(descriptor):
            # The lowest free descriptor, so this one; child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Not closed before the process ends, like Python's own.
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
    """Return the whole command line, with the verbs in the order of the help."""
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
    """Run a command line within this process and return the exit code or message.

    Args:
        arguments: What follows `headrace`; None: the process's own arguments.
    """
    try:
        build_app()(arguments, prog_name="headrace")
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        return error.exit_code
    except SystemExit as end:  # typer always ends with it
        return end.code
    return 0


def _exit(code: str | int | None) -> None:
    """Exit; where other threads still run, without finalizing the interpreter.

    Threads of the object-store client run to the end, and a daemon thread may be in native code. If
    the interpreter is finalized meanwhile, either aborts the process: observed after a successful
    packing, and when the live view was left during a diagnosis.
    """
    from headrace.data.storage.remote_store import is_leaf

    has_threads = is_leaf() or any(thread.daemon for thread in threading.enumerate())
    if not isinstance(code, int | None) or not has_threads:
        sys.exit(code)
    with suppress(BrokenPipeError):  # the reader of a pipe has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def _root() -> None:
    """Keep the verbs as verbs: without a callback, typer makes a single verb the command itself."""


if __name__ == "__main__":
    main()
