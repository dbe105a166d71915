"""The remote copy of a job's folder: manifests, one per host, and the objects that they list.

URL/manifests/<host>/<generation>.json: the last two generations of each host
URL/files/<name>@<host>.<owner>.<number>: file contents; an object is never written twice

A host's manifest is written after its files. A restarted job reads only files in manifests, so it
sees a checkpoint of several files whole or not at all. Manifests are numbered; of two writers of
one number, the store accepts one.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from headrace.core.errors import CheckpointError, NotFoundError, StorageError, UsageError
from headrace.core.files import open_regular_file
from headrace.core.json_checksum import CHECKSUM, fields_checksum
from headrace.core.lazy import blake2b
from headrace.data.storage import Store, open_store
from headrace.data.storage.repeated_reads import read_sound
from headrace.data.storage.urls import check_path
from headrace.jobs.sync.sync_messages import FENCED_EXIT_CODE, safe_host_name

_PIECE_BYTES = 4 * 1024 * 1024
_SIZE_BYTES = 16


def new_checksum() -> hashlib.blake2b:
    """Return the state of a new checksum."""
    return hashlib.blake2b(digest_size=_SIZE_BYTES)


def file_checksum(path: Path, goes_on: Callable[[], object] = lambda: None) -> str:
    """Return a file's checksum in hexadecimal digits; `goes_on` is called with each piece.

    Raises OSError.
    """
    digest = new_checksum()
    with open(open_regular_file(path), "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
            goes_on()
    return digest.hexdigest()


_FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFile:
    """One synced file of a host."""

    name: str  # its path relative to the synced folder, with "/" between folders
    size_bytes: int
    checksum: str  # BLAKE2b of its bytes, 16 bytes long, in hexadecimal digits
    mtime_ns: int
    stored_as: str  # the object that holds its bytes, relative to the URL; "" for a link
    link: str = ""  # the target of a link, relative to its own folder; "": it is a file


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncManifest:
    """All files of one host at one moment."""

    host: str
    generation: int  # 1 for the host's first manifest, increased by one for each
    owner: str  # a unique name of the process that wrote it
    saved_s: float  # when it was written, in seconds since 1970 (UTC)
    files: Mapping[str, SyncedFile]  # by name

    def to_json(self) -> bytes:
        """Return the manifest as an object's bytes."""
        fields = {
            "version": _FORMAT_VERSION, "host": self.host, "generation": self.generation,
            "owner": self.owner, "saved_s": self.saved_s,
            "files": [asdict(self.files[name]) for name in sorted(self.files)],
        }  # fmt: skip
        return json.dumps({**fields, CHECKSUM: fields_checksum(fields)}, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, url: str) -> SyncManifest:
        """Return the manifest in an object's bytes.

        Raises CheckpointError (they are no manifest, damaged, or of a later format).
        """
        try:
            fields = json.loads(data)
            checksum = fields.pop(CHECKSUM)
            if fields["version"] != _FORMAT_VERSION:
                raise CheckpointError(
                    f"{url} has format {fields['version']}; this Headrace reads {_FORMAT_VERSION}. "
                    "Install the version that wrote it, or a newer one."
                )
            if checksum != fields_checksum(fields):
                raise CheckpointError(f"{url} is damaged: its checksum differs.")
            files = {file["name"]: SyncedFile(**file) for file in fields["files"]}
            for file in files.values():
                _check_file(file)
            return cls(
                host=str(fields["host"]), generation=int(fields["generation"]),
                owner=str(fields["owner"]), saved_s=float(fields["saved_s"]), files=files,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{url} is no manifest of a kept folder: {error}.") from error


def is_outside_folder(name: str, link: str) -> bool:
    """Whether a link of this name leads out of the synced folder."""
    if PurePosixPath(link).is_absolute():
        return True
    depth = len(PurePosixPath(name).parts) - 1
    for part in PurePosixPath(link).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def _check_file(file: SyncedFile) -> None:
    """Raise ValueError or UsageError where a file cannot be restored as a manifest has it."""
    check_path(file.name)
    if "\0" in file.name or "\0" in file.link:
        raise ValueError(f"{file.name!r} holds a zero byte")
    if not 0 <= int(file.size_bytes) < 1 << 63 or not -(1 << 63) <= int(file.mtime_ns) < 1 << 63:
        raise ValueError(f"{file.name!r} has no size or time of a file")
    if file.link:
        if is_outside_folder(file.name, file.link):
            raise UsageError(f"the link {file.name} leads out of its folder")
    else:
        check_path(file.stored_as)


_LISTINGS = 5
_MANIFESTS = "manifests"
_FILES = "files"
_GENERATIONS = 2  # one more than needed: the newest may turn out to be damaged
_MANIFEST = re.compile(rf"{_MANIFESTS}/(?P<host>[^/]+)/(?P<generation>[0-9]+)\.json")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._=,+/-]")
_UNLISTED_AGE_S = 3600.0
# S3 takes keys of 1,024 bytes, file systems names of 255; prefix, host and owner are added.
_LONGEST_NAME = 500
_LONGEST_PART = 150


