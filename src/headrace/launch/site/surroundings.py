"""What a script finds around it beside what its contract says: variables, and what it imports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.launch.script_flags import ScriptOptions
from headrace.launch.site.sites import Site

_FOLDER = "dependencies"


def with_surroundings(site: Site, options: ScriptOptions, folder: Path) -> Site:
    """Return a site with the script's own variables, and its dependencies to be imported.

    Args:
        site: What the script gets by its contracts.
        options: What the command line asks for beside it.
        folder: The run's; links to the dependencies lie there.

    Raises:
        UsageError: A variable contradicts what the contract says, or two dependencies one another.
        LaunchError: The links cannot be made.
    """
    if not options.environment and not options.dependencies:
        return site
    check_environment(options.environment, site.environment)
    paths = [site.environment.get(env.PYTHONPATH.name) or env.PYTHONPATH.get()]
    paths.insert(0, options.environment.get(env.PYTHONPATH.name))
    if options.dependencies:
        paths.append(str(_linked(options.dependencies, folder / _FOLDER)))
    joined = ":".join(path for path in paths if path)
    beside = {env.PYTHONPATH.name: joined} if joined else {}
    return replace(site, environment={**site.environment, **options.environment, **beside})


def check_environment(environment: Mapping[str, str], told: Mapping[str, str]) -> None:
    """Raise UsageError where a variable of the command line contradicts what the contract says.

    Args:
        environment: The command line's.
        told: What the script is told, by the variables' names.
    """
    for name, value in environment.items():
        if told.get(name, value) != value and name != env.PYTHONPATH.name:
            raise UsageError(
                f"--environment {name}={value}: the contract says {name}={told[name]}. Leave it "
                "out, or take another name."
            )


def joined_environment(
    site: Mapping[str, str | None], recorded: Mapping[str, str | None]
) -> dict[str, str | None]:
    """Return the variables of a script that is recorded; what both put on the path, it has."""
    paths = [recorded.get(env.PYTHONPATH.name), site.get(env.PYTHONPATH.name)]
    entries = dict.fromkeys(part for path in paths if path for part in path.split(":"))
    beside = {env.PYTHONPATH.name: ":".join(entries)} if entries else {}
    return {**site, **recorded, **beside}


def _linked(dependencies: tuple[str, ...], folder: Path) -> Path:
    """Return a folder in which each dependency is found by its own name, as in SageMaker's code."""
    places: dict[str, str] = {}
    for path in dependencies:
        name = Path(path).name
        if places.setdefault(name, path) != path:
            raise UsageError(
                f"--dependency {path} and --dependency {places[name]} have one name: a script "
                "could import one of them alone. Rename one."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in places.items():
            draft = folder / f".{name}.{os.getpid()}"
            draft.unlink(missing_ok=True)
            draft.symlink_to(Path(path).absolute())
            draft.replace(folder / name)
    except OSError as error:
        raise LaunchError(
            f"What the script imports cannot be linked in {folder}: {error}. Make room, or take "
            "another folder with --run-dir."
        ) from error
    return folder
