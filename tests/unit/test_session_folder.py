"""A station that has not the folder in which a rank stands."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from headrace.cluster.offload.link import HEAD_BYTES, Head, Kind, frame
from headrace.cluster.offload.recipe_message import RecipeMessage
from headrace.cluster.offload.session import Session
from headrace.cluster.offload.shares import Cores
from headrace.data.loader.failures import Failure


def answer_to(connection: socket.socket, recipe: RecipeMessage) -> tuple[Head, bytes]:
    """Return what a session says of a recipe."""
    connection.sendall(frame(Kind.RECIPE, recipe.to_bytes(), a=1))
    with connection.makefile("rb") as said:
        while True:
            head = Head.unpack(said.read(HEAD_BYTES))
            body = said.read(head.body_bytes)
            if head.kind in {Kind.READY, Kind.REFUSED}:
                return head, body


@pytest.mark.parametrize("folder", ["outputs/1", "/of/the/rank/alone"])
def test_relative_paths_are_not_looked_for_in_another_folder(folder: str, tmp_path: Path):
    here, there = socket.socketpair()
    here.settimeout(60)
    serving = threading.Thread(target=Session(there, Cores(1, 2**20), tmp_path).run)
    serving.start()
    try:
        recipe = RecipeMessage(rank=0, folder=folder, path=[], variables={}, content=b"")
        head, body = answer_to(here, recipe)
    finally:
        here.close()
        serving.join()
    assert head.kind is Kind.REFUSED
    assert (
        f"the script stands in {folder}, which this host has not"
        in Failure.from_bytes(body).summary
    )
