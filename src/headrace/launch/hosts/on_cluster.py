"""A job on several hosts: this process drives it, and torchrun runs on every host that trains.

Ray places and watches over one agent a host; where hosts are emulated without Ray, this process is
their agent. torchrun's ranks meet by the address of the first host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import torch

from headrace.cluster.connection import connected
from headrace.cluster.local import LocalCluster
from headrace.cluster.machine import Mark, marked
from headrace.cluster.ray_import import import_ray
from headrace.contracts.groups import Group
from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.launch.channels.bringing import look_for_channels
from headrace.launch.flags import TorchrunJob
from headrace.launch.hosts.cluster_flags import ClusterOptions
from headrace.launch.hosts.emulated_types import tell_of_emulated
from headrace.launch.hosts.gang import StopRequest
from headrace.launch.hosts.machine_hosts import MachineHosts
from headrace.launch.hosts.offload_choice import OffloadChoice
from headrace.launch.hosts.offloading import Offloading
from headrace.launch.hosts.programs import Programs
from headrace.launch.hosts.ray_hosts import RayHosts
from headrace.launch.hosts.showing import Shown
from headrace.launch.hosts.starts import JobHosts, Starts
from headrace.launch.hosts.travelling import pack_luggage
from headrace.launch.requirements.file import code_folder, find_requirements
from headrace.launch.requirements.local import install_here
from headrace.launch.requirements.on_hosts import Requirements
from headrace.launch.site.host_site import is_told
from headrace.launch.supervise import STOPPING
from headrace.launch.told import tell
from headrace.launch.uploads.host_uploads import extra_grace_s
from headrace.launch.uploads.job_output import JobOutput
from headrace.records.run_folder import Attempt, RunFolder


def run_on_cluster(
    job: TorchrunJob, options: ClusterOptions, argv: Sequence[str], folder: RunFolder,
    attempt: Attempt,
) -> int:  # fmt: skip
    """Run a job on the hosts of a cluster and return its exit code.

    Args:
        job: What torchrun's flags ask for.
        options: What is asked of the cluster.
        argv: The command line, as each host reads it again.
        folder: The run's.
        attempt: The attempt that begins.

    Raises:
        UsageError: Ray is not installed.
        LaunchError: There is no such cluster, it lacks hosts, or no agent starts on them.
    """
    if not options.is_ray:
        install_here(job.contract, job.around, folder, attempt)
    stop = StopRequest()
    stop.heed(STOPPING)
    return _Job(job, options, argv, folder, attempt).run(stop)


class _Job:
    def __init__(
        self, job: TorchrunJob, options: ClusterOptions, argv: Sequence[str], folder: RunFolder,
        attempt: Attempt,
    ) -> None:  # fmt: skip
        self._job = job
        self._options = options
        self._folder = folder
        self._attempt = attempt
        self._groups = self._taking_part()
        self._luggage = pack_luggage(job.args, argv)
        self._shown = Shown()
        self._programs = Programs(
            job, self._groups, argv, self._luggage, folder, attempt, is_told=is_told(job.contract)
        )

    def run(self, stop: StopRequest) -> int:
        is_here = self._options.address is None
        look_for_channels(self._job.contract, is_same_machine=is_here)
        output = JobOutput(self._job.uploads, self._job.contract, self._folder.path)
        output.begin()
        try:
            return self._run_marked(stop)
        finally:
            output.finish()

    def _run_marked(self, stop: StopRequest) -> int:
        with marked(self._folder.logs(self._attempt.number)) as mark:
            if self._options.is_ray:
                return self._on_ray(stop, mark)
            devices = env.visible_devices(torch.accelerator.device_count())
            hosts = MachineHosts(self._groups, self._programs, mark, devices=devices)
            told = ", ".join(f"{group.name} {group.hosts}" for group in self._groups)
            tell(f"headrace: hosts emulated on this machine: {told}\n")
            tell_of_emulated(self._groups, len(devices), self._job.ranks_here)
            return self._run(hosts, stop)

    def _taking_part(self) -> list[Group]:
        """Return the groups whose hosts run the script, and tell of those that have no part."""
        options = self._options
        if is_told(self._job.contract):  # as there, the script runs on every host
            rest = [group for group in options.others if group.name != options.offload]
            return [options.training, *rest]
        for group in () if options.driver else options.others:
            if group.name != options.offload:
                tell(f"headrace: group {group.name}: its hosts have no part in this job; "
                     f"--offload {group.name} would have them make batches\n")  # fmt: skip
        return [options.training]

    def _on_ray(self, stop: StopRequest, mark: Mark) -> int:
        options = self._options
        if not options.address:
            devices = torch.accelerator.device_count()
            tell_of_emulated(self._groups, devices, self._job.ranks_here)
        requirements = self._requirements()
        with (
            _address(options) as address,
            # On emulated hosts the ranks stand where this process does.
            connected(address, folder=self._luggage.folder if options.address else None) as ray,
        ):
            stop.heed(STOPPING)  # Ray has its own ideas
            hosts = RayHosts(
                ray, options, self._groups, self._programs, self._luggage, mark,
                requirements=requirements,
                offloading=self._offloading(ray, mark, requirements),
                profile=self._job.options.profile,
            )  # fmt: skip
            return self._run(hosts, stop)

    def _run(self, hosts: JobHosts, stop: StopRequest) -> int:
        starts = Starts(
            hosts,
            self._shown,
            self._folder.logs(self._attempt.number),
            grace_s=self._job.shutdown_s + extra_grace_s(self._job.uploads),
            max_restarts=int(self._job.args.max_restarts),
            max_preemptions=self._options.max_preemptions,
        )
        return starts.run(stop)

    def _requirements(self) -> Requirements | None:
        told = self._job.around.requirements
        file = find_requirements(told, code_folder(self._job))
        if file is None:
            return None
        return Requirements(
            file, self._luggage, is_named=told is not None,
            travels=self._options.address is not None, folder=self._folder, attempt=self._attempt,
        )  # fmt: skip

    def _offloading(
        self, ray: ModuleType, mark: Mark, requirements: Requirements | None
    ) -> Offloading | None:
        options = self._options
        if options.offload is None:
            return None
        named = {one.name: one for one in options.others}
        return Offloading(
            ray, options.offload, self._luggage, mark, self._shown, self._offload_choice(),
            requirements,
            declared=named.get(options.offload), training=options.training.name,
        )  # fmt: skip

    def _offload_choice(self) -> OffloadChoice | None:
        options = self._options
        if options.offload is None or not options.offload_if_it_helps:
            return None
        ranks = self._job.ranks_here * options.training.hosts
        return OffloadChoice(self._folder.path, self._attempt.number, options.offload, ranks, tell)


@contextmanager
def _address(options: ClusterOptions) -> Iterator[str]:
    if options.address is not None:
        yield options.address
        return
    groups = [options.training, *options.others]
    told = ", ".join(f"{group.name} {group.hosts}" for group in groups)
    tell(f"headrace: a Ray cluster on this machine, hosts emulated: {told}\n")
    try:
        devices = env.visible_devices(torch.accelerator.device_count())
        cluster = LocalCluster(groups, devices=devices)
    except LaunchError:
        import_ray()  # tells the remedy where it is missing; before, it would not see the token
        raise
    try:
        yield cluster.address
    finally:
        cluster.close()
