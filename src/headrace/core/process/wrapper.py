"""Wrappers: programs that prepare their process for a command, and then run it or become it.

`python -P -m MODULE --name value ... -- command...`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn


def wrapper_command(
    python: str, module: str, options: Mapping[str, object], command: Sequence[str]
) -> list[str]:
    """Return the command line of a wrapper; the interpreter needs Headrace alone."""
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    # -P: a folder named headrace in the working folder must not be imported.
    return [python, "-P", "-m", module, *flags, "--", *command]


def read_wrapper_arguments(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options by name, and the command, if there is one."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names = [name.removeprefix("--") for name in arguments[:end:2]]
    return dict(zip(names, arguments[1:end:2], strict=True)), list(arguments[end + 1 :])


def become(command: list[str]) -> NoReturn:
    """Execute a command in place of this program; exit 127 where there is none."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    try:
        os.execvp(command[0], command)  # noqa: S606 - this process is to become the command
    except OSError as error:
        sys.stderr.write(f"headrace: {command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
