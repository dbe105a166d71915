"""`headrace cluster env`."""

from __future__ import annotations

import json as json_format
import os
import shlex
from typing import Annotated

import typer

from headrace.core.errors import UsageError

_HELP = """Print what a script would be told on a host of a job, by a contract; nothing is started.

One variable a line, NAME=VALUE as a shell reads it, then its arguments as a comment. What torchrun
tells each rank comes beside that.

Example: headrace cluster env --contract sagemaker --group gpu=2 --group cpu=1 --host algo-3
"""


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command(name="env", help=_HELP)(_env)


def _env(
    *,
    contract: Annotated[
        list[str], typer.Option(help="sagemaker, sagemaker-v3 or vertex; may come several times.")
    ],
    host: Annotated[str | None, typer.Option(help="Which host: algo-1 by default.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(help="NAME=HOSTS, NAME=HOSTS:cpus=8,gpus=1; the first one trains."),
    ] = None,
    channel: Annotated[list[str] | None, typer.Option(help="NAME=URL: an input.")] = None,
    hyperparameter: Annotated[list[str] | None, typer.Option(help="NAME=VALUE.")] = None,
    distribution: Annotated[
        str | None, typer.Option(help="What starts the ranks, such as torch_distributed.")
    ] = None,
    name: Annotated[str, typer.Option(help="The job's name.")] = "job",
    script: Annotated[str, typer.Option(help="The script.")] = "train.py",
    json: Annotated[bool, typer.Option("--json", help="Variables and arguments as JSON.")] = False,
) -> None:
    from headrace.contracts.groups import parse_groups
    from headrace.launch.contract_flags import ContractOptions
    from headrace.launch.site.shown_environment import show_environment

    told = {
        "contract": contract,
        "channel": channel or [],
        "hyperparameter": hyperparameter or [],
        "distribution": [distribution] if distribution else [],
    }
    groups = parse_groups(group or [])
    cores = len(os.sched_getaffinity(0))
    options = ContractOptions.parse(told)
    if set(options.contracts) == {"torchrun"}:
        raise UsageError(
            "--contract torchrun: torchrun itself tells each rank (RANK, WORLD_SIZE, ...). Name "
            "another contract."
        )
    shown = show_environment(options, groups, host=host, job=name, script=script, cores=cores)
    if json:
        typer.echo(json_format.dumps({"variables": shown.variables, "arguments": shown.arguments}))
        return
    typer.echo(f"# {shown.host}, of {', '.join(shown.hosts)}")
    for variable, value in sorted(shown.variables.items()):
        typer.echo(f"{variable}={shlex.quote(value)}")
    typer.echo(f"# arguments: {shlex.join(shown.arguments)}")
