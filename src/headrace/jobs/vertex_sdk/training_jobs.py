"""`CustomTrainingJob` and `CustomPythonPackageTrainingJob` of Vertex AI's SDK.

There such a job may end by registering a model; here the model is what the script saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.core.console import print_status
from headrace.core.errors import UsageError
from headrace.jobs.vertex_sdk.job_states import PipelineState
from headrace.jobs.vertex_sdk.settings import report_ignored
from headrace.jobs.vertex_sdk.vertex_job import (
    VertexJob,
    check_known,
    check_requirements,
    check_variables,
    script_request,
)
from headrace.jobs.vertex_sdk.worker_pools import Code, Machine, package_code

_IGNORED = (
    "container_uri", "project", "location", "credentials", "labels",
    "training_encryption_spec_key_name", "model_encryption_spec_key_name", "staging_bucket",
    "explanation_metadata", "explanation_parameters", "model_serving_container_image_uri",
    "model_serving_container_predict_route", "model_serving_container_health_route",
    "model_serving_container_command", "model_serving_container_args",
    "model_serving_container_environment_variables", "model_serving_container_ports",
    "model_description", "model_instance_schema_uri", "model_parameters_schema_uri",
    "model_prediction_schema_uri",
)  # fmt: skip
"""The SDK's further arguments of a job."""
_IGNORED_RUN = (
    "annotation_schema_uri", "model_display_name", "model_labels", "model_id", "parent_model",
    "is_default_version", "model_version_aliases", "model_version_description", "service_account",
    "network", "bigquery_destination", "boot_disk_type", "boot_disk_size_gb",
    "reduction_server_replica_count", "reduction_server_machine_type",
    "reduction_server_container_uri", "training_fraction_split", "validation_fraction_split",
    "test_fraction_split", "training_filter_split", "validation_filter_split", "test_filter_split",
    "predefined_split_column_name", "timestamp_split_column_name", "restart_job_on_worker_restart",
    "enable_web_access", "enable_dashboard_access", "tensorboard", "create_request_timeout",
    "disable_retries", "persistent_resource_id", "tpu_topology", "scheduling_strategy",
    "reservation_affinity_type", "reservation_affinity_key", "reservation_affinity_values",
    "max_wait_duration", "psc_interface_config",
)  # fmt: skip
_SERVING = ("model_serving_container_image_uri", "model_display_name")


class _TrainingJob(VertexJob[PipelineState]):
    """A job whose machines are chosen when it runs."""

    _states = PipelineState
    _resource = "trainingPipelines"

    def __init__(
        self, display_name: str, code: Code, requirements: Sequence[str] | None,
        ignored: Mapping[str, Any],
    ) -> None:  # fmt: skip
        super().__init__(display_name)
        known = check_known(ignored, _IGNORED, type(self), self._where())
        report_ignored(type(self).__name__, **known)
        self._code = code
        self._requirements = check_requirements(requirements, self._where())

    def run(
        self,
        dataset: object = None,
        *,
        base_output_dir: str | None = None,
        args: Sequence[str | float] | None = None,
        environment_variables: Mapping[str, str] | None = None,
        replica_count: int = 1,
        machine_type: str = "n1-standard-4",
        accelerator_type: str = "ACCELERATOR_TYPE_UNSPECIFIED",
        accelerator_count: int = 0,
        timeout: int | None = None,
        sync: bool = True,
        **ignored: Any,
    ) -> None:
        """Start the job, and with `sync` print its output and wait for its end.

        Args:
            dataset: None: the script reads its data by its arguments.
            base_output_dir: A URL to which model, checkpoints and logs are synced; None: they are
                in the run's folder alone.
            args: The script's arguments.
            environment_variables: Of the script.
            replica_count: How many machines; the script runs once on each.
            machine_type: Their type, which is emulated.
            accelerator_type: The kind of their devices.
            accelerator_count: How many of them each machine has.
            timeout: Longest time that it may take, in seconds.
            sync: Otherwise the job runs on by itself, and `wait()` waits for it.
            ignored: The SDK's other arguments, which have no meaning here.

        Returns:
            None: no model is registered.

        Raises:
            UsageError: An invalid value; nothing has run.
            JobFailedError: The job failed; a RuntimeError, as there.
        """
        if dataset is not None:
            raise UsageError(
                "run: dataset: datasets of the cloud are not read here. Give the script the URL of "
                'its data: args=["--data", URL].'
            )
        report_ignored("run", **check_known(ignored, _IGNORED_RUN, self.run, "run: "))
        machine = Machine(
            machine_type=machine_type, accelerator_type=accelerator_type,
            accelerator_count=accelerator_count,
        )  # fmt: skip
        asked = script_request(self._code, machine, replica_count)
        variables = check_variables(environment_variables, "run: ")
        asked |= {"args": args or [], "environment": variables,
                  "output_path": base_output_dir, "max_run": timeout}  # fmt: skip
        self._start(asked, sync=sync)
        if any(ignored.get(name) for name in _SERVING):
            print_status(f"no model is registered: what the script saved is in {self._run().path}")

    def submit(self, dataset: object = None, **arguments: Any) -> None:
        """Start the job without waiting for it; arguments are those of `run`."""
        self.run(dataset, **{**arguments, "sync": False})


class CustomTrainingJob(_TrainingJob):
    """A job of a script.

    Args:
        display_name: Of the job; runs are named after it.
        script_path: The script.
        container_uri: Ignored: the script runs with what is installed here.
        requirements: What pip installs first, where it is not installed.
        ignored: The SDK's other arguments, which have no meaning here.

    Raises:
        UsageError: An invalid value.

    Example:
        CustomTrainingJob("resnet", "train.py", container_uri="").run(args=["--epochs", 3])
    """

    def __init__(
        self, display_name: str, script_path: str, container_uri: str = "",
        requirements: Sequence[str] | None = None, **ignored: Any,
    ) -> None:  # fmt: skip
        ignored = {"container_uri": container_uri, **ignored}
        super().__init__(display_name, Code(entry_point=str(script_path)), requirements, ignored)


class CustomPythonPackageTrainingJob(_TrainingJob):
    """A job of a module in a Python package.

    Args:
        display_name: Of the job; runs are named after it.
        python_package_gcs_uri: Path or URL of a source distribution or a wheel, or several.
        python_module_name: The module that runs, such as trainer.task.
        container_uri: Ignored: it runs with what is installed here.
        ignored: The SDK's other arguments, which have no meaning here.

    Raises:
        UsageError: An invalid value, or a package that cannot be had.
    """

    def __init__(
        self, display_name: str, python_package_gcs_uri: str | Sequence[str],
        python_module_name: str, container_uri: str = "", **ignored: Any,
    ) -> None:  # fmt: skip
        code = package_code(python_package_gcs_uri, python_module_name, self._where())
        super().__init__(display_name, code, None, {"container_uri": container_uri, **ignored})
