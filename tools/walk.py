"""Counts the functions and files of Headrace between a command line and its script, or its end.

    python tools/walk.py run --profile off train.py

prints both; with WALK=list each function. What imports call does not count. Only a script that runs
without torchrun is followed, as this process itself starts it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = f"{os.sep}src{os.sep}headrace{os.sep}"


class Walk:
    """What ran so far: pairs of file and function."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call; a profile function of `sys.setprofile`."""
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        is_ours = event == "call" and PACKAGE in file and not name.startswith("<")
        if is_ours and not _is_in_import(frame):
            self.functions.add((file.partition(PACKAGE)[2], name))

    def end_at_script(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Print the walk and exit where the script is started; a hook of `sys.addaudithook`."""
        if event != "subprocess.Popen" or Path(sys.argv[-1]).name not in " ".join(
            map(str, arguments[1])
        ):
            return
        self.end()
        os._exit(0)

    def end(self) -> None:
        """Print the walk, and note nothing more."""
        sys.setprofile(None)
        files = {file for file, _ in self.functions}
        print(f"{len(self.functions)} functions in {len(files)} files")
        if os.environ.get("WALK") == "list":
            print(*sorted(f"  {file}: {name}" for file, name in self.functions), sep="\n")
        sys.stdout.flush()


def _is_in_import(frame: FrameType) -> bool:
    above = frame.f_back
    while above is not None:
        if above.f_code.co_name == "<module>" and PACKAGE in above.f_code.co_filename:
            return True
        above = above.f_back
    return False


def main() -> None:
    """Follow the command line in this process's arguments."""
    from headrace.cli.main import run_command_line

    walk = Walk()
    sys.addaudithook(walk.end_at_script)
    sys.setprofile(walk.note)
    run_command_line(sys.argv[1:])
    walk.end()  # of a command that starts no script


if __name__ == "__main__":
    main()
