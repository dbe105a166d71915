"""A server that has not the folder in which a rank stands."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from headrace.data.loader.failures import BatchFailure
from headrace.offload.capacity import SharedCores
from headrace.offload.protocol import (
    HEADER_BYTES,
    FrameHeader,
    FrameKind,
    LoaderSpecMessage,
    encode_frame,
)
from headrace.offload.server import ServerSession


def answer_to(connection: socket.socket, spec: LoaderSpecMessage) -> tuple[FrameHeader, bytes]:
    """Return what a session answers to a loader spec."""
    connection.sendall(encode_frame(FrameKind.LOADER_SPEC, spec.to_bytes(), a=1))
    with connection.makefile("rb") as stream:
        while True:
            head = FrameHeader.unpack(stream.read(HEADER_BYTES))
            body = stream.read(head.body_bytes)
            if head.kind in {FrameKind.READY, FrameKind.REFUSED}:
                return head, body


@pytest.mark.parametrize("folder", ["outputs/1", "/of/the/rank/alone"])
def test_relative_paths_are_not_looked_for_in_another_folder(folder: str, tmp_path: Path):
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    serving = threading.Thread(target=ServerSession(theirs, SharedCores(1, 2**20), tmp_path).run)
    serving.start()
    try:
        spec = LoaderSpecMessage(rank=0, folder=folder, path=[], variables={}, content=b"")
        head, body = answer_to(ours, spec)
    finally:
        ours.close()
        serving.join()
    assert head.kind is FrameKind.REFUSED
    assert (
        f"the script stands in {folder}, which this host has not"
        in BatchFailure.from_bytes(body).summary
    )
