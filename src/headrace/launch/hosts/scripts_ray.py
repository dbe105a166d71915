"""The Ray cluster that a script makes of emulated hosts itself, by `ray start` on each of them.

Scripts for heterogeneous clusters do so. On machines of their own each node has its address, its
ports and its /tmp/ray, and nobody else's Ray is there; here variables of Ray's see to that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from headrace.cluster.node_process import make_node_folder
from headrace.cluster.token import new_token, write_token_file
from headrace.core import env
from headrace.enter.ray_start import HOOK

_OF_TOKENS = (env.RAY_AUTH_MODE, env.RAY_AUTH_TOKEN, env.RAY_AUTH_TOKEN_PATH)
# The last: Headrace may not be found by another interpreter.
_OF_HOSTS = (env.RAY_TMPDIR, env.RAY_START_HOOK, env.PYTHON_EXEC)


class ScriptsRay:
    """What the hosts' scripts find for that; made when it is first asked for."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._token: dict[str, str] = {}

    def variables(self, address: str) -> dict[str, str]:
        """Return the variables of a host's script; none where the user's name a Ray cluster.

        Args:
            address: The host's.
        """
        if env.RAY_ADDRESS.get() is not None:
            return {}
        if self._folder is None:
            self._folder = make_node_folder()
            self._token = _token(self._folder)
        if any(each.get() is not None for each in _OF_HOSTS):
            return self._token
        # A short name, as paths of sockets may not be long.
        own = self._folder / address.rpartition(".")[2]
        own.mkdir(exist_ok=True)
        return {
            **self._token,
            env.RAY_TMPDIR.name: str(own),
            env.HOST_ADDRESS.name: address,
            env.RAY_START_HOOK.name: HOOK,
            # gRPC's own way asks a name server too, and waits for it where there is no network.
            env.GRPC_DNS_RESOLVER.name: env.GRPC_DNS_RESOLVER.get() or "native",
        }

    def close(self) -> None:
        """Remove what Ray wrote, and the token; the hosts have ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _token(folder: Path) -> dict[str, str]:
    """Return the variables by which the nodes let each other in, and nobody else.

    Ray asks for the token that `ray.init()` once left in a home, and `ray start --address` then
    gives none unless it is told to.
    """
    if any(each.get() is not None for each in _OF_TOKENS):
        return {}
    told = write_token_file(folder / "token", new_token())
    return {name: value for name, value in told.items() if value is not None}
