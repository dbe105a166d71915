"""The verbs `headrace cluster join`, a job's hosts as one, and `cluster env`, what scripts find."""

from __future__ import annotations

import json as json_format
import shlex
import sys
from typing import Annotated

import typer

from headrace.cli.parameters import WITH_SCRIPT
from headrace.core.errors import UsageError
from headrace.core.world import usable_cores

_ENV_HELP = """\
Print the environment of a script on a host of a job, by a contract; nothing is started.

One variable a line, NAME=VALUE as a shell reads it, then its arguments as a comment. What torchrun
sets for each rank is added to that.

Example: headrace cluster env --contract sagemaker --group gpu=2 --group cpu=1 --host algo-3
"""


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
    from headrace.jobs.environment.host_environment import preview_environment
    from headrace.jobs.options import parse_options
    from headrace.jobs.spec import ContractOptions
    from headrace.platforms.instance_groups import parse_groups

    flags = {
        "contract": contract,
        "channel": channel or [],
        "hyperparameter": hyperparameter or [],
        "distribution": [distribution] if distribution else [],
    }
    groups = parse_groups(group or [])
    cores = usable_cores()
    options = parse_options(ContractOptions, flags)
    if set(options.contracts) == {"torchrun"}:
        raise UsageError(
            "--contract torchrun: torchrun itself sets RANK, WORLD_SIZE, ... for each rank. Name "
            "another contract."
        )
    preview = preview_environment(options, groups, host=host, job=name, script=script, cores=cores)
    if json:
        content = {"variables": preview.variables, "arguments": preview.arguments}
        typer.echo(json_format.dumps(content))
        return
    typer.echo(f"# {preview.host}, of {', '.join(preview.hosts)}")
    for variable, value in sorted(preview.variables.items()):
        typer.echo(f"{variable}={shlex.quote(value)}")
    typer.echo(f"# arguments: {shlex.join(preview.arguments)}")


_JOIN_HELP = """Make one cluster of a job's hosts, and run a script on it; on every host alike.

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
    from headrace.jobs.hosts.cluster_join import join_cluster

    flags = {
        "--head": head,
        "--hosts": hosts,
        "--port": port,
        "--hosts-timeout": hosts_timeout,
        "--token-file": token_file,
    }
    own = [f"{flag}={value}" for flag, value in flags.items() if value is not None]
    own += [f"--group={each}" for each in group or ()]
    sys.exit(join_cluster([*own, *context.args]))


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Make a cluster of a job's hosts; show the environment of scripts on them.",
        rich_markup_mode="rich",
    )
    group.callback()(lambda: None)  # without one, typer makes a single verb the command itself
    group.command(name="join", help=_JOIN_HELP, context_settings=WITH_SCRIPT)(_join)
    group.command(name="env", help=_ENV_HELP)(_env)
    app.add_typer(group, name="cluster")
