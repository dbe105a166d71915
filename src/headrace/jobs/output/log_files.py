"""The log files of ranks, one per rank and stream, named by global rank, for torchrun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from headrace.core.process.process_groups import RankProcessGroups
from headrace.jobs.output.terminal_output import LogFollower

StreamName = Literal["stdout", "stderr"]


class RunLogs(LogsSpecs):
    """The log files of a run for torchrun, shown on the terminal as they grow.

    Args:
        folder: The attempt's logs folder. Restarts use its subfolders `restart-1`, ...
        prefix: The prefix of shown lines, `{rank}` in the place of the rank; None: no prefix.
        shown: Local ranks to show; None: all.
        restarts: How often the ranks were started before.
    """

    def __init__(
        self, folder: Path, *, prefix: str | None, shown: frozenset[int] | None, restarts: int = 0
    ) -> None:
        super().__init__(log_dir=str(folder))
        self._folder = folder
        self._prefix = prefix
        self._shown = shown
        self._follower = LogFollower()
        self._current = folder
        self._starts = restarts

    @property
    def root_log_dir(self) -> str:
        """The attempt's logs folder."""
        return str(self._folder)

    def path(self, rank: int, stream: StreamName) -> Path:
        """Return a rank's log file of the latest restart."""
        return self._current / f"rank-{rank}.{stream}"

    def close(self) -> None:
        """Show the rest of every file, and stop."""
        self._follower.close()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks that are about to start; torchrun calls this.

        The path of its error file is set in each local rank's environment.
        """
        self._follower.finish_files()
        # Not TORCHELASTIC_RESTART_COUNT: when a host joins or leaves, ranks are restarted without
        # counting that, and torchrun truncates the files that it is given.
        if self._starts > 0:
            self._current = self._folder / f"restart-{self._starts}"
        self._starts += 1
        self._current.mkdir(exist_ok=True)
        files: dict[str, Any] = {"stdouts": {}, "stderrs": {}, "error_files": {}}
        for local_rank, environment in envs.items():
            rank = int(environment["RANK"])
            error_file = str(self._current / f"rank-{rank}.error.json")
            environment["TORCHELASTIC_ERROR_FILE"] = error_file
            files["error_files"][local_rank] = error_file
            files["stdouts"][local_rank] = str(self.path(rank, "stdout"))
            files["stderrs"][local_rank] = str(self.path(rank, "stderr"))
            if self._shown is None or local_rank in self._shown:
                self._show(rank)
        return LogsDest(**files)

    def _show(self, rank: int) -> None:
        prefix = f"[{self._prefix.format(rank=rank)}] " if self._prefix else ""
        self._follower.follow(self.path(rank, "stdout"), prefix, sys.stdout.buffer)
        self._follower.follow(self.path(rank, "stderr"), prefix, sys.stderr.buffer)


class CleanRestartLogs(LogsSpecs):
    """Log files that also end the leftover processes of earlier ranks before each restart."""

    def __init__(self, logs: LogsSpecs, leftovers: RankProcessGroups) -> None:
        super().__init__(log_dir=logs.root_log_dir)
        self._logs = logs
        self._leftovers = leftovers

    @property
    def root_log_dir(self) -> str:
        """The folder of the logs."""
        return self._logs.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks that are about to start; torchrun calls this.

        By then it has stopped the earlier ranks.
        """
        self._leftovers.end()
        return self._logs.reify(envs)
