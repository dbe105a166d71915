"""Runs a program that shows a URL as a folder, and takes the folder away whatever ends.

`python -m headrace.data.mounts.guardian --parent PID --folder FOLDER -- command...` ends when that
process does, by SIGTERM, or when the command ends: the program may find its folder in use, and
leave it behind. Its exit code is the command's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core.lifetime import die_with_parent
from headrace.core.tied import tied_command
from headrace.data.mounts.programs import take_away

_END_S = 5.0
_ASKING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def guarded_command(folder: Path, parent_pid: int, command: Sequence[str]) -> list[str]:
    """Return the command line that does so for a command which shows something at a folder."""
    own = [sys.executable, "-P", "-m", "headrace.data.mounts.guardian"]
    return [*own, "--parent", str(parent_pid), "--folder", str(folder), "--", *command]


def main(arguments: Sequence[str]) -> int:
    """Run the command until it, or whoever asked for it, ends."""
    end = arguments.index("--")
    told = dict(zip(arguments[:end:2], arguments[1:end:2], strict=True))
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_ASKING, signal.SIGCHLD})
    die_with_parent(int(told["--parent"]), signal.SIGTERM)
    program = subprocess.Popen(
        tied_command(sys.executable, arguments[end + 1 :]), start_new_session=True
    )
    while program.poll() is None:
        if signal.sigwait({*_ASKING, signal.SIGCHLD}) in _ASKING:
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(_END_S)
            break
    take_away(Path(told["--folder"]))
    program.kill()
    return program.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
