"""`JobSpec`: all that a job is asked to be, as a frozen tree of options.

The command line, a job file and the Estimator give the same options; hosts get them as JSON.
torchrun's own flags stay texts here: its own parser reads them (jobs/torchrun_args.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, get_args

from headrace.core.errors import UsageError
from headrace.core.overrides import Override, parse_overrides
from headrace.core.units import parse_seconds
from headrace.data.channels.spec import check_channels, read_modes
from headrace.jobs.options import (
    SWITCH,
    TEXT,
    Kind,
    Option,
    OptionGroup,
    Texts,
    check_interval,
    check_metric,
    choice,
    hyperparameter_text,
    mode_texts,
    number,
    option,
    option_texts,
    options_of,
    pairs,
    parse_contracts,
    parse_dependencies,
    parse_environment,
    parse_hyperparameter,
    parse_max_run,
    parse_options,
    parse_sync_url,
    parsed,
)
from headrace.platforms.instance_groups import GroupSpec, parse_groups
from headrace.platforms.sagemaker import (
    CHECKPOINT_PATH_FLAG,
    check_checkpoint_path,
    check_hyperparameters,
)
from headrace.platforms.script_contract import ContractName
from headrace.platforms.training_job import Distribution

ENGINES = ("local", "ray")
AUTO_OFFLOAD = "auto"
"""The value of --offload by which a group makes batches only where that is predicted to help."""
Profile = Literal["on", "off", "deep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(OptionGroup):
    """The run folder of a job."""

    name: str | None = option(
        "name", TEXT, "Common", "The run's name, below --runs-dir.", argument="job_name"
    )
    dry_run: bool = option(
        "dry_run",
        SWITCH,
        "Common",
        "Print hosts, ranks, variables, arguments and the data to move; start nothing.",
        argument=None,
    )
    run_dir: str | None = option(
        "run_dir",
        TEXT,
        "Run",
        "The run's folder. One that holds a run goes on with it.",
        argument=None,
    )
    runs_dir: str | None = option(
        "runs_dir", TEXT, "Run", "Where runs lie; ./runs by default.", argument=None
    )
    experiment: str | None = option(
        "experiment",
        TEXT,
        "Common",
        "The run's experiment in MLflow: MLFLOW_EXPERIMENT_NAME, else the script's name.",
        argument=None,
    )
    tracking_uri: str | None = option(
        "tracking_uri",
        TEXT,
        "Run",
        "MLflow's tracking URI, or off: MLFLOW_TRACKING_URI, else mlflow.db in --runs-dir.",
        argument=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptOptions(OptionGroup):
    """What the script finds and how long it may run.

    Attributes:
        requirements: None: the file in the code folder, on a cluster's hosts or where --source-dir
            names that folder.
        max_run_s: In seconds; None: no limit.
    """

    environment: Mapping[str, str] = option(
        "environment",
        replace(pairs("VALUE"), parse=parse_environment),
        "Run",
        "NAME=VALUE: a variable of the script; NAME alone: as it is set here.",
        default_factory=dict,
    )
    dependencies: tuple[str, ...] = option(
        "dependency",
        Kind(parse=parse_dependencies, texts=list, repeats=True, expects="a list of texts"),
        "Run",
        "PATH: a module or package that the script may import.",
        default=(),
        argument="dependencies",
    )
    requirements: str | None = option(
        "requirements",
        TEXT,
        "Run",
        "What every host installs by pip first: a file, or none; by default the requirements.txt "
        "beside the script on a cluster, or that of --source-dir.",
    )
    max_run_s: float | None = option(
        "max_run",
        parsed(
            parse_max_run,
            lambda value: f"{value:.12g}s",
            expects="a number of seconds, or a text such as 2h",
            takes_numbers=True,
        ),
        "Run",
        "Longest time that the job may take: 3600 (seconds), 30min, 2h.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractOptions(OptionGroup):
    """The script's contract with its platform.

    Attributes:
        contracts: Empty: torchrun's variables only.
        channels: URLs or paths of the inputs, or JSON with more settings, by channel name.
        distribution: How ranks are started; None: the script runs once on each host.
        input_modes: By channel name; "" stands for all other channels.
        cache_limit: None: what the disk holds.
        processes_per_host: Ranks per host that torchrun's flags give as a number; None: none.
    """

    contracts: tuple[ContractName, ...] = option(
        "contract",
        Kind(
            parse=parse_contracts,
            texts=lambda names: [",".join(names)],
            repeats=True,
            expects="a text, or a list of them",
        ),
        "Common",
        "sagemaker, sagemaker-v3 or vertex: the variables, files and folders that a script finds "
        "there. Several at once: sagemaker,vertex.",
        default=(),
    )
    channels: Mapping[str, str] = option(
        "channel",
        pairs("URL"),
        "Common",
        "NAME=URL, or NAME=JSON with uri, mode, distribution, groups and content_type: an input; "
        "the contract tells the script where it is.",
        default_factory=dict,
        argument=None,
    )
    hyperparameters: Mapping[str, Any] = option(
        "hyperparameter",
        pairs("VALUE", parse_hyperparameter, hyperparameter_text),
        "Common",
        "NAME=VALUE: an argument of the script, as the contract spells it.",
        default_factory=dict,
        argument="hyperparameters",
    )
    source_dir: str | None = option(
        "source_dir", TEXT, "Platform", "The folder of the code; by default the script's own."
    )
    distribution: Distribution | None = option(  # noqa: RUF009
        "distribution",
        choice(get_args(Distribution)),
        "Platform",
        "A contract's: torch_distributed, smdistributed, pytorchddp or mpi start a rank on each "
        "device. Without it, or flags of torchrun's, the script runs once on each host.",
        needs_torchrun=True,
    )
    input_modes: Mapping[str, str] = option(
        "input_mode",
        Kind(parse=lambda texts, _flag: read_modes(texts), texts=mode_texts, repeats=True),
        "Data",
        "MODE for all channels, or NAME=MODE: File (the default) copies a channel to this host's "
        "disk first, Cache to --cache-dir.",
        default_factory=dict,
    )
    cache_dir: str | None = option(
        "cache_dir",
        TEXT,
        "Data",
        "The folder of channels in mode Cache: of this host, or on a network.",
    )
    cache_limit: str | None = option(
        "cache_limit",
        replace(TEXT, expects="a number of bytes, or a text such as 100GB", takes_numbers=True),
        "Data",
        "How much a cache of channels may hold, such as 100GB; else the disk does.",
    )
    checkpoint_local_path: str | None = option(
        "checkpoint_local_path",
        TEXT,
        "Outputs",
        "A folder at which a script for SageMaker finds its checkpoints, too; it looks for them in "
        "/opt/ml/checkpoints anyway.",
    )
    processes_per_host: int | None = None

    @property
    def has_platform(self) -> bool:
        """Whether the script has a contract besides torchrun's variables."""
        return bool(set(self.contracts) - {"torchrun"})

    def checked(self) -> Self:
        """Return the options if they fit together; raises UsageError."""
        check_hyperparameters(self.hyperparameters)
        if self.channels and not self.has_platform:
            raise UsageError(
                f"--channel {next(iter(self.channels))}=...: a script finds its channels by its "
                "contract. Add --contract sagemaker (SM_CHANNEL_...) or --contract "
                "vertex (AIP_..._DATA_URI)."
            )
        check_channels(self.channels, self.input_modes, self.cache_dir, self.cache_limit)
        if self.distribution is not None and not self.contracts:
            raise UsageError(
                f"--distribution {self.distribution} is of a contract: add --contract sagemaker, "
                "say; without one, torchrun's own flags say how many ranks there are."
            )
        path = self.checkpoint_local_path
        if path is None:
            return self
        place = check_checkpoint_path(path, self.contracts, CHECKPOINT_PATH_FLAG)
        return replace(self, checkpoint_local_path=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingOptions(OptionGroup):
    """How the job is recorded.

    Attributes:
        profile: "deep": in depth for as long as the job runs, with a trace of some steps; "off":
            nothing is hooked or recorded.
        overrides: Loader arguments and thread counts that replace the script's.
        interval_s: Seconds between samples of the system.
        metrics: Regular expressions for the output of ranks, by metric name.
    """

    profile: Profile = option(  # noqa: RUF009
        "profile",
        choice(get_args(Profile)),
        "Common",
        "on (the default), deep or off: how the run is recorded.",
        default="on",
    )
    overrides: tuple[Override, ...] = option(
        "apply",
        parsed(parse_overrides, lambda each: ",".join(map(str, each))),
        "Common",
        "Loader arguments and threads in place of the script's: num_workers=8,pin_memory=on,"
        "prefetch_factor@train.py:40=4,worker_threads=1,rank_threads=1.",
        default=(),
    )
    interval_s: float = option(
        "profile_interval",
        parsed(check_interval, lambda value: f"{value}s"),
        "Recording",
        "Time between samples of the system: 100ms to 60s.",
        default=0.5,
    )
    metrics: Mapping[str, str] = option(
        "metric",
        pairs("REGEX", check_metric),
        "Recording",
        "NAME=REGEX: a number that ranks print; its group is the value.",
        default_factory=dict,
        argument="metric_definitions",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsOptions(OptionGroup):
    """The hosts of a job.

    Attributes:
        groups: The instance groups, the training group first; empty: this host alone.
        address: The Ray cluster's address; None: RAY_ADDRESS, or a cluster on this machine.
        hosts_s: Longest wait for the hosts, in seconds.
        max_preemptions: How often ranks are restarted after the loss of a host; -1: any number.
    """

    needs_torchrun: ClassVar[bool] = True
    engine: str = option(
        "engine",
        choice(ENGINES),
        "Common",
        "local (the default), or ray: on the hosts of a Ray cluster.",
        default="local",
    )
    groups: tuple[GroupSpec, ...] = option(
        "group",
        Kind(
            parse=lambda texts, _flag: parse_groups(texts),
            texts=lambda groups: [each.flag() for each in groups],
            repeats=True,
        ),
        "Common",
        "An instance group: NAME=HOSTS, emulated NAME=HOSTS:cpus=8,gpus=1 or, by a type of AWS or "
        "Google, NAME=HOSTSxml.g5.xlarge. The first one trains.",
        default=(),
        argument=None,
    )
    address: str | None = option(
        "address",
        TEXT,
        "Cluster",
        "The Ray cluster: HOST:PORT, auto or ray://HOST:PORT. Without it, RAY_ADDRESS; else one "
        "is started on this machine, its hosts emulated.",
    )
    offload: str | None = option(
        "offload",
        TEXT,
        "Cluster",
        "The group whose hosts make batches, too: --group cpu=2 --offload cpu. auto: only if that "
        "is predicted to help.",
    )
    hosts_s: float = option(
        "hosts_timeout",
        parsed(parse_seconds, lambda value: f"{value}s"),
        "Cluster",
        "Longest wait for the cluster's hosts; 10m by default.",
        default=600.0,
    )
    max_preemptions: int = option(
        "max_preemptions",
        number(-1),
        "Cluster",
        "How often a lost host may restart the ranks; -1, the default: any.",
        default=-1,
    )
    driver: bool = option(
        "driver",
        SWITCH,
        "Cluster",
        "The script uses Ray itself (Ray Train, Ray Data): it runs once, on one host of the first "
        "group, and all cores and devices are Ray's to give out.",
    )

    def checked(self) -> Self:
        """Return the options if they fit together; raises UsageError."""
        if self.engine == "local":
            for each in _CLUSTER_OPTIONS:
                if getattr(self, each.field) != getattr(HostsOptions(), each.field):
                    raise UsageError(f"{each.flag} is about a cluster: add --engine ray.")
        return self


_CLUSTER_OPTIONS = [each for each in options_of(HostsOptions) if each.panel == "Cluster"]


_SYNC_URL = Kind(parse=parse_sync_url, texts=lambda value: [value])


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions(OptionGroup):
    """Files of the job that are synced to URLs; None: they are in the run folder only."""

    checkpoint_uri: str | None = option(
        "checkpoint_uri",
        _SYNC_URL,
        "Outputs",
        "URL: checkpoints are copied there while the job runs, and back before it begins.",
    )
    output_path: str | None = option(
        "output_path", _SYNC_URL, "Common", "URL: model and output go there when the job has ended."
    )

    @property
    def is_any(self) -> bool:
        """Whether anything is synced."""
        return self.checkpoint_uri is not None or self.output_path is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The script of a job."""

    path: str  # its path as typed, or a module's name
    is_module: bool = False  # `path` is a module's name
    is_program: bool = False  # it is started as a program, not by Python
    arguments: tuple[str, ...] = ()  # the user's own arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job: the script, its options, and torchrun's flags as typed."""

    script: Script
    run: RunOptions = field(default_factory=RunOptions)
    environment: ScriptOptions = field(default_factory=ScriptOptions)
    contract: ContractOptions = field(default_factory=ContractOptions)
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    hosts: HostsOptions = field(default_factory=HostsOptions)
    sync: SyncOptions = field(default_factory=SyncOptions)
    # Empty: the script runs in one process without torchrun, unless an option needs torchrun
    torchrun_flags: tuple[str, ...] = ()

    @classmethod
    def parse(cls, texts: Texts, script: Script, torchrun_flags: Sequence[str] = ()) -> JobSpec:
        """Return the job whose options are given as texts.

        Raises UsageError (an invalid value, or values that exclude each other).
        """
        groups = {name: parse_options(group, texts) for name, group in _GROUPS.items()}
        return cls(script=script, torchrun_flags=tuple(torchrun_flags), **groups)

    def texts(self) -> dict[str, list[str]]:
        """Return the texts of all options that are not at their defaults, by option name."""
        groups: Iterator[OptionGroup] = (getattr(self, name) for name in _GROUPS)
        return {name: texts for group in groups for name, texts in option_texts(group).items()}

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, for hosts of the job."""
        return {
            "options": self.texts(),
            "torchrun_flags": self.torchrun_flags,
            "script": asdict(self.script),
            "processes_per_host": self.contract.processes_per_host,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> JobSpec:
        """Return the job of `to_json`; raises UsageError where this host lacks what it names."""
        script = dict(value["script"], arguments=tuple(value["script"]["arguments"]))
        spec = cls.parse(value["options"], Script(**script), value["torchrun_flags"])
        contract = replace(spec.contract, processes_per_host=value["processes_per_host"])
        return replace(spec, contract=contract)


_GROUPS: dict[str, Any] = {
    "run": RunOptions,
    "environment": ScriptOptions,
    "contract": ContractOptions,
    "recording": RecordingOptions,
    "hosts": HostsOptions,
    "sync": SyncOptions,
}


@cache
def job_options() -> dict[str, Option]:
    """Return all options of a job, by option name."""
    return {each.name: each for group in _GROUPS.values() for each in options_of(group)}
