"""The offload hosts of a job on a cluster, the list of them that ranks read, and `--offload auto`.

With `--offload auto` ranks start without offload hosts. Once enough steps are recorded, the model
predicts the effect of their cores. Where they are used, the steps after that are compared with the
prediction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headrace.cluster.agent import HostFacts, HostProgram
from headrace.cluster.host_identity import HostMarker
from headrace.cluster.offload_fleet import OffloadFleet
from headrace.cluster.ray_cluster import PlacedAgent, RayHost
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.hosts.host_commands import HostInstalls, WorkingDir
from headrace.jobs.output import HostOutput
from headrace.observe.whatif.comparison import (
    CheckedPrediction,
    Comparison,
    TimeSlice,
    compare,
    write_checked_prediction,
)
from headrace.observe.whatif.loaders_in_turn import main_loader
from headrace.observe.whatif.measured_pipeline import measure
from headrace.observe.whatif.offload_stats import offload_span_ns, read_offload_stats
from headrace.observe.whatif.prediction import Prediction, Simulator, with_auxiliary
from headrace.observe.whatif.tables import CachedTables, columns
from headrace.observe.whatif.train_steps import read_steps
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.reader import open_records

_T = TypeVar("_T")
_FEWEST_STEPS, _SHORTEST_NS = 20, 5_000_000_000
_WORTH_IT = 1.05
_SETTLES_NS = 2_000_000_000  # until batches that were requested before are used up
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # between looks, each of which reads all records


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPrediction:
    """The predicted effect of auxiliary hosts."""

    prediction: Prediction  # the result of `with_auxiliary`
    wait_share: float  # the data-wait share without them, 0 to 1
    reached: bool  # they can make batches of the loader that feeds the steps

    @property
    def helps(self) -> bool:
        """Whether the predicted speedup is worth using them."""
        found = self.prediction
        return self.reached and found.speedup >= _WORTH_IT and found.low > 1.0


@dataclass
class OffloadAuto:
    """The choice whether one job uses its offload group."""

    run: Path  # the run folder
    attempt: int
    group: str  # the offload group's name
    ranks: int  # how many ranks share its hosts
    print_line: Callable[[str], None] = print_status

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "offload-auto")  # reading takes a while
        self._pending: Future[Any] | None = None  # the prediction, later the comparison with it
        self._forecast: OffloadPrediction | None = None
        self._cores = 0
        self._is_checked = False
        self._next_s, self._pause_s = 0.0, _FIRST_PAUSE_S

    def is_yes(self, cores: int, now_s: float) -> bool:
        """Return whether the group, with so many cores now, is to be used, without waiting."""
        forecast = self._forecast
        if forecast is not None and forecast.helps:
            if not self._is_checked:
                self._check(now_s)
        elif forecast is None or cores != self._cores or self._pending is not None:
            self._update_prediction(cores, now_s)  # the first one, or after a change of hosts
        return self._forecast is not None and self._forecast.helps

    def close(self) -> None:
        """Print the result, as the job has ended."""
        self._thread.shutdown(cancel_futures=True)
        if self._forecast is None:
            self.print_line(f"--offload auto: group {self.group} was not used: {self._why_not()}")
        elif self._forecast.helps and not self._is_checked:
            measured = _or_none(lambda: measure_offload(self.run, self.attempt))
            if measured is not None:
                self._save(measured)

    def _why_not(self) -> str:
        """Return why the group was not used; a prediction after the job's end is too late."""
        if not self._cores:
            return "none of its hosts was there"
        pending = self._pending
        found = None if pending is None or pending.cancelled() else pending.result()
        if found is None:
            return (
                "no steps were recorded on this machine from which to predict what it gives, or "
                f"too few (at least {_FEWEST_STEPS} of each rank, over {_SHORTEST_NS / 1e9:.0f} s, "
                "fed by a DataLoader)"
            )
        ended = "the job ended as that was found out: " if found.helps else ""
        return ended + self._summary(found)

    def _update_prediction(self, cores: int, now_s: float) -> None:
        if self._pending is None:
            if not cores or now_s < self._next_s:
                return
            self._cores = cores
        found = self._result_of(
            lambda: predict_offload(self.run, self.attempt, self._cores / self.ranks), now_s
        )
        if found is None:
            return
        self._forecast, self._pause_s = found, _FIRST_PAUSE_S
        effect = "makes batches from now on" if found.helps else "is not used"
        self.print_line(f"--offload auto: group {self.group} {effect}: {self._summary(found)}")

    def _result_of(self, call: Callable[[], _T | None], now_s: float) -> _T | None:
        """Start a call in the thread if it is due; return its result once, when it has ended."""
        if self._pending is None:
            if now_s >= self._next_s:
                self._next_s = now_s + self._pause_s
                self._pause_s = min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
                self._pending = self._thread.submit(_or_none, call)
        elif self._pending.done():
            ended, self._pending = self._pending, None
            result: _T | None = ended.result()
            return result
        return None

    def _summary(self, forecast: OffloadPrediction) -> str:
        if not forecast.reached:
            return (
                "batches of the loader that feeds the steps can be made on this host alone, for "
                "the reason given above"
            )
        found = forecast.prediction
        return (
            f"with its {self._cores} cores the job is predicted to run {found.speedup:.2f} times "
            f"as fast ({found.low:.2f} to {found.high:.2f}); {forecast.wait_share:.0%} of step "
            "time waits for data"
        )

    def _check(self, now_s: float) -> None:
        measured = self._result_of(lambda: measure_offload(self.run, self.attempt), now_s)
        if measured is not None:
            steps = measured.after_steps / self.ranks
            if steps >= _FEWEST_STEPS and steps * measured.after_ms * 1e6 >= _SHORTEST_NS:
                self._save(measured)

    def _save(self, measured: Comparison) -> None:
        self._is_checked = True
        assert self._forecast is not None  # hosts are used
        found = self._forecast.prediction
        checked = CheckedPrediction(
            remedy="auxiliary-hosts", change=f"{self._cores} cores of group {self.group}",
            applied=(f"offload={self.group}",),
            predicted=found.speedup, low=found.low, high=found.high,
            measured=measured.speedup, measured_low=measured.low, measured_high=measured.high,
        )  # fmt: skip
        with suppress(OSError):  # a full disk must not stop the job; the result is also printed
            write_checked_prediction(checked, self.run)
        self.print_line(
            f"--offload auto: predicted {found.speedup:.2f} times as fast, measured "
            f"{measured.speedup:.2f} ({measured.low:.2f} to {measured.high:.2f})"
        )


