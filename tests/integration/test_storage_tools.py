"""The S3 server and the proxy: what they promise to tests and benchmarks, and that they go."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import psutil
import pytest
from botocore.config import Config
from s3_server import S3Server
from s3_server import s3_server as run_s3_server
from slow_proxy import Faults, slow_proxy

from jobs import alive, eventually

TOOLS = Path(__file__).parents[2] / "tools"


def _boto(server: S3Server, endpoint: str) -> boto3.client:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )


def _is_listening(endpoint: str) -> bool:
    address = urlsplit(endpoint)
    with closing(socket.socket()) as probe:
        return probe.connect_ex((address.hostname, address.port)) == 0


def test_the_server_is_gone_after_the_block_and_its_objects_stay(tmp_path: Path) -> None:
    with run_s3_server(tmp_path / "s3", bucket="one") as server:
        _boto(server, server.endpoint).put_object(Bucket="one", Key="a/x", Body=b"123")
        assert psutil.pid_exists(server.pid)
    assert not psutil.pid_exists(server.pid)
    assert not _is_listening(server.endpoint)
    with run_s3_server(tmp_path / "s3", bucket="one") as server:
        answer = _boto(server, server.endpoint).get_object(Bucket="one", Key="a/x")
        assert answer["Body"].read() == b"123"


def _serve(make: Callable[[], AbstractContextManager[object]], sender: object) -> None:
    with make() as service:
        sender.send((service.endpoint, service.pid))
        time.sleep(60)


@pytest.mark.parametrize("which", ["server", "proxy"])
def test_services_end_with_a_killed_owner(which: str, tmp_path: Path) -> None:
    def make() -> AbstractContextManager[object]:
        return slow_proxy("127.0.0.1:1") if which == "proxy" else run_s3_server(tmp_path / "s3")

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    owner = context.Process(target=_serve, args=(make, sender))
    owner.start()
    endpoint, pid = receiver.recv()
    owner.kill()
    owner.join()
    eventually(lambda: not alive(pid), "the end of the process whose owner was killed")
    eventually(lambda: not _is_listening(endpoint), f"nobody listens at {endpoint}")


def test_the_proxy_is_gone_after_the_block(s3_server: S3Server) -> None:
    with slow_proxy(s3_server.endpoint) as proxy:
        assert _is_listening(proxy.endpoint)
    assert not psutil.pid_exists(proxy.pid)
    assert not _is_listening(proxy.endpoint)


def test_another_client_works_through_the_proxy(s3_server: S3Server) -> None:
    data = bytes(range(256)) * 20_000
    with slow_proxy(s3_server.endpoint) as proxy:
        client = _boto(s3_server, proxy.endpoint)
        client.put_object(Bucket=s3_server.bucket, Key="boto/x", Body=data)
        body = client.get_object(Bucket=s3_server.bucket, Key="boto/x", Range="bytes=5-999999")
        assert body["Body"].read() == data[5:1_000_000]
        listed = client.list_objects_v2(Bucket=s3_server.bucket, Prefix="boto/")
        assert [entry["Key"] for entry in listed["Contents"]] == ["boto/x"]
        client.delete_object(Bucket=s3_server.bucket, Key="boto/x")
        counts = proxy.counts()
        assert counts["requests"] == 4
        assert counts["connections"] >= 2  # boto3's, and the one that asks for the counts


def test_latency_and_rate_are_at_least_what_was_asked_for(s3_server: S3Server) -> None:
    size, latency_s, rate = 1_000_000, 0.05, 10e6
    client = _boto(s3_server, s3_server.endpoint)
    client.put_object(Bucket=s3_server.bucket, Key="slow/x", Body=b"x" * size)
    with slow_proxy(s3_server.endpoint, latency_ms=latency_s * 1000, rate_mb=rate / 1e6) as proxy:
        client = _boto(s3_server, proxy.endpoint)
        began = time.monotonic()
        client.get_object(Bucket=s3_server.bucket, Key="slow/x")["Body"].read()
        assert time.monotonic() - began >= latency_s + size / rate - 0.02


def test_faults_repeat_with_their_seed() -> None:
    faults = Faults(busy=0.2, stall=0.2, reset=0.2, flip=0.2, seed=5)
    drawn = [faults.of(number, "GET", "/b/x") for number in range(1000)]
    assert drawn == [faults.of(number, "GET", "/b/x") for number in range(1000)]
    for name in ("busy", "stall", "reset", "flip", ""):
        assert 150 < drawn.count(name) < 250
    assert {faults.of(number, "PUT", "/b/x") for number in range(1000)} == {""}
    some = replace(faults, path="/x")
    assert drawn == [some.of(number, "GET", "/b/x") for number in range(1000)]
    assert {some.of(number, "GET", "/b/y") for number in range(1000)} == {""}


def test_a_flipped_bit_is_one_bit(s3_server: S3Server) -> None:
    data = b"\x00" * 1000
    _boto(s3_server, s3_server.endpoint).put_object(
        Bucket=s3_server.bucket, Key="flip/x", Body=data
    )
    with slow_proxy(s3_server.endpoint, faults=Faults(flip=1.0)) as proxy:
        answer = _boto(s3_server, proxy.endpoint).get_object(Bucket=s3_server.bucket, Key="flip/x")
        assert sum(byte.bit_count() for byte in answer["Body"].read()) == 1


def test_the_command_lines_print_where_they_listen(s3_server: S3Server, tmp_path: Path) -> None:
    for arguments in (
        ["slow_proxy.py", "--target", urlsplit(s3_server.endpoint).netloc, "--rate-mb", "50"],
        ["s3_server.py", str(tmp_path), "--port", "0"],
    ):
        command = [sys.executable, str(TOOLS / arguments[0]), *arguments[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            endpoint = process.stdout.readline().strip().rpartition("=")[2]
            connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=60)
            connection.request("GET", "/minio/health/live")
            assert connection.getresponse().status == 200
            connection.close()
            process.terminate()
            process.communicate()
        eventually(
            lambda endpoint=endpoint: not _is_listening(endpoint), f"nobody listens at {endpoint}"
        )
