"""Source locations: folders of libraries and of the user's project, and lines that led to a call.

What is a library is judged by the folders in which its interpreter keeps installed code, never by
the look of a path: a repository may be called pytorch or site-packages-demo, or be in ~/.local/lib.
"""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType

_PARENT = f"{Path(__file__).parents[2]}/"
PACKAGE = f"{Path(__file__).parents[1]}/"
"""The folder of this package."""
SITECUSTOMIZE_DIR = f"{PACKAGE}bootstrap/pythonpath"
"""First entry of PYTHONPATH: its sitecustomize prepares the processes of a job."""
SMDDP_STAND_IN_DIR = f"{PACKAGE}bootstrap/smddp"
"""Last entry of a script's path on SageMaker: a stand-in of its library smdistributed."""

LIBRARIES, PACKAGE_FOLDER, PROJECT = "library", "package", "project"
"""Kinds of folders of code: see the fields of CodeFolders."""
_GUESSED = re.compile(r".*/(?:(?:site|dist)-packages|lib(?:64)?/python\d?[^/]*)/")
_INSTALLED_NAMES = frozenset({"site-packages", "dist-packages"})
_MOST_ENTRIES = 10_000  # of a folder on the import path that are looked at


@dataclass(frozen=True, slots=True)
class CodeFolders:
    """Folders of code, without a slash at the end; of a file's folders the deepest one counts.

    With none at all, as in records of an older version, libraries are guessed by usual paths.
    """

    libraries: tuple[str, ...] = ()  # from which installed modules are imported, and Python's own
    packages: tuple[str, ...] = ()  # installed packages anywhere, such as torch's own checkout
    projects: tuple[str, ...] = ()  # of the user's script

    def module_file(self, file: str) -> str:
        """Return a library's file as below its import folder: PIL/Image.py; "" if it is none."""
        if file.startswith("<"):  # generated, or frozen into the interpreter
            return file
        if not (self.libraries or self.packages):
            return _guess_module_file(file)
        deepest = max(
            (each for each in self._all if file.startswith(f"{each}/")), key=len, default=""
        )
        if not deepest or deepest in self.projects:
            return ""
        begin = deepest.rindex("/") if deepest in self.packages else len(deepest)
        return file[begin:].lstrip("/")

    def is_library(self, file: str) -> bool:
        """Return whether a source file belongs to Python, an installed package or Headrace."""
        return self.module_file(file) != ""

    @property
    def _all(self) -> tuple[str, ...]:
        return self.libraries + self.packages + self.projects


def _guess_module_file(file: str) -> str:
    if file.startswith(PACKAGE):
        return file.removeprefix(_PARENT)
    found = _GUESSED.match(file)
    return file[found.end() :] if found else ""


def code_folders() -> CodeFolders:
    """Return the folders of this process's code, by its import path as it is now."""
    main, torch = (
        getattr(sys.modules.get(name), "__file__", None) or "" for name in ("__main__", "torch")
    )
    return find_code_folders(tuple(map(str, sys.path)), main, torch)


@lru_cache(maxsize=8)
def find_code_folders(import_path: tuple[str, ...], main: str, torch: str) -> CodeFolders:
    """Return the folders of code of this interpreter.

    Args:
        import_path: As `sys.path`.
        main: The file of the user's script; empty if there is none.
        torch: torch's file, wherever it is imported from; empty if it is not imported.
    """
    known = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    known |= {*getattr(site, "getsitepackages", list)(), _user_site()}
    installed = _spellings(known)
    spelled = (Path(main).absolute(), Path(main).resolve()) if main else ()
    projects = {str(_project_of(each)) for each in spelled}
    if any(each in installed or _is_below(each, _site_folders(installed)) for each in projects):
        projects = set()  # a library's own program
    if main and (scripts := _entry_scripts(Path(main))):
        installed, projects = installed | scripts, set()
    for entry in map(Path, filter(None, import_path)):
        if str(entry.absolute()) not in projects and _holds_installed(entry):
            installed |= _spellings([str(entry)])
    packages = _spellings([PACKAGE, str(Path(torch).parent) if torch else ""])
    return CodeFolders(
        libraries=tuple(sorted(installed)),
        packages=tuple(sorted(packages)),
        projects=tuple(sorted(projects)),
    )


