"""What emulated hosts give to a Ray node that their script starts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from ray._private.parameter import RayParams
from ray.scripts.scripts import start

from headrace.bootstrap.ray_hooks import DEFAULT_PORTS, use_host_address
from headrace.jobs.hosts.script_ray import ScriptRayCluster

OURS = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR",
        "RAY_START_HOOK", "PYTHON_EXEC")  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        monkeypatch.delenv(name, raising=False)


def test_each_host_has_its_own_and_all_of_them_one_token() -> None:
    scripts = ScriptRayCluster()
    first, second = scripts.variables("127.0.0.2"), scripts.variables("127.0.0.3")
    differing = {name for name in first if first[name] != second[name]}
    assert differing == {"RAY_TMPDIR", "HEADRACE_HOST_ADDRESS"}
    token = Path(first["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    scripts.close()
    assert not token.parent.exists()


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("RAY_ADDRESS", set()),
        (
            "RAY_AUTH_TOKEN",
            {"RAY_TMPDIR", "RAY_START_HOOK", "HEADRACE_HOST_ADDRESS", "GRPC_DNS_RESOLVER"},
        ),
        ("RAY_TMPDIR", {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}),
        ("PYTHON_EXEC", {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"}),
    ],
)
def test_what_the_user_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, name: str, left: set[str]
) -> None:
    monkeypatch.setenv(name, "mine")
    scripts = ScriptRayCluster()
    assert set(scripts.variables("127.0.0.2")) == left
    scripts.close()


def test_a_node_is_what_the_script_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOST_ADDRESS", "127.0.0.3")
    monkeypatch.setenv("RAY_TMPDIR", "/there")
    usual = {"max_worker_port": 19999, "dashboard_agent_listen_port": 52365}
    plain = RayParams(min_worker_port=10002, **usual)
    use_host_address(plain, True)
    assert (plain.node_ip_address, plain.temp_dir) == ("127.0.0.3", "/there/ray")
    assert (plain.min_worker_port, plain.max_worker_port) == (0, 0)
    params = RayParams(node_ip_address="127.0.0.9", temp_dir="/t", min_worker_port=10003, **usual)
    use_host_address(params, True)
    assert (params.node_ip_address, params.temp_dir) == ("127.0.0.9", "/t")
    assert params.min_worker_port == 10003


def test_ray_s_usual_ports_are_those() -> None:
    usual = {option.name: option.default for option in start.params}
    assert {name: usual[name] for name in DEFAULT_PORTS} == DEFAULT_PORTS
