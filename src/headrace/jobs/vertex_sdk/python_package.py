"""Python packages of Vertex AI's jobs: source distributions and wheels, fetched and unpacked.

On the service pip installs them in the container, with what they need. Here they are unpacked into
a folder from which the job's module is imported, and what they need has to be installed.
"""

from __future__ import annotations

import hashlib
import io
import re
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from email import message_from_string
from importlib import metadata
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from headrace.core.errors import HeadraceError, UsageError
from headrace.data.storage import open_store, split_url
from headrace.jobs.vertex_sdk.unused_files import note_use, remove_unused
from headrace.records.run_folder import runs_folder

_FOLDER = ".packages"
"""Of unpacked packages, in the runs folder."""
_UNPACKED = "code"
_SDISTS, _WHEELS = (".tar.gz", ".tgz", ".zip"), (".whl",)
_OF_DISTRIBUTIONS = ("setup.py", "setup.cfg", "pyproject.toml", "PKG-INFO")
_METADATA = re.compile(r"(PKG-INFO|[^/]+\.egg-info/PKG-INFO|[^/]+\.dist-info/METADATA)")
_WHEEL_DATA = re.compile(r"^[^/]+\.data/(purelib|platlib)/")
_MOST_BYTES = 512 << 20
"""Of one unpacked package: those of jobs are code."""
_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError,
    RuntimeError,
)  # fmt: skip


def unpack_packages(uris: Sequence[str | Path], where: str) -> Path:
    """Return a folder from which all modules of some packages can be imported.

    Args:
        uris: Paths or URLs of source distributions or wheels.
        where: Who names them, for messages.

    Raises:
        UsageError: One is not there or damaged, or needs a package that is not installed.
    """
    if not uris:
        raise UsageError(f"{where}: name the package, a source distribution or a wheel.")
    contents = [(str(uri), _read(str(uri), where)) for uri in uris]
    digests = b"".join(hashlib.sha256(data).digest() for _, data in contents)
    packages = runs_folder().absolute() / _FOLDER
    folder = packages / hashlib.sha256(digests).hexdigest()[:16]
    if note_use(folder):
        return folder
    unpacked = {uri: _members(data, uri, where) for uri, data in contents}
    _check_needs(unpacked, where)
    packages.mkdir(parents=True, exist_ok=True)
    remove_unused(packages)
    with TemporaryDirectory(dir=packages) as scratch:
        made = Path(scratch, _UNPACKED)
        made.mkdir()
        for uri, members in unpacked.items():
            _write(members, uri, made, where)
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


def _members(data: bytes, uri: str, where: str) -> dict[str, bytes]:
    """Return the files of a package by their paths, as they would be installed."""
    is_zip = uri.endswith((*_WHEELS, ".zip"))
    try:
        found = dict(_limited(_zip_members(data) if is_zip else _tar_members(data)))
    except _DAMAGE as error:
        why = f"{error}" or type(error).__name__
        raise UsageError(f"{where}: {uri} is damaged, or is no package: {why}.") from error
    if uri.endswith(_WHEELS):
        return {_WHEEL_DATA.sub("", name): content for name, content in found.items()}
    return _of_sdist(found)


def _limited(members: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    size = 0
    for name, content in members:
        size += len(content)
        if size > _MOST_BYTES:
            raise ValueError(f"it holds more than {_MOST_BYTES >> 20} MiB")
        yield str(PurePosixPath(name)), content


def _zip_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for each in archive.infolist():
            if each.file_size > _MOST_BYTES:
                raise ValueError(f"{each.filename} has {each.file_size >> 20} MiB")
            if not each.is_dir():
                yield each.filename, archive.read(each)


def _tar_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for each in archive:
            if each.size > _MOST_BYTES:
                raise ValueError(f"{each.name} has {each.size >> 20} MiB")
            # Of a link, that of the file in the archive to which it leads.
            is_file = each.isfile() or each.islnk() or each.issym()
            file = archive.extractfile(each) if is_file else None
            if file is not None:
                yield each.name, file.read()


def _of_sdist(found: dict[str, bytes]) -> dict[str, bytes]:
    """Return the modules of a source distribution: its own folder, and `src`, are left out."""
    roots = {name.partition("/")[0] for name in found}
    root = next(iter(roots), "")
    # NAME-VERSION, which is the name of no package, or another folder with a project in it.
    is_own = not root.isidentifier() or any(f"{root}/{name}" in found for name in _OF_DISTRIBUTIONS)
    if len(roots) == 1 and is_own and f"{root}/__init__.py" not in found:
        found = {name.partition("/")[2]: content for name, content in found.items()}
    has_src = any(name.startswith("src/") for name in found)
    return {(name.removeprefix("src/") if has_src else name): each for name, each in found.items()}


def _write(members: dict[str, bytes], uri: str, into: Path, where: str) -> None:
    for name, content in members.items():
        place = into / name
        if not place.resolve().is_relative_to(into.resolve()):
            raise UsageError(f"{where}: {uri} has a file outside of its folder: {name}.")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: {uri} cannot be unpacked: {name}: {error}.") from error


def _check_needs(packages: dict[str, dict[str, bytes]], where: str) -> None:
    """Raise UsageError where the metadata of one asks for what is neither installed nor given."""
    described = {
        uri: message_from_string(content.decode(errors="replace"))
        for uri, members in packages.items()
        for name, content in members.items()
        if _METADATA.fullmatch(name)
    }
    given = {canonicalize_name(str(each.get("Name"))) for each in described.values()}
    for uri, each in described.items():
        needs = each.get_all("Requires-Dist", [])
        missing = sorted({need for need in needs if not is_installed(need, given)})
        if missing:
            quoted = " ".join(f"'{need}'" for need in missing)
            raise UsageError(
                f"{where}: {uri} needs what is not installed here: {sys.executable} -m pip install "
                f"{quoted}"
            )


def is_installed(requirement: str, given: Collection[str] = ()) -> bool:
    """Whether what a requirement asks for is installed, or given; extras are not asked for."""
    try:
        need = Requirement(requirement)
    except InvalidRequirement:
        return False
    if need.marker is not None and not need.marker.evaluate({"extra": ""}):
        return True
    if canonicalize_name(need.name) in given:
        return True
    try:
        version = metadata.version(need.name)
    except metadata.PackageNotFoundError:
        return False
    return need.url is None and need.specifier.contains(version, prereleases=True)
