"""FUSE programs that mount a URL on this host, and the process that runs one and unmounts.

Mountpoint for S3 and gcsfuse come from the clouds themselves and are preferred where installed;
rclone supports all stores. All of them are run in the foreground, read only, list once, cache on
disk what was read, and read ahead.

The sidecar ends with its parent, by SIGTERM, or when the command ends, and then unmounts: the
program itself may find its folder in use, and leave it mounted. Its exit code is the command's.

Sources: github.com/awslabs/mountpoint-s3 doc/CONFIGURATION.md, docs.cloud.google.com/storage
"gcsfuse command", rclone.org/commands/rclone_mount and rclone.org/s3.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.console import print_status
from headrace.core.errors import HeadraceError
from headrace.core.process.parent_death import parent_bound_command
from headrace.core.process.process_kill import kill_process, run_within
from headrace.core.process.sidecar import SidecarParent, run_sidecar
from headrace.data.storage import Location
from headrace.data.storage.client.credentials import read_settings

_UNMOUNTS = ("fusermount3", "fusermount")
_DEVICE = Path("/dev/fuse")
_MOUNTED = Path("/proc/self/mountinfo")  # the fifth field of a line is the mount point; see proc(5)
_UNKNOWN = "unknown"  # the version of objects that were not listed
_LISTED_S = 24 * 3600  # listings are cached for as long
_AHEAD_MIB = 16
# --no-modtime: a file's time would cost a request each.
_RCLONE = (
    "--read-only", "--vfs-cache-mode=full", f"--vfs-read-ahead={_AHEAD_MIB}Mi",
    "--vfs-read-chunk-size=4Mi", "--vfs-fast-fingerprint", f"--dir-cache-time={_LISTED_S}s",
    f"--attr-timeout={_LISTED_S}s", "--poll-interval=0", "--no-modtime", "--no-checksum",
    "--vfs-cache-max-age=240h", "--use-mmap", "--config=",
)  # fmt: skip


class NoMountError(HeadraceError):
    """Nothing can be mounted on this host; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountProgram:
    """A FUSE program, and its command line to mount a URL."""

    name: str
    command: tuple[str, ...]  # without secrets
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    knows_versions: bool = True  # its cache goes by the objects' ETags or generations


def choose_programs(
    location: Location, folder: Path, cache: Path, *, cache_bytes: int, version: str | None = None
) -> list[MountProgram]:
    """Return the programs that can mount a URL at an existing empty folder, the best first.

    `version` names what the cache has of one version of all objects, for programs that do not know
    versions themselves.
    NoMountError: none is installed, or this host has no FUSE. UsageError: invalid store settings.
    """
    if not _DEVICE.exists():
        raise NoMountError(f"this host has no {_DEVICE} (in a container: --device {_DEVICE})")
    if not any(map(shutil.which, _UNMOUNTS)):
        raise NoMountError("this host has no fusermount3 (package fuse3)")
    builders = _PROGRAMS.get(location.kind, {})
    if not builders:
        raise NoMountError(f"no program shows {location.url} as a folder")
    beside = str(Path(sys.executable).parent)
    found = [
        build(
            program,
            location,
            folder,
            cache / (version or _UNKNOWN) if name == "rclone" else cache,
            cache_bytes,
        )
        for name, build in builders.items()
        # On PATH, or installed beside this Python.
        if (program := shutil.which(name) or shutil.which(name, path=beside)) is not None
    ]
    if not found:
        raise NoMountError(f"none of {', '.join(builders)} is on this host")
    return found


_UNMOUNT_S = 30.0


def is_mounted(folder: Path) -> bool:
    """Return whether something is mounted at a folder, even if its program is gone."""
    # Without accessing the folder, which may hang.
    place = str(folder.parent.resolve() / folder.name).replace(" ", "\\040")
    lines = _MOUNTED.read_text(errors="surrogateescape").splitlines()
    return any(line.split(" ")[4] == place for line in lines)


def unmount(folder: Path) -> None:
    """End a mount at a folder, if there is one, even if it is in use."""
    program = next((found for name in _UNMOUNTS if (found := shutil.which(name))), None)
    if program is not None and is_mounted(folder):
        command = [program, "-u", "-z", str(folder)]
        try:
            run_within(command, _UNMOUNT_S)
        except subprocess.TimeoutExpired:
            print_status(
                f"{folder} is still mounted: {program} has not ended within {_UNMOUNT_S:.0f} s. "
                f"Run `{' '.join(command)}` once nothing uses it."
            )


