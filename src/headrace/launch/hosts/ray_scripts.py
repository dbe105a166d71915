"""What a script finds that uses Ray itself: its `ray.init()` joins the job's cluster.

Ray Train's workers and Ray Data's tasks are processes of Ray's own, which have nothing of the
script's environment. What they are to have, Ray takes from a variable, as it does for `ray job
submit`: the job's folder, in which the script's modules are, and what has them recorded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from headrace.cluster.machine import boot_id
from headrace.cluster.placement import PlacedAgent
from headrace.core import env
from headrace.core.places import SITE
from headrace.launch.hosts.travelling import Luggage
from headrace.launch.told import tell

_RECORDED = (env.RECORDS_DIR.name, env.ATTEMPT.name)


def ray_variables(
    ray: ModuleType,
    luggage: Luggage,
    recording: Mapping[str, str | None],
    *,
    is_here: bool,
    drives: bool,
    devices_held: bool,
) -> dict[str, str]:
    """Return the variables by which a script's own `ray.init()` finds cluster and folder.

    Args:
        ray: Connected to the cluster.
        luggage: What goes with the job.
        recording: The variables that have ranks recorded; empty: nothing is.
        is_here: The script runs on this machine.
        drives: It runs once, under --driver; a rank's own Ray program is as it is without us.
        devices_held: The agents of the ranks have taken their hosts' devices.
    """
    context = ray.get_runtime_context()
    recorded = {name: value for name in _RECORDED if (value := recording.get(name))}
    own: dict[str, str] = dict(recorded)
    if recorded:
        own[env.RECORDS_BOOT.name] = boot_id()
    runtime_env: dict[str, Any] = {"env_vars": own}
    package = context.runtime_env.get("working_dir")
    if package:
        runtime_env["working_dir"] = package  # it is on its way already, for the agents
        # Ray has the folder itself on the path, and what the host has after this.
        path = ":".join(filter(None, [SITE if recorded else "", luggage.scripts]))
    else:  # all hosts are emulated on this machine
        path = env.path_with(SITE) if recorded else ""
    if path:
        own[env.PYTHONPATH.name] = path
    variables = {env.RAY_ADDRESS.name: context.gcs_address}
    if devices_held:
        variables[env.DEVICES_HELD.name] = "1"
        variables[env.PYTHONPATH.name] = env.path_with(SITE) if is_here else "{site}"
    if (
        drives and env.RAY_JOB_CONFIG.get() is None
    ):  # else this is a job of Ray's already, with its own
        variables[env.RAY_JOB_CONFIG.name] = json.dumps({"runtime_env": runtime_env})
        variables[env.RAY_JOB_CONFIG_YIELDS.name] = "1"
    return variables


def tell_unrecorded(agent: PlacedAgent, profile: str) -> None:
    """Tell what a script that drives the cluster, and Ray Train's workers, do not have.

    Args:
        agent: Of the host that runs the script.
        profile: The job's: with "off" nobody expects records.
    """
    if not agent.facts.is_drivers and profile != "off":
        tell(
            f"headrace: the script runs on {agent.host.name}, not where this command does, so "
            "nothing of it is recorded. Start the job there to have Ray Train's workers recorded.\n"
        )
    elif env.RAY_JOB_CONFIG.get() is not None:
        tell(
            "headrace: this is a job of Ray's own (ray job submit), whose working_dir and "
            "variables hold for what the script starts: Ray Train's workers are not recorded, and "
            "Headrace passes no folder on to them\n"
        )