class FencedError(CheckpointError):
    """Another process syncs this host's files by now: the job was started again elsewhere."""

    exit_code = FENCED_EXIT_CODE


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The merged files of all hosts."""

    files: Mapping[str, SyncedFile]  # by name; of two hosts' files, the one written last
    hosts: Mapping[str, str]  # the host of each file, by its `safe_host_name`
    manifests: Mapping[str, SyncManifest]  # each host's newest undamaged one, by that name


class RemoteCopy:
    """The remote copy at one URL; `report` is called with messages for the user.

    A host is named in any form: what is stored of it has its `safe_host_name`.
    """

    def __init__(self, url: str, report: Callable[[str], object]) -> None:
        self.store: Store = open_store(url)
        self._report = report
        self._warned: set[str] = set()

    def check(self, name: str) -> None:
        """Write a small object and delete it; raises UsageError where that fails."""
        path = f"{_FILES}/tried@{safe_host_name(name)}"
        try:
            self.store.put(path, b"headrace: can this be written to?\n")
            self.store.delete(path)
        except (StorageError, UsageError) as error:
            raise UsageError(
                f"{self.store.url} cannot be written to: {error} Give a URL that can be, or the "
                "credentials for it."
            ) from error

    def newest(self) -> MergedFiles:
        """Return the files of all hosts by their newest undamaged manifests.

        Raises StorageError (the store does not answer), CheckpointError (all manifests of a host
        are damaged).
        """
        generations = self._generations().items()
        return self._merged(
            {host: self._newest_undamaged(host, each) for host, each in generations}
        )

    def generation(self, host: str) -> int:
        """Return the number of a host's newest manifest, damaged or not; 0: there is none."""
        return max(self._numbers(host), default=0)

    def publish(self, manifest: SyncManifest) -> SyncManifest:
        """Publish a host's newest manifest; return it, or this process's own earlier one.

        Raises FencedError (another process has published one of that number), StorageError (the
        store does not answer).
        """
        path = _manifest_path(manifest.host, manifest.generation)
        if self.store.create(path, manifest.to_json()):
            return manifest
        with suppress(CheckpointError):  # the answer may have been lost
            published = self._manifest(manifest.host, manifest.generation)
            if published.owner == manifest.owner:
                return published
        raise FencedError(
            f"{self.store.url}/{path} is another process's: this job was started again elsewhere, "
            "which goes on with these checkpoints. Nothing more is written from here."
        )

    def object_name(self, name: str, host: str, owner: str, number: int) -> str:
        """Return the name of a new object for a file's bytes."""
        safe = _UNSAFE_CHARACTERS.sub("_", name)
        if len(safe) > _LONGEST_NAME or any(len(each) > _LONGEST_PART for each in safe.split("/")):
            safe = f"long-names/{blake2b(name.encode(), _SIZE_BYTES).hex()}"
        return f"{_FILES}/{safe}@{safe_host_name(host)}.{owner}.{number}"

    def prune(self, manifests: Iterable[SyncManifest], newest: SyncManifest) -> None:
        """Delete a host's known manifests except the last two, and objects that only those list."""
        known = {each.generation: each for each in (*manifests, newest)}
        keep = sorted(known)[-_GENERATIONS:]
        stay = {file.stored_as for number in keep for file in known[number].files.values()}
        for number in sorted(known)[:-_GENERATIONS]:
            self.store.delete(_manifest_path(newest.host, number))
            for file in known[number].files.values():
                if file.stored_as and file.stored_as not in stay:
                    self.store.delete(file.stored_as)

    def tidy(self) -> None:
        """Delete objects that no manifest lists, which killed processes uploaded.

        Those of the last hour stay, as another host may be about to list them. One host of a job
        does this, once it has adopted the files of hosts that are not in the job, and before it
        deletes manifests. Where one is damaged, nothing is deleted: its objects are unknown.
        """
        try:
            listed = self._listed_objects()
        except (CheckpointError, NotFoundError) as error:
            self._report(f"{error} Objects that no manifest lists are left where they are.")
            return
        for info in list(self.store.list(_FILES)):
            if info.path not in listed and time.time() - info.modified_s > _UNLISTED_AGE_S:
                self.store.delete(info.path)

    def drop_before(self, host: str, generation: int) -> None:
        """Delete a host's manifests of earlier generations."""
        for number in self._numbers(host):
            if number < generation:
                self.store.delete(_manifest_path(host, number))

    def disown(self, host: str) -> None:
        """Delete the manifests of a host that is not in the job."""
        for generation in sorted(self._numbers(host), reverse=True):
            self.store.delete(_manifest_path(host, generation))

    def _listed_objects(self) -> set[str]:
        """Return the objects that manifests list.

        Raises CheckpointError (a manifest is damaged), NotFoundError (they change too fast).
        """
        for left in reversed(range(_LISTINGS)):
            try:
                return {
                    file.stored_as
                    for host, generations in self._generations().items()
                    for generation in generations
                    for file in self._manifest(host, generation).files.values()
                }
            except NotFoundError:  # its host has published newer ones since it was listed
                if left == 0:
                    raise
        raise AssertionError

    def _manifest(self, host: str, generation: int) -> SyncManifest:
        """Return a manifest; NotFoundError: it is gone. CheckpointError: it is stored damaged."""
        path = _manifest_path(host, generation)
        url = f"{self.store.url}/{path}"
        return read_sound(
            lambda: SyncManifest.from_json(bytes(self.store.get(path)), url), CheckpointError
        )

    def _numbers(self, host: str) -> list[int]:
        return self._generations(host).get(safe_host_name(host), [])

    def _generations(self, host: str | None = None) -> dict[str, list[int]]:
        """Return the numbers of manifests, of one host or of all, by `safe_host_name`."""
        found: dict[str, list[int]] = {}
        folder = _MANIFESTS if host is None else f"{_MANIFESTS}/{safe_host_name(host)}"
        for info in self.store.list(folder):
            # Some stores also list a folder's marker, which is no manifest.
            if manifest := _MANIFEST.fullmatch(info.path):
                found.setdefault(manifest["host"], []).append(int(manifest["generation"]))
        return found

    def _newest_undamaged(self, host: str, generations: list[int]) -> SyncManifest:
        broken: CheckpointError | None = None
        for generation in sorted(generations, reverse=True):
            try:
                return self._manifest(host, generation)
            except NotFoundError:  # replaced by a newer one meanwhile
                continue
            except CheckpointError as error:
                broken = error
                self._report(f"{error} The manifest before it is taken.")
        raise broken or CheckpointError(
            f"{self.store.url}/{_MANIFESTS}/{host}: its manifests change faster than they are read."
        )

    def _merged(self, manifests: Mapping[str, SyncManifest]) -> MergedFiles:
        files: dict[str, SyncedFile] = {}
        hosts: dict[str, str] = {}
        for host, manifest in sorted(manifests.items()):
            for name, file in manifest.files.items():
                other = files.get(name)
                differs = other and (other.checksum, other.link) != (file.checksum, file.link)
                if differs and name not in self._warned:
                    self._warned.add(name)
                    self._report(
                        f"{name} was kept by {hosts[name]} and by {host}; the one that was written "
                        "last is taken"
                    )
                if other is None or file.mtime_ns > other.mtime_ns:
                    files[name], hosts[name] = file, host
        return MergedFiles(files=files, hosts=hosts, manifests=manifests)


def adopting_manifest(
    merged: MergedFiles, host: str, owner: str, generation: int, others: set[str]
) -> SyncManifest:
    """Return the manifest with which a process, the owner, takes over a host's files.

    The job's other hosts sync their own files; this one adopts those of hosts not in the job.
    """
    return SyncManifest(
        host=host, generation=generation, owner=owner, saved_s=time.time(),
        files={
            name: file for name, file in merged.files.items() if merged.hosts[name] not in others
        },
    )  # fmt: skip


def _manifest_path(host: str, generation: int) -> str:
    return f"{_MANIFESTS}/{safe_host_name(host)}/{generation:012}.json"
