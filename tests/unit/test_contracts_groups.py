"""`--group`: what it says, and what it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import UsageError
from headrace.platforms.instance_groups import (
    GroupSpec,
    parse_groups,
    recorded_groups,
    this_host_type,
)


def test_groups_in_their_order_with_what_is_emulated():
    assert parse_groups(["gpu=1", "cpu=2:cpus=8,gpus=0"]) == (
        GroupSpec(name="gpu", hosts=1),
        GroupSpec(name="cpu", hosts=2, cpus=8, gpus=0),
    )
    assert parse_groups(["a.b-c_1=3"])[0].host_names() == ["a.b-c_1-0", "a.b-c_1-1", "a.b-c_1-2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "how many hosts"),
        ("gpu=", "nothing is no whole number"),
        ("gpu=0", "0 is no whole number above 0"),
        ("gpu=-1", "-1 is no whole number"),
        ("=1", "a name has letters"),
        ("-gpu=1", "a name has letters"),
        ("g pu=1", "a name has letters"),
        (f"{'g' * 64}=1", "63 at most"),
        ("gpu=1:cores=2", "cores is none of cpus, gpus"),
        ("gpu=1:cpus=0", "0 is no whole number above 0"),
        ("gpu=1:cpus", "nothing is no whole number"),
    ],
)
def test_what_is_no_group_is_reported_with_how_one_is_written(text: str, message: str):
    with pytest.raises(UsageError, match=message) as raised:
        parse_groups([text])
    assert "NAME=HOSTS" in str(raised.value)


def test_a_group_twice():
    with pytest.raises(UsageError, match="--group gpu is given twice"):
        parse_groups(["gpu=1", "gpu=2"])


def test_hosts_of_a_named_type_have_its_cores_and_devices():
    assert parse_groups(
        ["gpu=2xml.p3.16xlarge", "a=1xg2-standard-24", "b=1xn1-standard-8:gpus=4"]
    ) == (
        GroupSpec(name="gpu", hosts=2, cpus=64, gpus=8, instance_type="ml.p3.16xlarge"),
        GroupSpec(name="a", hosts=1, cpus=24, gpus=2, instance_type="g2-standard-24"),
        GroupSpec(name="b", hosts=1, cpus=8, gpus=4, instance_type="n1-standard-8"),
    )
    assert parse_groups(["a=1xlocal", "b=1xlocal_gpu"]) == (
        GroupSpec(name="a", hosts=1, gpus=0, instance_type="local"),
        GroupSpec(name="b", hosts=1, instance_type="local_gpu"),
    )


def test_a_type_that_does_not_exist_is_reported_with_the_nearest_one():
    with pytest.raises(UsageError, match=r"no instance type ml\.g5\.xlarg\. .*ml\.g5\.xlarge\?"):
        parse_groups(["gpu=1xml.g5.xlarg"])


def test_the_types_of_the_reference_cases_and_of_the_common_families_are_known():
    for name, cores, devices in [
        ("p3.16xlarge", 64, 8), ("g5.xlarge", 4, 1), ("c5.4xlarge", 16, 0), ("p4d.24xlarge", 96, 8),
        ("p4de.24xlarge", 96, 8), ("p5.48xlarge", 192, 8), ("g4dn.12xlarge", 48, 4),
        ("g6.2xlarge", 8, 1), ("c6i.8xlarge", 32, 0), ("c7i.large", 2, 0), ("m5.xlarge", 4, 0),
        ("m6i.32xlarge", 128, 0), ("r5.2xlarge", 8, 0), ("trn1.32xlarge", 128, 32),
        ("n1-standard-16", 16, 0), ("n2-highmem-8", 8, 0), ("c2-standard-30", 30, 0),
        ("c3-standard-44", 44, 0), ("a2-highgpu-1g", 12, 1), ("a3-highgpu-8g", 208, 8),
    ]:  # fmt: skip
        (group,) = parse_groups([f"a=1x{name}"])
        assert (group.cpus, group.gpus) == (cores, devices), name


def test_the_groups_of_a_job_are_recorded_with_what_they_do():
    groups = parse_groups(["gpu=1xml.g5.xlarge", "cpu=2:cpus=8", "spare=1"])
    assert recorded_groups(groups, "cpu") == [
        {"name": "gpu", "hosts": 1, "instance_type": "ml.g5.xlarge", "role": "training"},
        {"name": "cpu", "hosts": 2, "instance_type": "", "role": "auxiliary"},
        {"name": "spare", "hosts": 1, "instance_type": "", "role": ""},
    ]


def test_a_group_that_only_offload_names_is_recorded_too():
    training, auxiliary = recorded_groups(parse_groups(["gpu=1"]), "cpu")
    assert training["role"] == "training"
    assert auxiliary == {"name": "cpu", "hosts": 0, "instance_type": "", "role": "auxiliary"}


@pytest.mark.parametrize(
    ("vendor", "product", "expected"),
    [
        ("Amazon EC2", "g5.xlarge", "g5.xlarge"),
        ("Xen", "HVM domU", ""),
        ("Google", "Google Compute Engine", ""),
        ("QEMU", "pc-q35.5", ""),
    ],
)
def test_a_host_s_hardware_names_its_type_on_ec2(
    tmp_path: Path, vendor: str, product: str, expected: str
):
    (tmp_path / "sys_vendor").write_text(f"{vendor}\n")
    (tmp_path / "product_name").write_text(f"{product}\n")
    assert this_host_type(tmp_path) == expected


def test_a_host_s_type_is_sagemaker_s_word_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert this_host_type(tmp_path / "none") == ""
    (tmp_path / "sys_vendor").write_bytes(b"\xff\xfe")
    assert this_host_type(tmp_path) == ""
    monkeypatch.setenv("SM_CURRENT_INSTANCE_TYPE", "ml.g5.xlarge")
    assert this_host_type(tmp_path) == "ml.g5.xlarge"
