"""The driver of a job on several hosts; torchrun runs on every training host.

Ray places and monitors one agent per host; where hosts are emulated without Ray, this process is
their agent. torchrun's ranks meet at the address of the first host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch

from headrace.cluster.host_identity import HostMarker, host_marker
from headrace.cluster.ray_cluster import import_ray, ray_connection
from headrace.cluster.ray_node import EmulatedCluster
from headrace.core import env
from headrace.core.console import print_status
from headrace.core.errors import LaunchError
from headrace.core.process.supervision import STOP_SIGNALS
from headrace.data.channels.resolve import preflight_channels
from headrace.jobs.hosts.host_commands import HostCommands, HostInstalls, job_working_dir
from headrace.jobs.hosts.job_hosts import EmulatedHosts, RayHosts
from headrace.jobs.hosts.offload_setup import OffloadAuto, OffloadSetup
from headrace.jobs.hosts.rank_group import HostProvider, RestartLoop, StopRequest
from headrace.jobs.output import HostOutput
from headrace.jobs.requirements import code_folder, find_requirements, install_requirements
from headrace.jobs.sync.host_sync import UPLOAD_FAILED, OutputUpload, extra_grace_s
from headrace.jobs.torchrun_args import ClusterOptions, TorchrunJob, print_emulated_types
from headrace.jobs.tracking import spool_of
from headrace.platforms.instance_groups import GroupSpec
from headrace.records.run_folder import Attempt, RunFolder


def run_on_cluster(
    job: TorchrunJob,
    options: ClusterOptions,
    folder: RunFolder,
    attempt: Attempt,
    ended: Callable[[], None],
) -> int:
    """Run a job on the hosts of a cluster and return its exit code; `ended`: its ranks have.

    Raises UsageError (Ray is not installed), LaunchError (there is no such cluster, it lacks hosts,
    or an agent does not start).
    """
    if not options.is_ray:
        install_requirements(job.spec.contract, job.spec.environment, folder, attempt)
    stop = StopRequest()
    stop.catch_signals(STOP_SIGNALS)
    return _ClusterJob(job, options, folder, attempt, ended).run(stop)


@dataclass
class _ClusterJob:
    job: TorchrunJob
    options: ClusterOptions
    folder: RunFolder
    attempt: Attempt
    ended: Callable[[], None]

    def __post_init__(self) -> None:
        self._groups = self._groups_with_script()
        self._working_dir = job_working_dir(self.job)
        self._output = HostOutput()
        self._programs = HostCommands(
            self.job, self._groups, self._working_dir, self.folder, self.attempt,
            has_driver=self.options.driver,
        )  # fmt: skip

    def run(self, stop: StopRequest) -> int:
        is_here = self.options.address is None
        preflight_channels(self.job.spec.contract, is_same_machine=is_here)
        output = OutputUpload(self.job.spec.sync, self.job.spec.contract, self.folder.path)
        output.begin()
        try:
            code = self._run_on_hosts(stop)
        finally:
            is_uploaded = output.finish()
        return code if is_uploaded else code or UPLOAD_FAILED

    def _run_on_hosts(self, stop: StopRequest) -> int:
        with host_marker(self.folder.logs(self.attempt.number)) as marker:
            if self.options.is_ray:
                return self._on_ray(stop, marker)
            devices = env.visible_devices(torch.accelerator.device_count())
            hosts = EmulatedHosts(
                groups=self._groups, programs=self._programs, marker=marker, devices=devices
            )
            summary = ", ".join(f"{group.name} {group.hosts}" for group in self._groups)
            print_status(f"hosts emulated on this machine: {summary}")
            print_emulated_types(self._groups, len(devices), self.job.ranks_here)
            return self._run(hosts, stop)

    def _groups_with_script(self) -> list[GroupSpec]:
        """Return the groups whose hosts run the script, and print which groups are not used."""
        options = self.options
        if self.job.spec.contract.has_platform:  # as on SageMaker, every host runs the script
            rest = [group for group in options.others if group.name != options.offload]
            return [options.training, *rest]
        for group in () if options.driver else options.others:
            if group.name != options.offload:
                print_status(f"group {group.name}: its hosts have no part in this job; "
                     f"--offload {group.name} would have them make batches")  # fmt: skip
        return [options.training]

    def _on_ray(self, stop: StopRequest, marker: HostMarker) -> int:
        options = self.options
        if not options.address:
            devices = torch.accelerator.device_count()
            print_emulated_types(self._groups, devices, self.job.ranks_here)
        requirements = self._requirements()
        with (
            _cluster_address(options) as address,
            # On emulated hosts the ranks share this process's working directory.
            ray_connection(
                address, folder=self._working_dir.folder if options.address else None
            ) as ray,
        ):
            stop.catch_signals(STOP_SIGNALS)  # Ray replaced the handlers
            hosts = RayHosts(
                ray_api=ray, options=options, groups=self._groups, programs=self._programs,
                working_dir=self._working_dir, marker=marker, requirements=requirements,
                offloading=self._offloading(ray, marker, requirements),
                profile=self.job.spec.recording.profile,
            )  # fmt: skip
            return self._run(hosts, stop)

    def _run(self, hosts: HostProvider, stop: StopRequest) -> int:
        loop = RestartLoop(
            hosts=hosts,
            output=self._output,
            logs=self.folder.logs(self.attempt.number),
            spool=spool_of(self.folder),
            records=self._programs.records,
            grace_s=self.job.shutdown_s + extra_grace_s(self.job.spec.sync),
            restarts_left=int(self.job.args.max_restarts),
            preemptions_left=self.options.max_preemptions,
            ended=self.ended,
        )
        return loop.run(stop)

    def _requirements(self) -> HostInstalls | None:
        given = self.job.spec.environment.requirements
        file = find_requirements(given, code_folder(self.job))
        if file is None:
            return None
        return HostInstalls(
            file, self._working_dir, is_named=given is not None,
            is_copied=self.options.address is not None, folder=self.folder, attempt=self.attempt,
        )  # fmt: skip

    def _offloading(
        self, ray: ModuleType, marker: HostMarker, requirements: HostInstalls | None
    ) -> OffloadSetup | None:
        options = self.options
        if options.offload is None:
            return None
        named = {one.name: one for one in options.others}
        choice = None
        if options.offload_if_it_helps:
            ranks = self.job.ranks_here * options.training.hosts
            choice = OffloadAuto(self.folder.path, self.attempt.number, options.offload, ranks)
        return OffloadSetup(
            ray=ray, group=options.offload, working_dir=self._working_dir, marker=marker,
            output=self._output, choice=choice, requirements=requirements,
            declared=named.get(options.offload), training=options.training.name,
        )  # fmt: skip


@contextmanager
def _cluster_address(options: ClusterOptions) -> Iterator[str]:
    if options.address is not None:
        yield options.address
        return
    groups = [options.training, *options.others]
    summary = ", ".join(f"{group.name} {group.hosts}" for group in groups)
    print_status(f"a Ray cluster on this machine, hosts emulated: {summary}")
    try:
        devices = env.visible_devices(torch.accelerator.device_count())
        cluster = EmulatedCluster(groups, devices=devices)
    except LaunchError:
        import_ray()  # reports a missing Ray; not imported before: it would not see the token
        raise
    try:
        yield cluster.address
    finally:
        cluster.close()