def predict_offload(run: Path, attempt: int, cores: float) -> OffloadPrediction | None:
    """Return the predicted effect of auxiliary hosts with so many cores a rank.

    None: there are too few records yet.
    """
    tables = CachedTables(open_records(run, attempt))
    steps = read_steps(tables)
    span = steps.span_ns
    if span is None or len(steps.steady) < _FEWEST_STEPS * max(len(steps.ranks), 1):
        return None
    measured = measure(tables) if span[1] - span[0] >= _SHORTEST_NS else None
    if measured is None:
        return None
    return OffloadPrediction(
        prediction=with_auxiliary(Simulator(measured), cores),
        wait_share=steps.data_wait_share,
        reached=read_offload_stats(tables, main_loader(steps), span) is not None,
    )


def measure_offload(run: Path, attempt: int) -> Comparison | None:
    """Compare steps with auxiliary hosts with those before; None: there are too few steps."""
    tables = open_records(run, attempt)
    joined = offload_span_ns(columns(tables, "events"), main_loader(read_steps(tables)))
    if joined is None:
        return None
    first_ns, last_ns = joined
    return compare(
        CachedTables(TimeSlice(tables, end_ns=first_ns)),
        CachedTables(TimeSlice(tables, begin_ns=last_ns + _SETTLES_NS)),
    )


def _or_none(call: Callable[[], _T | None]) -> _T | None:
    """Return a function's result; None where the records do not allow one, or not yet."""
    try:
        return call()
    except Exception:  # noqa: BLE001 - records are being written, and must not stop the job
        return None


