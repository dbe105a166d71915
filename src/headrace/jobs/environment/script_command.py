"""The command line of a script: Python's, or that of a program, such as a shell script.

As on SageMaker, a script whose name does not end with .py may be any program: a shell script, or an
executable. There it is made executable first; here the file is left as it is, and where it may not
be executed, what its first line names runs it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from headrace.core import env
from headrace.core.errors import UsageError
from headrace.jobs.environment.script_environment import ScriptEnvironment

_PYTHON_SUFFIXES = {".py", ".pyw", ".pyc", ".pyz", ".zip"}
_SHELL = "/bin/sh"
_SHELLS = {".sh": _SHELL, ".bash": "bash", ".zsh": "zsh", ".ksh": "ksh"}
"""The shells of scripts that do not say themselves what runs them, by suffix."""
_HEAD_BYTES = 1024
_PYTHON = re.compile(r"python[\d.]*")


def script_command(
    script: str, arguments: Sequence[str], script_env: ScriptEnvironment, *, is_module: bool
) -> list[str]:
    """Return the command line of a script, which is a path or a module's name.

    Raises UsageError where the file can neither be run by Python nor as a program.
    """
    if script_env.folder is not None and not is_module:
        script = str(Path(script).absolute())
    program = None if is_module else _program(script)
    if script.startswith("-") and not is_module:
        script = f"./{script}"  # else it would be an option of Python's
    if program is None:
        python = env.PYTHON_EXEC.get() or sys.executable
        program = [python, "-u", *(["-m"] if is_module else []), script]
    return [*program, *script_env.arguments, *arguments]


def program_command(
    program: str, arguments: Sequence[str], script_env: ScriptEnvironment
) -> list[str]:
    """Return the command line of a program that is never run by Python; see `find_program`.

    Its own arguments come first: the script's name may be among them, as in `bash train.sh`. Raises
    UsageError where a file cannot be run.
    """
    command = [program]
    if "/" in program:
        path = str(Path(program).absolute()) if script_env.folder is not None else program
        command = _file_command(path, _head(path))
    return [*command, *arguments, *script_env.arguments]


def is_program(script: str) -> bool:
    """Return whether a script is started as a program, not by Python; raises UsageError."""
    return _program(script) is not None


def find_program(program: str, source_dir: str | None) -> str:
    """Return the path of a program, in the code folder or as typed, or its name, for PATH."""
    if source_dir is not None and (inside := Path(source_dir, program)).is_file():
        return str(inside) if "/" in str(inside) else f"./{inside}"
    if "/" not in program and shutil.which(program) is None and Path(program).is_file():
        return f"./{program}"  # where it lies counts for us, if not for PATH
    return program


def default_code_folder(script: str, *, is_module: bool, never_python: bool) -> Path:
    """Return the folder of a script's code where none is named: its own, absolute.

    That of a module, whose own is not known, is the current one; so is that of a program of this
    host, on PATH or beside the interpreter, as in `--no-python /bin/bash train.sh`.
    """
    here = Path(script).parent.resolve()
    if is_module:
        return Path.cwd()
    if not never_python and not is_program(script):
        return here
    folders = [*os.get_exec_path(env.whole_environment()), str(Path(sys.executable).parent)]
    of_host = {Path(each).resolve() for each in folders if each}
    return Path.cwd() if here in of_host else here


def check_program(program: str, path: str | None) -> None:
    """Raise UsageError, with the remedy, where there is no such program or it cannot be run.

    `path` is the script's own PATH, where it has one.
    """
    if "/" in program and Path(program).is_file():
        _file_command(program, _head(program))
    elif "/" in program or shutil.which(program, path=path) is None:
        raise UsageError(
            f"There is no program {program}: it is no file in {Path.cwd()} or in --source-dir, nor "
            "is it on PATH. Name one, or leave --no-python out for a Python script."
        )


def _program(script: str) -> list[str] | None:
    """Return the command line of a script that is a program; None: Python runs it."""
    path = Path(script)
    if path.suffix in _PYTHON_SUFFIXES or not path.is_file():
        return None  # of a pipe, as in <(command), nothing may be read here
    head = _head(script)
    words = _first_line(script, head)
    if words:
        return None if _is_python(words) else _file_command(script, head)
    if head.startswith(b"PK"):  # an archive with a __main__.py
        return None
    if path.suffix not in _SHELLS and b"\0" not in head:
        problem = _python_problem(path)
        if problem is None:
            return None
        if not os.access(path, os.X_OK):
            raise UsageError(
                f"{script} is not Python ({problem}), nor does its first line say what runs it. "
                "Begin it with a line such as #!/bin/sh, or name the script."
            )
    return _file_command(script, head)


def _file_command(script: str, head: bytes) -> list[str]:
    """Return the command line of a program file; raises UsageError where it cannot be run."""
    path = script if "/" in script else f"./{script}"  # else it would be looked up on PATH
    words, may_execute = _first_line(script, head), os.access(script, os.X_OK)
    if words:
        if not Path(words[0]).exists():
            raise UsageError(
                f"{script} is run by {words[0]}, as its first line says, and that is not on this "
                "host. Install it, or name another one there."
            )
        return [path] if may_execute else [*words, path]
    if b"\0" in head:
        if not may_execute:
            raise UsageError(f"{script} may not be executed. Run `chmod +x {script}`.")
        return [path]
    suffix = Path(script).suffix
    if suffix not in _SHELLS and not may_execute:
        raise UsageError(
            f"{script} may not be executed, and its first line does not say what runs it. Begin it "
            f"with a line such as #!/bin/sh, or run `chmod +x {script}`."
        )
    return [_SHELLS.get(suffix, _SHELL), path]  # as shells themselves start such files


def _head(script: str) -> bytes:
    try:
        with Path(script).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{script} cannot be read: {error.strerror}.") from error


def _first_line(script: str, head: bytes) -> list[str]:
    """Return the program that a file's #! line names, and its argument; raises UsageError."""
    if not head.startswith(b"#!"):
        return []
    line = head[2:].split(b"\n")[0]
    words = line.decode(errors="surrogateescape").split(None, 1)  # as the kernel reads it
    if line.endswith(b"\r") and not _is_python(words):
        raise UsageError(
            f"{script} has the line ends of Windows, with which no shell runs it. Convert it: "
            f"sed -i 's/\\r$//' {script}"
        )
    return [word.strip() for word in words] or [_SHELL]


def _is_python(words: Sequence[str]) -> bool:
    """Return whether a #! line names Python, of whatever version: the job's own runs it."""
    names = [Path(word).name for word in " ".join(words).split()]
    if names[:1] == ["env"]:
        names = [name for name in names[1:] if not name.startswith("-") and "=" not in name]
    return bool(names) and _PYTHON.fullmatch(names[0]) is not None


def _python_problem(path: Path) -> str | None:
    """Return why a file is no Python; None: it is."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error)
    return None
