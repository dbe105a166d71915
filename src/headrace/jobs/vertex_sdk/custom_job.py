"""`CustomJob` of Vertex AI's SDK: a script, or worker pools with what runs on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core import env
from headrace.jobs.vertex_sdk.job_states import JobState
from headrace.jobs.vertex_sdk.settings import name_of, report_ignored
from headrace.jobs.vertex_sdk.vertex_job import (
    VertexJob,
    check_known,
    check_requirements,
    check_variables,
    script_request,
)
from headrace.jobs.vertex_sdk.worker_pools import Code, Machine, pools_request

_IGNORED = (
    "project", "location", "credentials", "labels", "encryption_spec_key_name", "staging_bucket",
    "persistent_resource_id",
)  # fmt: skip
"""The SDK's further arguments of a job."""
_IGNORED_SCRIPT = (
    *_IGNORED, "container_uri", "boot_disk_type", "boot_disk_size_gb",
    "reduction_server_replica_count", "reduction_server_machine_type",
    "reduction_server_container_uri", "tpu_topology",
)  # fmt: skip
_IGNORED_RUN = (
    "create_request_timeout", "disable_retries", "persistent_resource_id", "scheduling_strategy",
    "max_wait_duration", "psc_interface_config",
)  # fmt: skip

_MACHINE = ("machine_type", "accelerator_type", "accelerator_count")


class CustomJob(VertexJob[JobState]):
    """A job of worker pools, each with its machines and a container's command or a package.

    Args:
        display_name: Of the job; the run is named after it.
        worker_pool_specs: The pools, as dicts or the SDK's objects. No container is started: what
            it would run runs here.
        base_output_dir: A URL to which model, checkpoints and logs are synced; None: they are in
            the run's folder alone.
        ignored: The SDK's other arguments, such as labels, which have no meaning here.

    Raises:
        UsageError: An invalid value.

    Example:
        CustomJob.from_local_script("resnet", "train.py", container_uri="").run()
    """

    _states = JobState
    _resource = "customJobs"

    def __init__(
        self,
        display_name: str,
        worker_pool_specs: Sequence[object],
        base_output_dir: str | None = None,
        **ignored: Any,
    ) -> None:
        super().__init__(display_name)
        known = check_known(ignored, _IGNORED, CustomJob, self._where())
        report_ignored(type(self).__name__, **known)
        self._asked = pools_request(worker_pool_specs, self._where())
        self._asked["output_path"] = base_output_dir

    @classmethod
    def from_local_script(
        cls,
        display_name: str,
        script_path: str,
        container_uri: str = "",
        *,
        enable_autolog: bool = False,
        args: Sequence[str | float] | None = None,
        requirements: Sequence[str] | None = None,
        environment_variables: Mapping[str, str] | None = None,
        replica_count: int = 1,
        machine_type: str = "n1-standard-4",
        accelerator_type: str = "ACCELERATOR_TYPE_UNSPECIFIED",
        accelerator_count: int = 0,
        base_output_dir: str | None = None,
        **ignored: Any,
    ) -> CustomJob:
        """Return the job of a script on one or several machines.

        Args:
            display_name: Of the job; the run is named after it.
            script_path: The script.
            container_uri: Ignored: the script runs with what is installed here.
            enable_autolog: Params and metrics that MLflow's autologging finds go to the run.
            args: The script's arguments.
            requirements: What pip installs first, where it is not installed.
            environment_variables: Of the script.
            replica_count: How many machines; the script runs once on each.
            machine_type: Their type, which is emulated.
            accelerator_type: The kind of their devices.
            accelerator_count: How many of them each machine has.
            base_output_dir: As of `CustomJob`.
            ignored: The SDK's other arguments, which have no meaning here.

        Raises:
            UsageError: An invalid value.
        """
        job = cls.__new__(cls)
        VertexJob.__init__(job, display_name)
        ignored = {"container_uri": container_uri, **ignored}
        known = check_known(ignored, _IGNORED_SCRIPT, cls.from_local_script, cls._where())
        report_ignored(cls.__name__, **known)
        variables = check_variables(environment_variables, cls._where())
        code = Code(entry_point=str(script_path), environment=variables)
        machine = Machine(machine_type=machine_type, accelerator_type=accelerator_type,
                          accelerator_count=accelerator_count)  # fmt: skip
        asked = script_request(code, machine, replica_count)
        job._requirements = check_requirements(requirements, cls._where())  # noqa: SLF001
        if enable_autolog:
            asked["environment"] |= {env.AUTOLOG.name: "1"}
        given = {"args": args or [], "output_path": base_output_dir}
        job._asked = {**asked, **given}  # noqa: SLF001 - its own
        return job

    def run(
        self,
        service_account: str | None = None,
        network: str | None = None,
        *,
        timeout: int | None = None,
        restart_job_on_worker_restart: bool = False,
        enable_web_access: bool = False,
        experiment: object = None,
        experiment_run: object = None,
        tensorboard: str | None = None,
        sync: bool = True,
        **ignored: Any,
    ) -> None:
        """Start the job, and with `sync` print its output and wait for its end.

        Args:
            service_account: Ignored, as are `network`, `restart_job_on_worker_restart`,
                `enable_web_access` and `tensorboard`.
            timeout: Longest time that it may take, in seconds.
            experiment: Name of the experiment; by default the one that `init` chose.
            experiment_run: The run's name; one that exists is continued.
            sync: Otherwise the job runs on by itself, and `wait()` waits for it.
            ignored: The SDK's other arguments, which have no meaning here.

        Raises:
            UsageError: An invalid value; nothing has run.
            JobFailedError: The job failed; a RuntimeError, as there.
        """
        known = check_known(ignored, _IGNORED_RUN, self.run, "run: ")
        report_ignored(
            "run", service_account=service_account, network=network, tensorboard=tensorboard,
            restart_job_on_worker_restart=restart_job_on_worker_restart,
            enable_web_access=enable_web_access, **known,
        )  # fmt: skip
        self._start(
            {**self._asked, "max_run": timeout}, sync=sync,
            experiment=None if experiment is None else name_of(experiment),
            run_name=None if experiment_run is None else name_of(experiment_run),
        )  # fmt: skip

    def submit(self, **arguments: Any) -> None:
        """Start the job without waiting for it; arguments are those of `run`."""
        self.run(sync=False, **arguments)
