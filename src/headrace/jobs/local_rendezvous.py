"""The rendezvous of ranks that all run on this host: a store that only this host can reach.

torch's `TCPStore` listens on all addresses, asks nobody who he is, and ranks unpickle what they
find in it. Where no other host can take part, the store of the ranks is given a socket that
listens on the loopback address, and torchrun's own store needs no socket at all.
"""

from __future__ import annotations

import socket

from torch.distributed import (  # type: ignore[attr-defined]  # it has no __all__
    HashStore,
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from headrace.core import env
from headrace.core.errors import LaunchError
from headrace.jobs.torchrun_args import LOCAL_BACKEND, LOOPBACK

_LOOPBACK_INTERFACE = "lo"


def use_loopback_for_collectives() -> None:
    """Have gloo and torch's RPC listen on the loopback interface, unless the user named another.

    They take the address of the host's name otherwise, which others may reach. To be called where
    all ranks are on this host; a script with one rank may be part of a world of its own making.
    """
    for interface in (env.GLOO_INTERFACE, env.RPC_INTERFACE):
        if interface.get() is None:
            interface.set(_LOOPBACK_INTERFACE)


class LocalRendezvous(RendezvousHandler):
    """The rendezvous of one host's ranks: each start of them finds an empty store on loopback.

    Args:
        run_id: torchrun's name of the job.
        port: Where ranks find their store; 0 takes a free one at each start.
    """

    def __init__(self, run_id: str, port: int = 0) -> None:
        self._run_id = run_id
        self._port = port
        self._is_closed = False
        self._rounds = 0
        self._agents_store = HashStore()
        self._ranks_store: TCPStore | None = None

    def get_backend(self) -> str:
        """Return the name of this kind of rendezvous."""
        return LOCAL_BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks use the store of torchrun's process: they do.

        Also where TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set: a store that rank 0 opens listens on
        all addresses, and what that variable is for, an empty store at each start, is so here.
        """
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a new store for ranks that are about to start; raises LaunchError.

        Restarted ranks that found what earlier ones had written would look for those at their
        addresses, and hang or fail (pytorch issue 135712).
        """
        self._ranks_store = None  # first: it may have the port
        self._ranks_store = _loopback_store(self._port)
        self._rounds += 1
        return RendezvousInfo(
            PrefixStore(f"{self._run_id}.{self._rounds}", self._agents_store),
            rank=0,
            world_size=1,
            bootstrap_store_info=RendezvousStoreInfo(LOOPBACK, self._ranks_store.port),
        )

    def is_closed(self) -> bool:
        """Whether the job has ended."""
        return self._is_closed

    def set_closed(self) -> None:
        """Note that the job has ended."""
        self._is_closed = True

    def num_nodes_waiting(self) -> int:
        """Return how many other hosts want to join: none can."""
        return 0

    def get_run_id(self) -> str:
        """Return torchrun's name of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Close the ranks' store."""
        self._is_closed = True
        self._ranks_store = None
        return True


def _loopback_store(port: int) -> TCPStore:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise LaunchError(
            f"Port {port} of {LOOPBACK} is taken ({error.strerror}). Choose another one by "
            "--master-port, or leave that flag out: then a free port is taken."
        ) from error
    port = listener.getsockname()[1]
    # The store owns the socket from here, and closes it.
    return TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    _, port = parse_rendezvous_endpoint(parameters.endpoint, 0)
    return LocalRendezvous(parameters.run_id, port)


rendezvous_handler_registry.register(LOCAL_BACKEND, _create)
