"""Python environments and packages for tests that install: thrown away with the test."""

from __future__ import annotations

import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path


def make_environment(folder: Path) -> Path:
    """Make an environment that has what this one has and can be installed into.

    Returns:
        Its interpreter.
    """
    venv.create(folder, symlinks=True)  # without pip
    (own,) = folder.glob("lib/python*/site-packages")
    outer = sysconfig.get_path("purelib")
    (own / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
    return folder / "bin" / "python"


def packages_of(python: Path) -> set[str]:
    """The modules that were installed into such an environment, but for pip's own notes."""
    return {path.stem for path in python.parents[1].glob("lib/python*/site-packages/*.py")}


def make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """Make a package of one module, NAME.VERSION its version."""
    folder.mkdir(parents=True, exist_ok=True)
    dist_info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{dist_info}/METADATA": "".join(
            metadata + [f"Requires-Dist: {each}\n" for each in requires]
        ),
        f"{dist_info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{dist_info}/RECORD"] = "".join(
        f"{each},,\n" for each in [*files, f"{dist_info}/RECORD"]
    )
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel
