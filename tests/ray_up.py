"""`ray up` on a file without a cloud: Ray's own steps, their commands noted and not run."""

from __future__ import annotations

import copy
import subprocess
from typing import Any

from ray.autoscaler._private import commands
from ray.autoscaler._private.updater import STATUS_UP_TO_DATE, TAG_RAY_NODE_STATUS
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.instance_manager.ray_installer import RayInstaller
from ray.core.generated.instance_manager_pb2 import Instance

HEAD, WORKER = "head-host", "worker-host"


class Hosts(NodeProvider):
    """Hosts that are there at once."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config["provider"], config["cluster_name"])
        self.tags: dict[str, dict[str, str]] = {}

    def create_node(self, _: dict[str, Any], tags: dict[str, str], __: int) -> None:
        self.tags[HEAD if tags[TAG_RAY_NODE_KIND] == NODE_KIND_HEAD else WORKER] = dict(tags)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        return [node for node, tags in self.tags.items() if tag_filters.items() <= tags.items()]

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self.tags.setdefault(node_id, {})

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self.node_tags(node_id).update(tags)

    def is_running(self, _: str) -> bool:
        return True

    def is_terminated(self, _: str) -> bool:
        return False

    def external_ip(self, _: str) -> str:
        return "192.0.2.1"

    def internal_ip(self, _: str) -> str:
        return "192.0.2.2"


class Noted:
    """What Ray would start, in place of `subprocess`; each command says that it went well."""

    DEVNULL = subprocess.DEVNULL

    def __init__(self) -> None:
        self.commands: list[str] = []

    def check_call(self, command: list[str], **_: Any) -> int:
        self.commands.append(" ".join(command))
        return 0

    def check_output(self, command: list[str], **_: Any) -> bytes:
        self.check_call(command)
        return b'["HOME=/home/ray"]' if ".Config.Env" in command[-1] else b"yes"


def start_head(config: dict[str, Any]) -> list[str]:
    """Return the commands by which Ray sets up and starts the head."""
    noted = Noted()
    commands.get_or_create_head_node(
        copy.deepcopy(config), "cluster.yaml", no_restart=False, restart_only=False, yes=True,
        override_cluster_name=None, _provider=Hosts(config), _runner=noted,
    )  # fmt: skip
    return noted.commands


def start_worker(config: dict[str, Any], node_type: str) -> list[str]:
    """Return the commands by which the head sets up and starts a host of a type."""
    noted, hosts = Noted(), Hosts(config)
    installer = RayInstaller(hosts, AutoscalingConfig(config), process_runner=noted)
    host = Instance(instance_type=node_type, cloud_instance_id=WORKER)
    installer.install_ray(host, head_node_ip="192.0.2.3")
    assert hosts.node_tags(WORKER)[TAG_RAY_NODE_STATUS] == STATUS_UP_TO_DATE
    return noted.commands
