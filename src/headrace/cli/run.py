"""The `headrace run` and `headrace resume` verbs: a training script on this host or a cluster."""

from __future__ import annotations

# ruff: noqa: ARG001 - typer needs flags as parameters; they are read from its context
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from headrace.jobs.run import run_job

_HELP = """Run a training script, unmodified, on this host's devices.

Takes torchrun's own flags, in all their spellings, before the script; with none of them the
script runs directly, in one process. Logs go to the run's folder. The exit code is the script's.
With --engine ray, torchrun runs on every host of an instance group of a Ray cluster. In place of
the script, a job file (.toml, .yaml) has the arguments of headrace.Estimator.

Example: headrace run --nproc-per-node auto train.py --epochs 3
"""

# Panels of the help, the most used flags first.
_COMMON = "Common"
_RUN = "Run"
_RECORDING = "Recording"
_DATA = "Data"
_PLATFORM = "Platform"
_CLUSTER = "Cluster"
_OUTPUTS = "Outputs"

_RunDir = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_RUN, help="The run's folder. One that holds a run goes on with it."
    ),
]
_Profile = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_COMMON, help="on (the default), deep or off: how the run is recorded."
    ),
]
_ProfileInterval = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_RECORDING, help="Time between samples of the system: 100ms to 60s."
    ),
]
_Engine = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_COMMON, help="local (the default), or ray: on the hosts of a Ray cluster."
    ),
]
_HostsTimeout = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_CLUSTER, help="Longest wait for the cluster's hosts; 10m by default."
    ),
]
_Address = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_CLUSTER,
        help="The Ray cluster: HOST:PORT, auto or ray://HOST:PORT. Without it, RAY_ADDRESS; "
        "else one is started on this machine, its hosts emulated.",
    ),
]
_Groups = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_COMMON,
        help="An instance group: NAME=HOSTS, emulated NAME=HOSTS:cpus=8,gpus=1 or, by a type of "
        "AWS or Google, NAME=HOSTSxml.g5.xlarge. The first one trains.",
    ),
]
_Apply = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_COMMON,
        help="Loader arguments and threads in place of the script's: num_workers=8,"
        "pin_memory=on,prefetch_factor@train.py:40=4,worker_threads=1,rank_threads=1.",
    ),
]
_Offload = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_CLUSTER,
        help="The group whose hosts make batches, too: --group cpu=2 --offload cpu. "
        "auto: only if that is predicted to help.",
    ),
]
_MaxPreemptions = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_CLUSTER,
        help="How often a lost host may restart the ranks; -1, the default: any.",
    ),
]
_Driver = Annotated[
    bool,
    typer.Option(
        "--driver",
        rich_help_panel=_CLUSTER,
        help="The script uses Ray itself (Ray Train, Ray Data): it runs once, on one host of the "
        "first group, and all cores and devices are Ray's to give out.",
    ),
]

