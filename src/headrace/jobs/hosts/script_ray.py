"""Ray as a job's script finds it: variables of a cluster that it starts itself, or of the job's.

Scripts for heterogeneous clusters run `ray start` on each host: variables give each such node its
own address, ports and temporary folder.

On a Ray cluster, a script's own `ray.init()` joins the job's cluster. Ray Train's workers and Ray
Data's tasks are processes of Ray, which do not inherit the script's environment. Ray gives them the
runtime environment in a variable, as it does for `ray job submit`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.bootstrap.ray_hooks import HOOK
from headrace.cluster.ray_cluster import PlacedAgent
from headrace.cluster.ray_node import (
    make_node_folder,
    new_token,
    remove_node_folder,
    write_token_file,
)
from headrace.core import env
from headrace.core.boot_id import host_id
from headrace.core.console import print_status
from headrace.core.source_location import SITECUSTOMIZE_DIR
from headrace.jobs.hosts.host_commands import WorkingDir

_TOKEN_VARIABLES = (env.RAY_AUTH_MODE, env.RAY_AUTH_TOKEN, env.RAY_AUTH_TOKEN_PATH)
# PYTHON_EXEC: another interpreter may not find Headrace, whose hook this needs.
_HOST_VARIABLES = (env.RAY_TMPDIR, env.RAY_START_HOOK, env.PYTHON_EXEC)


class ScriptRayCluster:
    """The variables of a Ray cluster that scripts start themselves; created on first use."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._token: dict[str, str] = {}

    def variables(self, address: str) -> dict[str, str]:
        """Return the variables of a host's script; none where the user's name a Ray cluster."""
        if env.RAY_ADDRESS.get() is not None:
            return {}
        if self._folder is None:
            self._folder = make_node_folder()
            self._token = _token_variables(self._folder)
        if any(each.get() is not None for each in _HOST_VARIABLES):
            return self._token
        # A short name: the paths of Unix sockets are limited.
        own = self._folder / address.rpartition(".")[2]
        own.mkdir(exist_ok=True)
        return {
            **self._token,
            env.RAY_TMPDIR.name: str(own),
            env.HOST_ADDRESS.name: address,
            env.RAY_START_HOOK.name: HOOK,
            # gRPC's own resolver also asks a name server, and waits where there is no network.
            env.GRPC_DNS_RESOLVER.name: env.GRPC_DNS_RESOLVER.get() or "native",
        }

    def close(self) -> None:
        """Remove the token and Ray's files, after the hosts have ended."""
        if self._folder is not None:
            remove_node_folder(self._folder)


def _token_variables(folder: Path) -> dict[str, str]:
    """Return the variables with the token by which the script's Ray nodes authenticate.

    Ray requires a token that `ray.init()` once left in the home folder, but `ray start --address`
    sends it only by these variables.
    """
    if any(each.get() is not None for each in _TOKEN_VARIABLES):
        return {}
    variables = write_token_file(folder / "token", new_token())
    return {name: value for name, value in variables.items() if value is not None}


_RECORDING_VARIABLES = (env.RECORDS_DIR.name, env.RECORDS_LINK.name, env.ATTEMPT.name)


def ray_variables(
    ray: ModuleType,
    working_dir: WorkingDir,
    recording: Mapping[str, str | None],
    *,
    is_here: bool,
    is_driver: bool,
    devices_reserved: bool,
) -> dict[str, str]:
    """Return the variables by which a script's own `ray.init()` finds cluster and folder.

    `recording` has the variables that have ranks recorded, if they are. A script under --driver
    runs once; a rank's own use of Ray stays unchanged. The ranks' agents reserve devices.
    """
    context = ray.get_runtime_context()
    recorded = {}
    if recording.get(env.RECORDS_DIR.name):
        recorded = {name: value for name in _RECORDING_VARIABLES if (value := recording[name])}
    env_vars: dict[str, str] = dict(recorded)
    if recorded:
        env_vars[env.RECORDS_BOOT.name] = host_id()
    runtime_env: dict[str, Any] = {"env_vars": env_vars}
    package = context.runtime_env.get("working_dir")
    if package:
        runtime_env["working_dir"] = package  # already uploaded for the agents
        # Ray puts the folder itself on the path, and the host's own path after this.
        path = ":".join(filter(None, [SITECUSTOMIZE_DIR if recorded else "", working_dir.scripts]))
    else:  # all hosts are emulated on this machine
        path = env.pythonpath_with(SITECUSTOMIZE_DIR) if recorded else ""
    if path:
        env_vars[env.PYTHONPATH.name] = path
    variables = {env.RAY_ADDRESS.name: context.gcs_address}
    if devices_reserved:
        variables[env.DEVICES_RESERVED.name] = "1"
        variables[env.PYTHONPATH.name] = (
            env.pythonpath_with(SITECUSTOMIZE_DIR) if is_here else "{pythonpath}"
        )
    if is_driver and env.RAY_JOB_CONFIG.get() is None:  # else Ray runs this job by a config
        variables[env.RAY_JOB_CONFIG.name] = json.dumps({"runtime_env": runtime_env})
        variables[env.RAY_JOB_CONFIG_YIELDS.name] = "1"
    return variables


def has_recorded_workers(agent: PlacedAgent, profile: str) -> bool:
    """Return whether what a script under --driver has Ray start is recorded.

    `agent` is that of the script's host.
    """
    return agent.facts.is_drivers and profile != "off" and env.RAY_JOB_CONFIG.get() is None


def warn_unrecorded_script(agent: PlacedAgent, profile: str) -> None:
    """Print that a script under --driver, or Ray Train's workers, are not recorded, if so.

    `agent` is that of the script's host. With the profile "off" nothing is said about records.
    """
    if not agent.facts.is_drivers and profile != "off":
        print_status(
            f"the script runs on {agent.host.name}, not where this command does, so "
            "nothing of it is recorded. Start the job there to have Ray Train's workers recorded."
        )
    elif env.RAY_JOB_CONFIG.get() is not None:
        print_status(
            "this is a job of Ray's own (ray job submit), whose working_dir and "
            "variables hold for what the script starts: Ray Train's workers are not recorded, and "
            "Headrace passes no folder on to them"
        )
