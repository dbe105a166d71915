"""The live page's application in the process of the tests, without a server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.report.live.app import RunActions, live_app
from headrace.report.live.guard import Access
from headrace.report.live.run_folders import RunFolders


@dataclass(frozen=True)
class Answer:
    status: int
    text: str


class LiveApp:
    """The application over a folder of runs.

    Args:
        runs: The folder.
        settings: Those of `live_app`.
    """

    def __init__(self, runs: Path, **settings: Any) -> None:
        self._access = Access(token="token", names=frozenset(), local=True)
        actions = RunActions(stop=str, resume=str)
        self._app = live_app(RunFolders(runs), actions, self._access, lambda: False, **settings)

    def get(self, path: str) -> Answer:
        """Ask as the page does, with the token in its cookie."""
        sent: list[dict[str, Any]] = []
        cookie = f"{self._access.cookie}=token".encode()
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", b"localhost"), (b"cookie", cookie)],
            "root_path": "", "http_version": "1.1",
        }  # fmt: skip
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await asyncio.Event().wait()  # the viewer stays until it is answered
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._app(scope, receive, send))
        body = b"".join(message.get("body", b"") for message in sent)
        return Answer(sent[0]["status"], body.decode())
