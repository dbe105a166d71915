"""Keys of offload's messages and hosts files: as earlier versions write and read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.offload.connection import HostsFile
from headrace.offload.protocol import LoaderSpecMessage


def test_a_loader_spec_carries_its_partitions_under_the_key_of_earlier_versions():
    message = LoaderSpecMessage(
        rank=0, folder="/job", path=[], variables={}, partitions=3, content=b"pickled"
    )
    line, _, content = message.to_bytes().partition(b"\n")
    fields = json.loads(line)
    assert fields.pop("strands") == 3
    assert "partitions" not in fields
    assert LoaderSpecMessage.from_bytes(message.to_bytes()) == message
    without = LoaderSpecMessage.from_bytes(json.dumps(fields).encode() + b"\n" + content)
    assert (without.partitions, without.content) == (0, b"pickled")


@pytest.mark.parametrize(("written", "partitions"), [({"strands": 5}, 5), ({}, 0)])
def test_a_hosts_file_of_an_earlier_version_is_read(
    tmp_path: Path, written: dict[str, int], partitions: int
):
    fields = {"key": "00", "folder": "/job", "cores": 2, "coming": 0, "hosts": [], **written}
    (tmp_path / "hosts.json").write_text(json.dumps(fields))
    read = HostsFile.read(tmp_path / "hosts.json")
    assert read.partitions == partitions
    assert json.loads(read.to_bytes()) == {**fields, "strands": partitions}
