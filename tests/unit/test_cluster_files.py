"""examples/clusters: what Ray makes of the files for AWS and Google Cloud; what all files keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import ValidationError
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray.autoscaler._private.util import prepare_config, validate_config

from headrace.platforms.instance_groups import GROUP_LABEL, parse_groups
from ray_up import start_head, start_worker

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "clusters"
FILES = sorted(FOLDER.glob("*.yaml"))
CLOUDS = ["aws", "gcp"]
Config = dict[str, Any]


def read(cloud: str) -> Config:
    return yaml.safe_load((FOLDER / f"{cloud}.yaml").read_text(encoding="utf-8"))


@pytest.fixture(params=CLOUDS)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A file as `ray up` completes it, the token's folder being one that is there."""
    config = prepare_config(read(request.param))
    (tmp_path / "auth_token").write_text("a token")
    config["file_mounts"] = dict.fromkeys(config["file_mounts"], str(tmp_path))
    return config


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ray_takes_the_file(cloud: str):
    config = read(cloud)
    assert prepare_config(config).keys() >= config.keys()
    validate_config(prepare_config(config))


BREAKS: list[tuple[str, Callable[[Config], object]]] = [
    ("unexpected", lambda it: it.update(worker_types={})),
    ("unexpected", lambda it: it["available_node_types"]["cpu"].update(label={})),
    (
        "not of type",
        lambda it: it["available_node_types"]["cpu"]["labels"].update({GROUP_LABEL: 1}),
    ),
    ("not of type", lambda it: it["available_node_types"]["cpu"].update(labels=["cpu"])),
    ("not of type", lambda it: it["available_node_types"]["cpu"].update(min_workers="2")),
    ("required", lambda it: it["available_node_types"]["gpu"].pop("node_config")),
    ("unexpected", lambda it: it["docker"].update(head_options=[])),
    ("not of type", lambda it: it["setup_commands"].append(["pip"])),
    ("smaller than the sum of `min_workers`", lambda it: it.update(max_workers=1)),
    ("must be one of `available_node_types`", lambda it: it.update(head_node_type="head")),
]


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(("message", "harm"), BREAKS)
def test_ray_refuses_a_harmed_copy(cloud: str, message: str, harm: Callable[[Config], object]):
    config = read(cloud)
    harm(config)
    with pytest.raises((ValidationError, ValueError), match=message):
        validate_config(prepare_config(config))


def test_each_host_starts_with_its_label_token_image_and_torch(
    config: Config, monkeypatch: pytest.MonkeyPatch
):
    for name, started in (("gpu", start_head(config)), ("cpu", start_worker(config, "cpu"))):
        # Each shell that a command goes through has quoted it once more.
        words = [re.sub(r"['\"\\]", "", command) for command in started]
        (ray_start,) = (text for text in words if "ray start" in text)
        assert f"export RAY_OVERRIDE_LABELS={{{GROUP_LABEL}:{name}}};" in ray_start
        (container,) = (text for text in words if "docker run" in text)
        assert f"-{name} bash" in container  # the end of the image's tag
        assert ("--gpus all" in container) == (name == "gpu")
        assert "-e RAY_AUTH_MODE=token -e RAY_AUTH_TOKEN_PATH=" in container
        (torch,) = (text for text in words if "torch==" in text)
        assert ("download.pytorch.org/whl/cpu" in torch) == (name == "cpu")
        assert "a token" not in " ".join(started)
    monkeypatch.setenv("RAY_OVERRIDE_LABELS", f'{{"{GROUP_LABEL}": "cpu"}}')
    spec = ResourceAndLabelSpec(num_cpus=1, num_gpus=0)
    spec.resolve(is_head=False, node_ip_address="192.0.2.2")
    assert spec.labels[GROUP_LABEL] == "cpu"


def test_a_host_without_a_label_starts_without(config: Config):
    for kind in config["available_node_types"].values():
        del kind["labels"]
    started = " ".join(start_head(config) + start_worker(config, "cpu"))
    assert started.count("RAY_OVERRIDE_RESOURCES") == 4  # `ray stop` and `ray start` of each
    assert GROUP_LABEL not in started


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_groups_are_up_without_being_asked_for(cloud: str):
    config = read(cloud)
    types = config["available_node_types"]
    assert all(kind["labels"] == {GROUP_LABEL: name} for name, kind in types.items())
    assert [config["head_node_type"], types["cpu"]["min_workers"]] == ["gpu", 2]
    assert types["cpu"]["min_workers"] == types["cpu"]["max_workers"] == config["max_workers"]
    assert [group.name for group in parse_groups([f"{name}=1" for name in types])] == ["gpu", "cpu"]
    assert [types["gpu"]["resources"].get("GPU"), types["cpu"]["resources"].get("GPU")] == [1, None]


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_token_lies_where_ray_looks_for_it_and_the_dashboard_is_not_for_the_network(cloud: str):
    config = read(cloud)
    (folder,) = config["file_mounts"]
    assert f"-e RAY_AUTH_TOKEN_PATH={folder}/auth_token" in config["docker"]["run_options"]
    assert "--dashboard-host=127.0.0.1 " in config["head_start_ray_commands"][-1]
    assert config["auth"] == {"ssh_user": "ubuntu"}


def test_there_is_a_file_for_each_and_the_page_says_how_it_is_used():
    assert [path.stem for path in FILES] == ["aws", "gcp", "kuberay"]
    page = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    assert all(f"`{path.relative_to(ROOT)}`" in page for path in FILES)
    for blank in ("ami-of-your-region", "your-project"):  # what the page has you fill in
        assert f"s/{blank}/" in page
        assert any(blank in path.read_text(encoding="utf-8") for path in FILES)


SECRET = re.compile(
    r"AUTH_TOKEN\s*[:=]|PRIVATE KEY|AKIA|ya29\.|secret_?(access_?)?key|password|credentials"
    r"|\b[A-Za-z0-9+/]{32,}={0,2}(?![\w/.-])",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_file_holds_a_secret(path: Path):
    assert not SECRET.search(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    ["-e RAY_AUTH_TOKEN=x", f"token: {'0f' * 16}", "aws_secret_access_key: x",
     "-----BEGIN RSA PRIVATE KEY-----"],
)  # fmt: skip
def test_a_secret_would_be_seen(text: str):
    assert SECRET.search(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_installed_is_what_headrace_is_tested_with(path: Path):
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    for name in ("ray", "torch"):
        (tested,) = re.findall(rf"^{name}==(.+)$", constraints, re.MULTILINE)
        versions = re.findall(rf"(?:{name}==|rayproject/{name}:)(\d+\.\d+\.\d+)", text)
        assert len(versions) >= 2  # the GPU side's and the CPU side's
        assert set(versions) == {tested}
