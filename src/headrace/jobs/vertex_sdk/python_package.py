"""Python packages of Vertex AI's jobs: source distributions and wheels, fetched and unpacked.

On the service pip installs them in the container, with what they need. Here they are unpacked into
a folder from which the job's module is imported, and what they need has to be installed.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_string
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import InvalidRequirement, Requirement

from headrace.core.errors import HeadraceError, UsageError
from headrace.data.storage import open_store, split_url
from headrace.records.run_folder import runs_folder

_FOLDER = ".packages"
"""Of unpacked packages, in the runs folder."""
_UNPACKED = "code"
_SDISTS, _WHEELS = (".tar.gz", ".tgz", ".zip"), (".whl",)


def unpack_packages(uris: Sequence[str], where: str) -> Path:
    """Return a folder from which all modules of some packages can be imported.

    Args:
        uris: Paths or URLs of source distributions or wheels.
        where: Who names them, for messages.

    Raises:
        UsageError: One is not there or damaged, or needs a package that is not installed.
    """
    if not uris:
        raise UsageError(f"{where}: name the package, a source distribution or a wheel.")
    contents = [(uri, _read(uri, where)) for uri in uris]
    digests = b"".join(hashlib.sha256(data).digest() for _, data in contents)
    packages = runs_folder().absolute() / _FOLDER
    folder = packages / hashlib.sha256(digests).hexdigest()[:16]
    if not folder.is_dir():
        packages.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=packages) as scratch:
            made = Path(scratch, _UNPACKED)
            made.mkdir()
            for uri, data in contents:
                _unpack(data, uri, made, where)
            _move(made, folder)
    return folder


def _move(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise


def _read(uri: str, where: str) -> bytes:
    if not uri.endswith((*_SDISTS, *_WHEELS)):
        raise UsageError(
            f"{where}: {uri} is no package: give a source distribution (.tar.gz) or a wheel "
            "(.whl), as `python -m build` makes them."
        )
    try:
        folder, name = split_url(uri)
        return bytes(open_store(folder).get(name))
    except UsageError:
        raise
    except HeadraceError as error:
        raise UsageError(f"{where}: the package cannot be had: {error}") from error


def _unpack(data: bytes, uri: str, into: Path, where: str) -> None:
    """Unpack the modules of a package; a distribution's own folder, and its `src`, are left out."""
    try:
        members = dict(_wheel_members(data) if uri.endswith(_WHEELS) else _sdist_members(data, uri))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: {uri} is damaged: {error}.") from error
    _check_needs(members, uri, where)
    for name, content in members.items():
        place = into / name
        if not place.resolve().is_relative_to(into.resolve()):
            raise UsageError(f"{where}: {uri} has a file outside of its folder: {name}.")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _wheel_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for each in archive.infolist():
            if not each.is_dir():
                yield each.filename, archive.read(each)


def _sdist_members(data: bytes, uri: str) -> Iterator[tuple[str, bytes]]:
    found = dict(_wheel_members(data) if uri.endswith(".zip") else _tar_members(data))
    roots = {name.partition("/")[0] for name in found}
    if len(roots) == 1:  # NAME-VERSION
        found = {name.partition("/")[2]: content for name, content in found.items()}
    has_src = any(name.startswith("src/") for name in found)
    for name, content in found.items():
        yield (name.removeprefix("src/") if has_src else name), content


def _tar_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for each in archive:
            file = archive.extractfile(each) if each.isfile() else None
            if file is not None:
                yield each.name, file.read()


def _check_needs(members: dict[str, bytes], uri: str, where: str) -> None:
    """Raise UsageError where a package's metadata asks for one that is not installed."""
    described = [
        name for name in members
        if name.endswith((".dist-info/METADATA", "PKG-INFO"))
    ]  # fmt: skip
    needs = [
        need
        for name in described
        for need in message_from_string(members[name].decode(errors="replace")).get_all(
            "Requires-Dist", []
        )
    ]
    missing = sorted({need for need in needs if not is_installed(need)})
    if missing:
        quoted = " ".join(f"'{need}'" for need in missing)
        raise UsageError(
            f"{where}: {uri} needs what is not installed here: {sys.executable} -m pip install "
            f"{quoted}"
        )


def is_installed(requirement: str) -> bool:
    """Whether what a requirement asks for is installed; of extras it is not asked."""
    try:
        need = Requirement(requirement)
    except InvalidRequirement:
        return False
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return True
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return False
    return need.url is None and need.specifier.contains(version, prereleases=True)