_Requirements = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_RUN,
        help="What every host installs by pip first: a file, or none; by default the "
        "requirements.txt beside the script on a cluster, or that of --source-dir.",
    ),
]
_Contract = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_COMMON,
        help="sagemaker, sagemaker-v3 or vertex: the variables, files and folders that a script "
        "finds there. Several at once: sagemaker,vertex.",
    ),
]
_Channels = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_COMMON,
        help="NAME=URL, or NAME=JSON with uri, mode, distribution, groups and content_type: an "
        "input; the contract tells the script where it is.",
    ),
]
_InputModes = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_DATA,
        help="MODE for all channels, or NAME=MODE: File (the default) copies a channel to this "
        "host's disk first, Cache to --cache-dir.",
    ),
]
_CacheDir = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_DATA,
        help="The folder of channels in mode Cache: of this host, or on a network.",
    ),
]
_CacheLimit = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_DATA,
        help="How much a cache of channels may hold, such as 100GB; else the disk does.",
    ),
]
_Hyperparameters = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_COMMON,
        help="NAME=VALUE: an argument of the script, as the contract spells it.",
    ),
]
_Source = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PLATFORM, help="The folder of the code; by default the script's own."
    ),
]
_Distribution = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_PLATFORM,
        help="A contract's: torch_distributed, smdistributed, pytorchddp or mpi start a rank on "
        "each device. Without it, or flags of torchrun's, the script runs once on each host.",
    ),
]
_Environment = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_RUN,
        help="NAME=VALUE: a variable of the script; NAME alone: as it is set here.",
    ),
]
_Dependencies = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_RUN, help="PATH: a module or package that the script may import."
    ),
]
_Metrics = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=_RECORDING,
        help="NAME=REGEX: a number that ranks print; its group is the value.",
    ),
]
_MaxRun = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_RUN, help="Longest time that the job may take: 3600 (seconds), 30min, 2h."
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        rich_help_panel=_COMMON,
        help="Print hosts, ranks, variables, arguments and the data to move; start nothing.",
    ),
]
_CheckpointUri = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_OUTPUTS,
        help="URL: checkpoints are copied there while the job runs, and back before it begins.",
    ),
]
_CheckpointLocalPath = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_OUTPUTS,
        help="A folder at which a script for SageMaker finds its checkpoints, too; it looks for "
        "them in /opt/ml/checkpoints anyway.",
    ),
]
_OutputPath = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=_COMMON, help="URL: model and output go there when the job has ended."
    ),
]


_RunsDir = Annotated[
    str | None, typer.Option(rich_help_panel=_RUN, help="Where runs lie; ./runs by default.")
]
_Name = Annotated[
    str | None, typer.Option(rich_help_panel=_COMMON, help="The run's name, below --runs-dir.")
]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(
        name="run",
        help=_HELP,
        context_settings={
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            "allow_interspersed_args": False,
        },
    )(_run)


def _run(
    context: typer.Context,
    *,
    name: _Name = None,
    profile: _Profile = None,
    apply: _Apply = None,
    dry_run: _DryRun = False,
    contract: _Contract = None,
    channel: _Channels = None,
    hyperparameter: _Hyperparameters = None,
    engine: _Engine = None,
    group: _Groups = None,
    output_path: _OutputPath = None,
    run_dir: _RunDir = None,
    runs_dir: _RunsDir = None,
    max_run: _MaxRun = None,
    dependency: _Dependencies = None,
    requirements: _Requirements = None,
    environment: _Environment = None,
    profile_interval: _ProfileInterval = None,
    metric: _Metrics = None,
    input_mode: _InputModes = None,
    cache_dir: _CacheDir = None,
    cache_limit: _CacheLimit = None,
    source_dir: _Source = None,
    distribution: _Distribution = None,
    address: _Address = None,
    offload: _Offload = None,
    hosts_timeout: _HostsTimeout = None,
    max_preemptions: _MaxPreemptions = None,
    driver: _Driver = False,
    checkpoint_uri: _CheckpointUri = None,
    checkpoint_local_path: _CheckpointLocalPath = None,
) -> None:
    # Flags are passed on as typed: jobs/ alone parses them.
    sys.exit(run_job([*_flags(context.params), *context.args]))


def _flags(params: Mapping[str, Any]) -> Iterator[str]:
    for name, value in params.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield from [flag] if value else []
        elif isinstance(value, str):
            yield f"{flag}={value}"
        else:
            yield from (f"{flag}={each}" for each in value or ())


def register_resume(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(name="resume")(resume)


def resume(
    run: Annotated[str, typer.Argument(help="The run's name, or its folder.")],
    *,
    runs_dir: Annotated[str | None, typer.Option(help="Where runs are; ./runs by default.")] = None,
) -> None:
    """Start a run's last command again, in its folder, as the next attempt.

    It starts from the folder where it was typed. With --checkpoint-uri the newest checkpoint is
    there before the script begins.

    Example: [bold]headrace resume train-20261123-101500[/bold]
    """
    from headrace.jobs.run import resume_run

    sys.exit(resume_run(run, runs_dir))
