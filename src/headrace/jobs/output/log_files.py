"""The log files of ranks: one a rank and stream, named by global rank, as torchrun gets them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from headrace.core.process.process_groups import RankProcessGroups
from headrace.jobs.output.terminal_output import LogFollower

StreamName = Literal["stdout", "stderr"]


class RunLogs(LogsSpecs):
    """Gives torchrun the log files of a run, and shows them on the terminal as they grow.

    Args:
        folder: The attempt's logs folder. Later starts of the ranks get `restart-1`, ... below it.
        prefix: What each line shown begins with, in brackets, `{rank}` in the place of the rank;
            None: nothing.
        shown: Local ranks to show; None shows all.
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
        """Return a rank's log file, of the latest restart."""
        return self._current / f"rank-{rank}.{stream}"

    def close(self) -> None:
        """Show what is left of every file, and stop."""
        self._follower.close()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the files of the ranks that are about to start; torchrun calls this.

        Args:
            envs: Each local rank's environment, which gets the path of its error file.
        """
        self._follower.finish_files()
        # Not TORCHELASTIC_RESTART_COUNT: a host that joins or leaves has the others start their
        # ranks again without counting that, and torchrun empties the files that it is given.
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
    """Logs as another says, and nothing of earlier ranks is left when torchrun starts others.

    Args:
        logs: Says where the ranks' output goes.
        leftovers: Of the ranks.
    """

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

        By then it has stopped those before them.

        Args:
            envs: Each local rank's environment.
        """
        self._leftovers.end()
        return self._logs.reify(envs)
