"""A server that has not the folder in which a rank stands."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from headrace.data.loader.failures import BatchFailure
from headrace.offload.capacity import SharedCores
from headrace.offload.frames import FrameHeader, FrameKind
from headrace.offload.protocol import LoaderSpecMessage
from headrace.offload.server import ServerSession
from offload_frames import KEYS, FrameEnd


def answer_to(proxy: FrameEnd, spec: LoaderSpecMessage) -> tuple[FrameHeader, bytes]:
    """Return what a session answers to a loader spec."""
    proxy.send(FrameHeader(FrameKind.LOADER_SPEC, a=1), spec.to_bytes())
    while True:
        head, body = proxy.receive()
        if head.kind in {FrameKind.READY, FrameKind.REFUSED}:
            return head, body


@pytest.mark.parametrize("folder", ["outputs/1", "/of/the/rank/alone"])
def test_relative_paths_are_not_looked_for_in_another_folder(folder: str, tmp_path: Path):
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    session = ServerSession(theirs, KEYS, SharedCores(1, 2**20, threading.Lock()), tmp_path)
    serving = threading.Thread(target=session.run)
    serving.start()
    try:
        spec = LoaderSpecMessage(rank=0, folder=folder, path=[], variables={}, content=b"")
        head, body = answer_to(FrameEnd(ours, is_server=False), spec)
    finally:
        ours.close()
        serving.join()
    assert head.kind is FrameKind.REFUSED
    assert (
        f"the script stands in {folder}, which this host has not"
        in BatchFailure.from_bytes(body).summary
    )