def _mountpoint(
    program: str, location: Location, folder: Path, cache: Path, cache_bytes: int
) -> MountProgram:
    settings = read_settings(location)
    command = [
        program, location.root, str(folder), "--read-only", "--foreground",
        f"--cache={cache}", f"--max-cache-size={cache_bytes // 2**20}",
        f"--metadata-ttl={_LISTED_S}",
    ]  # fmt: skip
    if location.prefix:
        command.append(f"--prefix={location.prefix}/")
    if "endpoint" in settings:
        command += [f"--endpoint-url={settings['endpoint']}", "--force-path-style"]
    if "region" in settings:
        command.append(f"--region={settings['region']}")
    if settings.get("skip_signature"):
        command.append("--no-sign-request")
    return MountProgram(name="mount-s3", command=tuple(command), environment=_aws_secrets(settings))


def _gcsfuse(
    program: str, location: Location, folder: Path, cache: Path, cache_bytes: int
) -> MountProgram:
    settings = read_settings(location)
    command = [
        program, "--foreground", "--implicit-dirs", "-o", "ro", f"--cache-dir={cache}",
        f"--file-cache-max-size-mb={cache_bytes // 2**20}",
        f"--metadata-cache-ttl-secs={_LISTED_S}", "--stat-cache-max-size-mb=-1",
        "--type-cache-max-size-mb=-1",
    ]  # fmt: skip
    if location.prefix:
        command.append(f"--only-dir={location.prefix}")
    if "base_url" in settings:
        command.append(f"--custom-endpoint={settings['base_url']}")
    if settings.get("skip_signature"):
        command.append("--anonymous-access")
    return MountProgram(name="gcsfuse", command=(*command, location.root, str(folder)))


def _rclone(
    program: str, location: Location, folder: Path, cache: Path, cache_bytes: int
) -> MountProgram:
    settings = read_settings(location)
    backend, options, environment = _RCLONES[location.kind](settings)
    texts = ",".join([backend, *(f"{name}={_quoted(value)}" for name, value in options.items())])
    command = (
        program, "mount", f":{texts}:{location.root}/{location.prefix}".rstrip("/"), str(folder),
        *_RCLONE, f"--cache-dir={cache}", f"--vfs-cache-max-size={cache_bytes}",
    )  # fmt: skip
    return MountProgram(
        name="rclone", command=command, environment=environment, knows_versions=False
    )


_RemoteOptions = tuple[str, dict[str, str], dict[str, str]]
"""A backend of rclone, its options, and environment variables with secrets."""


def _rclone_s3(settings: Mapping[str, Any]) -> _RemoteOptions:
    options = {"env_auth": "false" if settings.get("skip_signature") else "true"}
    if "endpoint" in settings:
        options |= {"provider": "Other", "endpoint": settings["endpoint"]}
    else:
        options["provider"] = "AWS"
    if "region" in settings:
        options["region"] = settings["region"]
    return "s3", options, _aws_secrets(settings)


def _rclone_gs(settings: Mapping[str, Any]) -> _RemoteOptions:
    options = {"env_auth": "true", "bucket_policy_only": "true"}
    if settings.get("skip_signature"):
        options = {"anonymous": "true"}
    if "base_url" in settings:
        options["endpoint"] = f"{settings['base_url']}/storage/v1/"
    return "gcs", options, {}


def _rclone_az(settings: Mapping[str, Any]) -> _RemoteOptions:
    options = {"env_auth": "true"}
    if "account_name" in settings:
        options["account"] = settings["account_name"]
    key = settings.get("account_key")
    return "azureblob", options, {"RCLONE_AZUREBLOB_KEY": key} if key else {}


def _aws_secrets(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a profile's keys as variables, the only place where the programs find them."""
    names = {
        "access_key_id": "AWS_ACCESS_KEY_ID",
        "secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "session_token": "AWS_SESSION_TOKEN",
    }
    return {name: settings[ours] for ours, name in names.items() if ours in settings}


def _quoted(value: str) -> str:
    """Quote a value for rclone's connection strings, as it may contain a colon."""
    return '"' + value.replace('"', '""') + '"'


_RCLONES: Mapping[str, Callable[[Mapping[str, Any]], _RemoteOptions]] = {
    "s3": _rclone_s3,
    "gs": _rclone_gs,
    "az": _rclone_az,
}
_PROGRAMS: Mapping[str, Mapping[str, Callable[[str, Location, Path, Path, int], MountProgram]]] = {
    "s3": {"mount-s3": _mountpoint, "rclone": _rclone},
    "gs": {"gcsfuse": _gcsfuse, "rclone": _rclone},
    "az": {"rclone": _rclone},
}

_END_S = 5.0
_END_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(parent: SidecarParent) -> int:
    """Run the command until it, or the parent, ends; then unmount."""
    program = subprocess.Popen(
        parent_bound_command(sys.executable, parent.request["command"]),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    while program.poll() is None:
        if signal.sigwait({*_END_SIGNALS, signal.SIGCHLD}) in _END_SIGNALS:
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(_END_S)
            break
    unmount(Path(parent.request["folder"]))
    code = kill_process(program)
    return 1 if code is None else code


if __name__ == "__main__":
    run_sidecar(main, dies_by=signal.SIGTERM, blocked={*_END_SIGNALS, signal.SIGCHLD})
