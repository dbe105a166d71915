"""What one host of a job keeps elsewhere, for the process that runs its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from headrace.core import env
from headrace.core.errors import LaunchError, UsageError
from headrace.data.storage.urls import parse_url
from headrace.launch.failure import describe_end
from headrace.launch.site.sites import Site
from headrace.launch.told import tell
from headrace.launch.uploads.ending import finished
from headrace.launch.uploads.flags import UploadOptions
from headrace.launch.uploads.keep_task import KeepTask

DEADLINE_S = 300.0
"""For so long a job that has ended may upload its last files."""
_STATE = "uploads"
_MOST_STARTS = 100
_KEEPER = (sys.executable, "-P", "-m", "headrace.launch.uploads.keeper")


def extra_grace_s(options: UploadOptions) -> float:
    """Return how much longer a job takes to end, at most, for what it uploads."""
    return DEADLINE_S if options.is_any else 0.0


class HostUploads:
    """What a host keeps elsewhere.

    Args:
        options: What the command line says.
        site: What the host's script gets.
        run: The run's folder on this host.
        kept_as: What the files of this host are kept as.
        kept_by: Likewise, of all hosts of the job; None: nobody here knows them.

    Raises:
        UsageError: The URL is a folder inside of what is kept there, or the other way round.
    """

    def __init__(
        self, options: UploadOptions, site: Site, run: Path, *, kept_as: str = "host",
        kept_by: Sequence[str] | None = (),
    ) -> None:  # fmt: skip
        self._url = options.checkpoint_uri
        self._run = run
        self._folder = _checkpoints_of(site, run)
        self._is_vertex = "AIP_CHECKPOINT_DIR" in site.environment
        self._host = kept_as
        self._others = None if kept_by is None else tuple(sorted(set(kept_by) - {kept_as}))
        self._turn = threading.Lock()  # of who decides whether there is another process
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        if self._url is not None:
            _check_apart(self._url, self._folder)

    def environment(self) -> dict[str, str]:
        """Return the variables by which a script finds its checkpoints."""
        if self._url is None:
            return {}
        # Under two contracts at once there is one folder for both.
        vertex = {"AIP_CHECKPOINT_DIR": f"{self._folder}/"} if self._is_vertex else {}
        return {env.CHECKPOINT_DIR.name: str(self._folder), **vertex}

    def fetch(self) -> None:
        """Have the newest checkpoints be there, before any rank begins.

        Raises:
            UsageError: The URL cannot be written to.
            LaunchError: They cannot be fetched; why was told.
        """
        if self._url is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        fetching = self._started("fetch", own_session=False)
        assert fetching.stdin is not None
        code = fetching.wait()
        if code == UsageError.exit_code:
            raise UsageError("the job was not started: see above what --checkpoint-uri needs.")
        if code != 0:
            raise LaunchError(
                f"The checkpoints could not be fetched ({describe_end(code)}); nothing was started."
            )

    def start(self) -> None:
        """Keep checkpoints from now on; another process takes over where this one is killed.

        The thread that watches over it takes the signals that this thread holds back no more than
        this one does.
        """
        if self._url is not None:
            self._process = self._started("keep", own_session=True)
            threading.Thread(target=self._watch, name="headrace-keeping", daemon=True).start()

    def finish(self, *, clean: bool) -> None:
        """Upload the last files; returns once that is done, or its deadline is over.

        Args:
            clean: No rank was killed, perhaps in the middle of writing a file.
        """
        if self._process is None:
            return
        with self._turn:
            self._is_over = True
            process = self._process
        code = finished(process, clean=clean, deadline_s=DEADLINE_S)
        if code != 0:
            tell(f"headrace: the last checkpoints may not be kept: {describe_end(code)}\n")

    @property
    def pids(self) -> frozenset[int]:
        """The processes beside the ranks."""
        process = self._process
        return frozenset() if process is None else frozenset({process.pid})

    def _started(self, verb: str, *, own_session: bool) -> subprocess.Popen[bytes]:
        assert self._url is not None
        task = KeepTask(
            url=self._url, folder=str(self._folder), host=self._host, others=self._others,
            lock=str(self._run / _STATE / f"{self._host}.lock"), parent=os.getpid(),
        )  # fmt: skip
        process = subprocess.Popen(
            [*_KEEPER, verb],
            stdin=subprocess.PIPE,
            env=env.child_environment(),
            # What ends the job by its process group or terminal must not end the keeping.
            start_new_session=own_session,
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(task.to_json().encode() + b"\n")
            process.stdin.flush()
        return process

    def _watch(self) -> None:
        """Start another process for each that is killed: by the kernel, which wanted memory."""
        for _ in range(_MOST_STARTS):
            assert self._process is not None
            code = self._process.wait()
            with self._turn:
                if self._is_over or code >= 0:  # one that ends by itself has said why
                    return
                self._process = self._started("keep", own_session=True)
            tell(
                f"headrace: the process that keeps checkpoints was {describe_end(code)}; another "
                "takes over\n"
            )


def _checkpoints_of(site: Site, run: Path) -> Path:
    if site.tree is not None:
        return Path(site.tree.folders.checkpoints)
    told = site.environment.get("AIP_CHECKPOINT_DIR")
    return Path(told) if told else run / "checkpoints"


def _check_apart(url: str, folder: Path) -> None:
    location = parse_url(url)
    if location.kind != "local":
        return
    there, here = Path(location.prefix).resolve(), folder.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise UsageError(
            f"--checkpoint-uri {location.url}: the script's own checkpoints are in {here}, so they "
            "would be kept inside of themselves. Name a folder apart from it, best on another disk."
        )