_HOSTS_FILE = "hosts"


@dataclass(kw_only=True)
class OffloadSetup:
    """The offload hosts of a job, for as long as it lasts."""

    ray: Any  # the module, connected to the cluster
    group: str  # the offload group's name
    working_dir: WorkingDir
    marker: HostMarker  # the driver's
    output: HostOutput  # prints those hosts' output
    choice: OffloadAuto | None  # decides whether they are used; None: they are
    requirements: HostInstalls | None  # what they install first
    declared: GroupSpec | None  # the group on the command line, if any
    training: str  # the training group's name

    def __post_init__(self) -> None:
        self._agents: Sequence[PlacedAgent] = ()
        self._published_version = -1
        self._publications: list[Any] = []  # pending calls of agents
        self.fleet = OffloadFleet(
            ray=self.ray,
            group=self.group,
            marker=self.marker,
            program_of=self._program,
            on_message=self._handle_message,
            show=self.output.show,
            declared=self.declared,
            training=self.training,
            is_used=self.choice is None,
        )

    def variables(self, *, is_here: bool) -> dict[str, str]:
        """Return the variables by which ranks find the hosts, for an agent's `HostProgram`.

        They include a common hash seed: workers on other hosts must hash strings as the ranks do.
        """
        path = env.pythonpath_with(SITECUSTOMIZE_DIR) if is_here else "{pythonpath}"
        return {
            env.OFFLOAD.name: f"{{{_HOSTS_FILE}}}",
            env.PYTHONPATH.name: path,
            env.HASH_SEED.name: env.HASH_SEED.get() or env.DEFAULT_HASH_SEED,
        }

    def serve(self, agents: Sequence[PlacedAgent]) -> None:
        """Publish the list of hosts to these agents' ranks from now on."""
        self._agents = agents

    def files_of(self, agent: PlacedAgent) -> dict[str, bytes]:
        """Return the files with which the ranks of an agent start, in their present version."""
        folder = self.working_dir.folder if agent.facts.is_drivers else agent.facts.folder
        return {_HOSTS_FILE: self.fleet.file_for(folder)}

    def tend(self) -> None:
        """Maintain the offload hosts and the published list; called often."""
        if self.choice is not None and self.choice.is_yes(self.fleet.cores, time.monotonic()):
            self.fleet.is_used = True
        self.fleet.tend()
        if self._published_version != self.fleet.version or self._needs_republishing():
            self._publish()

    def close(self) -> None:
        """End the processes on the offload hosts."""
        with suppress(Exception):  # a failed report must not keep the hosts reserved
            if self.choice is not None:
                self.choice.close()
        self.fleet.close()

    def _publish(self) -> None:
        self._published_version = self.fleet.version
        self._publications = [
            agent.actor.replace_file.remote(name, content, self._published_version)
            for agent in self._agents
            for name, content in self.files_of(agent).items()
        ]

    def _needs_republishing(self) -> bool:
        """Whether an agent could not be reached by the last publication."""
        if not self._publications:
            return False
        ended, self._publications = self.ray.wait(
            self._publications, num_returns=len(self._publications), timeout=0
        )
        for each in ended:
            try:
                self.ray.get(each)
            except self.ray.exceptions.ActorUnavailableError:
                return True
            except self.ray.exceptions.RayError:
                pass  # it has ended: restarted ranks begin with the current file
        return False

    def _handle_message(self, host: str, announced: dict[str, Any]) -> bool:
        assert self.requirements is not None  # only the installer sends other messages
        return self.requirements.handle_message(host, announced)

    def _program(
        self, host: RayHost, facts: HostFacts, command: tuple[str, ...], files: dict[str, bytes]
    ) -> HostProgram:
        is_here = facts.is_drivers
        if self.requirements is not None:
            command = (*self.requirements.command(host.name, is_here=is_here), "--", *command)
        return HostProgram(
            command=command,
            folder=self.working_dir.folder if is_here else None,
            environment=env.whole_environment() if is_here else env.portable_environment(),
            is_whole=is_here,
            files=files,
        )
