"""`headrace cluster join`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

_HELP = """Make one cluster of a job's hosts, and run a script on it; on every host alike.

On SageMaker and Vertex AI the environment says which hosts there are; elsewhere flags do. The head
waits for all of them and runs the script as `headrace run --engine ray` would, with the flags of
that; the others take part until it ends. The exit code is the script's, on every host.

Example: headrace cluster join --nproc-per-node auto train.py --epochs 3
"""

_Groups = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME: this host's instance group. NAME=HOSTS: how many hosts of a group the job "
        "wants, the first one trains; by default all hosts, and the head's group trains."
    ),
]


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command(
        name="join",
        help=_HELP,
        context_settings={
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "allow_interspersed_args": False,
        },
    )(_join)


def _join(
    context: typer.Context,
    *,
    head: Annotated[
        str | None, typer.Option(help="The host that the others join, as they reach it.")
    ] = None,
    group: _Groups = None,
    hosts: Annotated[
        str | None, typer.Option(help="All hosts, A,B,C, as the others reach them.")
    ] = None,
    port: Annotated[
        str | None,
        typer.Option(help="Ray's port on the head, 6379 by default; the one after it is used too."),
    ] = None,
    hosts_timeout: Annotated[
        str | None, typer.Option(help="Longest wait for the hosts; 10m by default.")
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            help="Holds Ray's token, the same on every host. Without it, RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH; else the head makes one and hands it to the hosts of the list."
        ),
    ] = None,
) -> None:
    from headrace.launch.hosts.join import join

    told = {
        "--head": head,
        "--hosts": hosts,
        "--port": port,
        "--hosts-timeout": hosts_timeout,
        "--token-file": token_file,
    }
    own = [f"{flag}={value}" for flag, value in told.items() if value is not None]
    own += [f"--group={each}" for each in group or ()]
    sys.exit(join([*own, *context.args]))
