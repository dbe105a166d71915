"""The `headrace` command: its verbs, its standard streams, and how an error ends it.

A verb is a file of this package, listed once in `VERBS`, with a function of its name, or with
`register(app)` where that is not all. They are imported late, after the torchrun process of a job
was started. A verb raises HeadraceError and never prints one: here it becomes one message and an
exit code (2 for wrong use, 1 for a fault, 130 for ctrl-C). A standard stream that is closed, as by
`>&-`, becomes /dev/null.
"""

from __future__ import annotations

import codecs
import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from headrace.core import env
from headrace.core.errors import HeadraceError, UsageError
from headrace.core.supported_platform import require_supported_platform

if TYPE_CHECKING:
    import typer


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


def print_any_text() -> None:
    """Have standard output show what its encoding lacks by its number (U+2026).

    Names of files are any bytes, and terminals may know less than UTF-8. Standard error does so.
    """
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and (
        stdout.errors == "strict" or codecs.lookup(stdout.encoding).name != "utf-8"
    ):
        stdout.reconfigure(errors="backslashreplace")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


VERBS = (
    "run", "sweep", "tune", "doctor", "report", "top", "profile", "compare", "runs", "cost", "data",
    "cluster",
)  # fmt: skip
"""The modules of the verbs, in the order of the help."""


def build_app() -> typer.Typer:
    """Return the whole command line."""
    import typer

    app = typer.Typer(
        name="headrace",
        help="Keeps accelerators fed: packs and streams training data, launches and resumes jobs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    shown = typer.Option(
        False,
        "--version", help="Print the version.", is_eager=True, callback=_version,
    )  # fmt: skip

    def root(*, version: bool = shown) -> None:
        """Keep the verbs as verbs: without a callback, typer makes a single one the command."""

    app.callback()(root)
    for verb in VERBS:
        module = import_module(f"headrace.cli.{verb}")
        if hasattr(module, "register"):
            module.register(app)
        else:
            app.command()(getattr(module, verb))
    return app


def main() -> None:
    """Run the command line and exit."""
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the verb begins: no traceback
    open_closed_streams()
    print_any_text()
    try:
        require_supported_platform()
    except HeadraceError as error:
        sys.exit(f"headrace: {error}")
    from headrace.jobs.torchrun_process import discard_early, start_early

    words = env.whole_command_line(sys.argv[1:])
    start_early(words)
    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = run_command_line(words)
    finally:
        discard_early()
    _exit(code)


def run_command_line(arguments: Sequence[str] | None = None) -> str | int | None:
    """Run a command line, by default this process's own, and return the exit code or message."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _check_current_folder()
        if words[:1] == ["run"]:
            if (code := _run_job(words[1:])) is not None:
                return code
            words = ["run", "--help"]
        build_app()(words, prog_name="headrace")
    except HeadraceError as error:
        from headrace.records.redaction import redact_text

        # Messages quote what was typed, or stands in a file, as it is.
        sys.stderr.write(f"headrace: {redact_text(str(error))}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:  # typer always ends with it
        return end.code
    return 0


def _check_current_folder() -> None:
    """Raise UsageError where the current folder is gone: paths as typed have no meaning there."""
    try:
        os.getcwd()  # noqa: PTH109 - a path is not wanted
    except OSError as error:
        raise UsageError(
            f"The current folder cannot be read ({error.strerror}): it was removed, say. Go to "
            "another one first, or to the new one of this name: cd PATH."
        ) from None


def _run_job(words: list[str]) -> int | None:
    """Run a job, and return its exit code; None where the words ask for help.

    Without typer, whose import alone would delay it by a tenth of a second.
    """
    from headrace.jobs.cli_args import asks_for_help, split_headrace_flags
    from headrace.jobs.run import run_job
    from headrace.jobs.spec import job_options

    if asks_for_help(words):
        return None
    own, rest = split_headrace_flags(words)
    flags = [flag for name, texts in own.items() for flag in job_options()[name].flags(texts)]
    return run_job([*flags, *rest])


def _exit(code: str | int | None) -> None:
    """Exit; where other threads still run, without finalizing the interpreter.

    Threads of the object-store client run to the end, and a daemon thread may be in native code. If
    the interpreter is finalized meanwhile, either aborts the process: observed after a successful
    packing, and when the live view was left during a diagnosis.
    """
    from headrace.data.storage.client.fork_state import is_leaf

    has_threads = is_leaf() or any(thread.daemon for thread in threading.enumerate())
    if not isinstance(code, int | None) or not has_threads:
        gc.freeze()  # the collections at the end would look through all libraries
        sys.exit(code)
    with suppress(BrokenPipeError):  # the reader of a pipe has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code or 0)


def _version(*, is_asked: bool) -> None:
    import typer

    from headrace import __version__

    if is_asked:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


if __name__ == "__main__":
    main()