def _entry_scripts(main: Path) -> set[str]:
    """Return the folder of commands that installed packages bring, if a program is one of these.

    Such as yolo and litgpt, which train in their own process. A script has a suffix.
    """
    schemes = (sysconfig.get_default_scheme(), f"{os.name}_user")
    folders = _spellings(sysconfig.get_path("scripts", scheme) for scheme in schemes)
    return folders if not main.suffix and str(main.absolute().parent) in folders else set()


def _project_of(main: Path) -> Path:
    """Return the folder of a script: that of the outermost package it is in, or its own.

    A module that is run as `python -m mine.tools.train` imports the rest of its package.
    """
    folder = main.parent
    while (folder / "__init__.py").is_file() and (folder.parent / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _user_site() -> str:
    try:
        return site.getusersitepackages()
    except (AttributeError, KeyError, OSError):  # no home, or a site module of an older virtualenv
        return ""


def _spellings(folders: Iterable[str | None]) -> set[str]:
    """Return folders as they are written and with links followed, without the root."""
    written = [Path(each).absolute() for each in folders if each]
    return {str(each) for each in [*written, *(each.resolve() for each in written)]} - {"/"}


def _site_folders(folders: Iterable[str]) -> list[str]:
    """Return the folders of installed packages among those of libraries."""
    return [each for each in folders if Path(each).name in _INSTALLED_NAMES]


def _is_below(folder: str, others: Iterable[str]) -> bool:
    return any(folder.startswith(f"{each}/") for each in others)


def _holds_installed(folder: Path) -> bool:
    """Return whether packages are installed in a folder of the import path.

    A project installed in place has no .dist-info beside its source; those of `pip install
    --target` do, and folders of other environments have the usual name.
    """
    if folder.name in _INSTALLED_NAMES:
        return True
    try:
        with os.scandir(folder) as entries:
            return any(each.name.endswith(".dist-info") for each in islice(entries, _MOST_ENTRIES))
    except OSError:  # no folder, such as a zip file
        return False


@dataclass(frozen=True, slots=True)
class CallPlace:
    """A line that led to a call; an empty file if there is none."""

    file: str = ""
    line: int = 0
    function: str = ""


def call_places(constructed: object = None) -> tuple[CallPlace, CallPlace]:
    """Return the innermost line of the script's code that led here, and of a library's within it.

    Frames of torch's loaders and of Headrace are skipped, and so are constructors of the object
    `constructed`, which call that of its base class. Without code of the script's, the first place
    is empty; the second is, if the script's own line made the call.
    """
    folders, library = code_folders(), CallPlace()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.stack reads source files
    while frame is not None:
        module_file = folders.module_file(frame.f_code.co_filename)
        if constructed is None or not _constructs(frame, constructed):
            if not module_file:
                return _place_of(frame), library
            if not (library.file or module_file.startswith(_PASSED_OVER)):
                library = _place_of(frame)
        frame = frame.f_back
    return CallPlace(), library


def _place_of(frame: FrameType) -> CallPlace:
    return CallPlace(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def _constructs(frame: FrameType, constructed: object) -> bool:
    """Return whether a frame is in a constructor of an object."""
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_argcount:
        return False
    return frame.f_locals.get(code.co_varnames[0]) is constructed


_PASSED_OVER = ("headrace/", "torch/utils/data/", "<frozen")


def script_location() -> tuple[str, int]:
    """Return file and line of the script's code that led here, else a library's, else ("", 0)."""
    script, library = call_places()
    place = script if script.file else library
    return place.file, place.line
