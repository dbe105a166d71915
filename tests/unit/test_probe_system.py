"""What a host has for a job: limits of control groups, disks and cards that are its own."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from headrace.observe.probe.host_resources import (
    is_disk,
    own_interfaces,
    pressure_ns,
    read_limits,
)

GIB = 1 << 30
HOST_BYTES = psutil.virtual_memory().total


def proc(folder: Path, *, cgroup: str, mountinfo: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(cgroup)
    (folder / "mountinfo").write_text(mountinfo)
    return folder


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_version_2_takes_the_tightest_on_the_way_up(tmp_path: Path):
    mount = tmp_path / "cgroup"
    put(mount / "pod", cpu__max="50000 100000", memory__max=str(GIB), memory__current="5")
    put(mount / "pod/inner", cpu__max="max 100000", memory__max="max", cpu__stat="")
    found = read_limits(
        HOST_BYTES,
        proc(
            tmp_path / "self",
            cgroup="0::/pod/inner",
            mountinfo=f"30 1 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw",
        ),
    )
    assert found.cores == 0.5
    assert found.cpu_stat == mount / "pod/cpu.stat"
    assert found.memory_bytes == GIB
    assert found.memory_used == mount / "pod/memory.current"


@pytest.mark.parametrize("root", ["/", "/docker/abc", "/other"])
def test_version_1_in_a_container_or_on_the_host(tmp_path: Path, root: str):
    cpu, memory = tmp_path / "cpu,cpuacct", tmp_path / "memory"
    inside = "docker/abc" if root == "/" else "."
    put(cpu / inside, cpu__cfs_quota_us="25000", cpu__cfs_period_us="100000")
    put(memory / inside, memory__limit_in_bytes=str(GIB), memory__usage_in_bytes="7")
    found = read_limits(
        HOST_BYTES,
        proc(
            tmp_path / "self",
            cgroup="4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc",
            mountinfo=(
                f"30 1 0:26 {root} {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n"
                f"31 1 0:27 {root} {memory} rw - cgroup cgroup rw,memory"
            ),
        ),
    )
    assert found.cores == 0.25
    assert found.memory_bytes == GIB
    assert found.memory_used is not None
    assert found.memory_used.read_text() == "7\n"


def test_pressure_is_that_of_the_control_group_or_else_of_the_host(tmp_path: Path):
    mount, some = tmp_path / "cgroup", "some avg10=0.00 avg60=0.00 avg300=0.00 total={}"
    mountinfo = f"30 1 0:26 / {mount} rw - cgroup2 cgroup2 rw"
    folder = proc(tmp_path / "self", cgroup="0::/pod", mountinfo=mountinfo)
    put(mount / "pod", cpu__stat="")
    assert read_limits(HOST_BYTES, folder).cpu_pressure is None
    put(tmp_path / "pressure", cpu=some.format(5))
    assert read_limits(HOST_BYTES, folder).cpu_pressure == tmp_path / "pressure/cpu"
    put(mount / "pod", cpu__pressure=some.format(7))
    found = read_limits(HOST_BYTES, folder).cpu_pressure
    assert found == mount / "pod/cpu.pressure"
    assert pressure_ns(found) == 7000
    (mount / "pod/cpu.pressure").write_text("")
    assert (pressure_ns(found), pressure_ns(None)) == (0, 0)


def test_no_limits_are_the_host_s(tmp_path: Path):
    put(tmp_path / "cgroup", cpu__cfs_quota_us="-1", memory__limit_in_bytes=str(2**63 - 4096))
    for mountinfo in ("", f"30 1 0:26 / {tmp_path}/cgroup rw - cgroup cgroup rw,memory,cpu"):
        found = read_limits(
            HOST_BYTES, proc(tmp_path / "self", cgroup="1:cpu,memory:/", mountinfo=mountinfo)
        )
        assert found.cores == len(os.sched_getaffinity(0))
        assert found.memory_bytes == HOST_BYTES
        assert found.memory_used is found.cpu_stat is None


def test_what_lies_on_a_disk_is_not_counted_with_it(tmp_path: Path):
    for name in ("sda", "dm-0/slaves/sda", "md0/slaves/sda", "nvme0n1/slaves", "loop0", "zram0"):
        (tmp_path / name).mkdir(parents=True)
    named = ("sda", "sda1", "dm-0", "md0", "nvme0n1", "nvme0n1p1", "loop0", "zram0", "cciss/c0d0")
    assert [name for name in named if is_disk(name, tmp_path)] == ["sda", "nvme0n1"]


def test_what_goes_through_a_card_is_not_counted_with_it(tmp_path: Path):
    for name in ("eth0/device", "eth1/device", "bond0/lower_eth0", "docker0", "veth1", "tun0"):
        (tmp_path / "net" / name).mkdir(parents=True)
        folder = tmp_path / "net" / Path(name).parts[0]
        other_end = "8" if name == "veth1" else "7"
        put(folder, type="65534" if name == "tun0" else "1", ifindex="7", iflink=other_end)
    named = ("eth0", "eth1", "bond0", "docker0", "veth1", "tun0", "gone")
    routes = "Iface\tDestination\tGateway\n{}\t00000000\t0100000A\ndocker0\t000011AC\t00000000\n"
    for default, cards in {
        "bond0": ("eth0", "eth1"),  # its traffic is theirs
        "tun0": ("eth0", "eth1"),
        "docker0": ("eth0", "eth1"),  # as an Open vSwitch's
        "veth1": ("eth0", "eth1", "veth1"),  # a pod with cards of its own beside
    }.items():
        (tmp_path / default).write_text(routes.format(default))
        assert own_interfaces(named, tmp_path / "net", tmp_path / default) == cards
    assert own_interfaces(("veth1", "tun0"), tmp_path / "net", tmp_path / "veth1") == ("veth1",)
    assert own_interfaces(("veth1", "tun0"), tmp_path / "net", tmp_path / "gone") == (
        "veth1",
        "tun0",
    )
