"""Environment variables that Headrace reads or sets, each declared once.

No other file touches `os.environ`; a test holds this. Also the environments of child processes and
of programs on other hosts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable."""

    name: str
    meaning: str

    def get(self, default: str | None = None) -> str | None:
        """Return the value, or `default` where the variable is unset or empty."""
        return os.environ.get(self.name) or default

    def get_int(self, default: int | None = None) -> int | None:
        """Return the value as a whole number; raises UsageError where it is none."""
        text = self.get()
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise UsageError(
                f"{self.name}={text!r} is not a whole number ({self.meaning}). Unset or correct it."
            ) from None

    def set(self, value: str) -> None:
        """Set the variable for this process and its future children."""
        os.environ[self.name] = value


def _variables_of(meaning: str, *names: str) -> tuple[Variable, ...]:
    return tuple(Variable(name, meaning) for name in names)


RANK = Variable("RANK", "this process's number among all ranks (torchrun)")
WORLD_SIZE = Variable("WORLD_SIZE", "how many ranks there are (torchrun)")
LOCAL_RANK = Variable("LOCAL_RANK", "this process's number among the ranks of its host (torchrun)")
LOCAL_WORLD_SIZE = Variable("LOCAL_WORLD_SIZE", "how many ranks this host has (torchrun)")
RESTART_COUNT = Variable("TORCHELASTIC_RESTART_COUNT", "how often torchrun restarted the ranks")
TORCHRUN_ID = Variable("TORCHELASTIC_RUN_ID", "the job that this process is a rank of (torchrun)")
ERROR_FILE = Variable("TORCHELASTIC_ERROR_FILE", "where a rank says why it failed (torchrun)")
FAULT_HANDLER = Variable("PYTHONFAULTHANDLER", "a crash prints the Python stack (Python)")
OMP_NUM_THREADS = Variable("OMP_NUM_THREADS", "threads of one process in torch's CPU kernels")
ARROW_DEFAULT_MEMORY_POOL = Variable(
    "ARROW_DEFAULT_MEMORY_POOL", "the allocator: mimalloc, jemalloc or system (Arrow)"
)
OPENBLAS_NUM_THREADS = Variable("OPENBLAS_NUM_THREADS", "threads of one process in numpy's BLAS")
OTHER_THREADS = (
    OPENBLAS_NUM_THREADS,
    *_variables_of(
        "threads of one process in a library",
        "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    ),
)  # fmt: skip
UNSHARED_STORE = Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1: ranks have their own store")
GLOO_INTERFACE = Variable("GLOO_SOCKET_IFNAME", "the network interface of gloo (torch)")
RPC_INTERFACE = Variable("TP_SOCKET_IFNAME", "the network interface of torch's RPC (torch)")
PYTHON_EXEC = Variable("PYTHON_EXEC", "the interpreter that runs the script (torchrun)")

STATE_HOME = Variable("XDG_STATE_HOME", "where programs keep what outlives them: ~/.local/state")
RUN_DIR = Variable("HEADRACE_RUN_DIR", "the run folder, set by `headrace run`")
RUNS_DIR = Variable("HEADRACE_RUNS_DIR", "where runs lie unless a call names a folder: ./runs")
RECORDS_DIR = Variable("HEADRACE_RECORDS_DIR", "where this attempt records, set by `headrace run`")
RECORDS_BOOT = Variable("HEADRACE_RECORDS_BOOT", "the host that records there; unset: any")
RECORDS_LINK = Variable(
    "HEADRACE_RECORDS_LINK", "of a host elsewhere, the name of the link to its records"
)
CHECKPOINT_DIR = Variable("HEADRACE_CHECKPOINT_DIR", "the folder synced to --checkpoint-uri")
ATTEMPT = Variable("HEADRACE_ATTEMPT", "the attempt's number, set by `headrace run`")
LOADER = Variable("HEADRACE_LOADER", "the loader that a forkserver works for, set by the probe")
APPLY = Variable("HEADRACE_APPLY", "loader arguments in place of the script's (`run --apply`)")
PIPE_CHANNELS = Variable("HEADRACE_STREAMED", "JSON: where channels in pipes are, by their folders")
SMDDP = Variable("HEADRACE_SMDDP", "1: the script may import smdistributed (SageMaker's contract)")
STOP_AFTER = Variable("HEADRACE_STOP_AFTER", "optimizer steps after which the script is ended")
JOB_REQUEST = Variable("HEADRACE_ASKED", "what a job was asked for, JSON, for run.json alone")
HIDDEN_ARGUMENTS = Variable(
    "HEADRACE_HIDDEN_ARGUMENTS", "JSON: words of this command line that hold secrets, by place"
)
OFFLOAD = Variable("HEADRACE_OFFLOAD", "a rank's file of auxiliary hosts, by `run --offload`")
DRIVER_SCRIPT = Variable("HEADRACE_DRIVES", "1: the script is a rank only once it trains itself")
DEVICES_RESERVED = Variable("HEADRACE_DEVICES_HELD", "1: the ranks have the cluster's devices")
CLEARED_IN_CHILDREN: dict[str, str | None] = {OFFLOAD.name: None}
"""Removed from the environment of a rank's sidecars, which are no ranks."""
PYTHONPATH = Variable("PYTHONPATH", "where Python looks for modules first")
HASH_SEED = Variable("PYTHONHASHSEED", "what hashes of texts begin with: a number, or random")
DEFAULT_HASH_SEED = "0"
"""If the user has not set it, so that all workers of a dataset hash texts the same."""
RAY_ADDRESS = Variable("RAY_ADDRESS", "the Ray cluster to connect to (Ray)")
RAY_TMPDIR = Variable("RAY_TMPDIR", "where Ray's nodes keep their sessions: /tmp/ray (Ray)")
RAY_CLUSTERS = Variable(
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0: Ray takes the loopback address for this host's (Ray)"
)
RAY_START_HOOK = Variable("RAY_START_HOOK", "what `ray start` calls before it starts (Ray)")
GRPC_DNS_RESOLVER = Variable("GRPC_DNS_RESOLVER", "native: names are looked up as in C (gRPC)")
HOST_ADDRESS = Variable("HEADRACE_HOST_ADDRESS", "an emulated host's, for its script's Ray node")
RAY_JOB_CONFIG = Variable("RAY_JOB_CONFIG_JSON_ENV_VAR", "a job's runtime_env, JSON (Ray)")
RAY_JOB_CONFIG_YIELDS = Variable("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1: a script's own goes first")
RAY_AUTH_MODE = Variable("RAY_AUTH_MODE", "token: Ray lets in who has its token (Ray)")
RAY_AUTH_TOKEN = Variable("RAY_AUTH_TOKEN", "Ray's token itself (Ray)")
RAY_AUTH_TOKEN_PATH = Variable("RAY_AUTH_TOKEN_PATH", "the file with Ray's token (Ray)")
SM_HOSTS = Variable("SM_HOSTS", "the job's hosts, a JSON list (SageMaker)")
SM_CURRENT_HOST = Variable("SM_CURRENT_HOST", "this host among them (SageMaker)")
SM_CURRENT_INSTANCE_GROUP = Variable(
    "SM_CURRENT_INSTANCE_GROUP", "this host's instance group (SageMaker)"
)
SM_CURRENT_INSTANCE_TYPE = Variable(
    "SM_CURRENT_INSTANCE_TYPE", "this host's instance type (SageMaker)"
)
SM_INSTANCE_GROUPS_DICT = Variable(
    "SM_INSTANCE_GROUPS_DICT", "the instance groups with their hosts, JSON (SageMaker)"
)
SM_DISTRIBUTION_INSTANCE_GROUPS = Variable(
    "SM_DISTRIBUTION_INSTANCE_GROUPS", "the instance groups that train, JSON (SageMaker)"
)
SM_RESOURCE_CONFIG = Variable("SM_RESOURCE_CONFIG", "resourceconfig.json itself (SageMaker)")
SM_MASTER_ADDR = Variable("SM_MASTER_ADDR", "the host where ranks meet (SageMaker, SDK 3)")
SM_HOST_COUNT = Variable("SM_HOST_COUNT", "how many hosts there are (SageMaker, SDK 3)")
SM_CURRENT_HOST_RANK = Variable(
    "SM_CURRENT_HOST_RANK", "this host's number among them (SageMaker, SDK 3)"
)
SAGEMAKER_BASE_DIR = Variable("SAGEMAKER_BASE_DIR", "in place of /opt/ml (SageMaker)")
CLUSTER_SPEC = Variable("CLUSTER_SPEC", "the job's hosts by worker pool, JSON (Vertex AI)")
HOST_LIST_VARIABLES = (
    SM_HOSTS, SM_CURRENT_HOST, SM_CURRENT_INSTANCE_GROUP, SM_INSTANCE_GROUPS_DICT,
    SM_DISTRIBUTION_INSTANCE_GROUPS, SM_RESOURCE_CONFIG, SM_MASTER_ADDR, SM_HOST_COUNT,
    SM_CURRENT_HOST_RANK, CLUSTER_SPEC,
)  # fmt: skip
"""Variables that tell a host of a job which hosts there are."""
CACHE_DIR = Variable("HEADRACE_CACHE_DIR", "where disk caches lie unless a call names a folder")
TRACKING = Variable("HEADRACE_TRACKING_URI", "where `headrace run` tracks runs, or off")
SPOOL = Variable("HEADRACE_SPOOL", "what of this run goes to MLflow, set by `headrace run`")
AUTOLOG = Variable("HEADRACE_AUTOLOG", "1: MLflow logs a script's training by itself")
MLFLOW_NO_TELEMETRY = Variable("MLFLOW_DISABLE_TELEMETRY", "true: it reports no use (MLflow)")
MLFLOW_QUIET = Variable(
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true: no links are printed (MLflow)"
)
MLFLOW_EXPERIMENT_ID = Variable("MLFLOW_EXPERIMENT_ID", "the experiment of a run (MLflow)")
MLFLOW_RUN_ID = Variable("MLFLOW_RUN_ID", "the run that a script goes on with (MLflow)")
MLFLOW_LOGGING_LEVEL = Variable("MLFLOW_LOGGING_LEVEL", "what MLflow prints: INFO (MLflow)")
MLFLOW_TRACKING_URI = Variable("MLFLOW_TRACKING_URI", "where runs are tracked (MLflow)")
MLFLOW_EXPERIMENT_NAME = Variable("MLFLOW_EXPERIMENT_NAME", "the experiment of a run (MLflow)")
MLFLOW_TIMEOUT = Variable("MLFLOW_HTTP_REQUEST_TIMEOUT", "s for a server's answer (MLflow)")
MLFLOW_RETRIES = Variable("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "further tries of a request (MLflow)")
PRICES = Variable("HEADRACE_PRICES", "CSV files of prices, before those that come with Headrace")
SPEEDS = Variable("HEADRACE_SPEEDS", "CSV files of how fast a core of a host type is")

XDG_CACHE_HOME = Variable("XDG_CACHE_HOME", "the user's cache folder")
AWS_ENDPOINT_URL = Variable("AWS_ENDPOINT_URL", "S3 endpoint other than Amazon's")
AWS_ENDPOINT_URL_S3 = Variable("AWS_ENDPOINT_URL_S3", "S3 endpoint for S3 alone")
AWS_REGION = Variable("AWS_REGION", "S3 region")
AWS_DEFAULT_REGION = Variable("AWS_DEFAULT_REGION", "S3 region, older spelling")
AWS_PROFILE = Variable("AWS_PROFILE", "section of the AWS credentials and config files to use")
AWS_CONFIG_FILE = Variable("AWS_CONFIG_FILE", "where the AWS config file lies")
AWS_SHARED_CREDENTIALS_FILE = Variable("AWS_SHARED_CREDENTIALS_FILE", "the credentials file")
AWS_EC2_METADATA_DISABLED = Variable("AWS_EC2_METADATA_DISABLED", "true: do not ask the host")
AWS_METADATA_ENDPOINT = Variable("AWS_METADATA_ENDPOINT", "where the host offers credentials")
AWS_EC2_METADATA_SERVICE_ENDPOINT = Variable(
    "AWS_EC2_METADATA_SERVICE_ENDPOINT", "the same, as the AWS tools call it"
)
AWS_CREDENTIALS = _variables_of("S3 credentials", "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE")
AWS_WEB_IDENTITY_TOKEN_FILE = Variable(
    "AWS_WEB_IDENTITY_TOKEN_FILE", "what a pod exchanges for S3 credentials"
)
AWS_CONTAINER_CREDENTIALS = _variables_of(
    "where a container gets S3 credentials",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
GOOGLE_CLOUD_PROJECT = Variable("GOOGLE_CLOUD_PROJECT", "the project (Google's libraries)")
CLOUDSDK_CORE_PROJECT = Variable("CLOUDSDK_CORE_PROJECT", "the project (gcloud)")
GOOGLE_CLOUD_REGION = Variable("GOOGLE_CLOUD_REGION", "the region (Vertex AI's SDK)")
CLOUDSDK_COMPUTE_REGION = Variable("CLOUDSDK_COMPUTE_REGION", "the region (gcloud)")
GOOGLE_BASE_URL = Variable("GOOGLE_BASE_URL", "Cloud Storage endpoint other than Google's")
STORAGE_EMULATOR_HOST = Variable("STORAGE_EMULATOR_HOST", "the same, as Google's clients call it")
GOOGLE_CREDENTIALS = _variables_of(
    "Cloud Storage credentials",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE",
)  # fmt: skip
AZURE_ENDPOINT = Variable("AZURE_STORAGE_ENDPOINT", "Blob Storage endpoint other than Azure's")
AZURE_STORAGE_ACCOUNT = Variable("AZURE_STORAGE_ACCOUNT", "Blob Storage account, as `az` has it")
AZURE_STORAGE_KEY = Variable("AZURE_STORAGE_KEY", "Blob Storage credentials, as `az` has them")
AZURE_CREDENTIALS = _variables_of(
    "Blob Storage credentials",
    "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_TOKEN", "AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_ID",
    "AZURE_FEDERATED_TOKEN_FILE", "AZURE_USE_AZURE_CLI", "AZURE_STORAGE_USE_EMULATOR",
    "AZURE_SKIP_SIGNATURE",
)  # fmt: skip
_CONNECTION_PREFIXES = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_", "AZURE_", "SSL_CERT_")
_CONNECTION_NAMES = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "HOME"}


def connection_variables() -> tuple[tuple[str, str], ...]:
    """Return every variable that decides how object stores are reached, sorted."""
    return tuple(
        sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith(_CONNECTION_PREFIXES) or name.upper() in _CONNECTION_NAMES
        )
    )


def thread_variables(count: int) -> dict[str, str | None]:
    """Return the variables that set the threads of libraries that are loaded later."""
    return {each.name: str(count) for each in (OMP_NUM_THREADS, *OTHER_THREADS)}


def pythonpath() -> list[str]:
    """Return the entries of this process's PYTHONPATH, absolute.

    A script may start in another folder than this process.
    """
    text = PYTHONPATH.get()
    return [] if text is None else [os.path.abspath(each) for each in text.split(":")]  # noqa: PTH100


def pythonpath_with(entry: str) -> str:
    """Return this process's PYTHONPATH with an entry in front."""
    paths = pythonpath()
    return ":".join(paths if paths[:1] == [entry] else [entry, *paths])


MAX_TEXT_BYTES = 128 * 1024
"""Of one variable or argument of a process, its end included: MAX_ARG_STRLEN, <linux/binfmts.h>."""


def why_unpassable(text: str) -> str | None:
    """Return why a text can be no argument or variable of a process; None: it can."""
    if "\0" in text:
        return "no argument or variable can hold a zero byte: leave it out"
    try:
        count = len(os.fsencode(text)) + 1
    except UnicodeEncodeError:
        return "it holds half of a character (a lone surrogate): leave that out"
    if count > MAX_TEXT_BYTES:
        return (
            f"it takes {count:,} bytes, and an argument or variable {MAX_TEXT_BYTES:,} at most: "
            "put it into a file"
        )
    return None


def change(values: Mapping[str, str | None]) -> None:
    """Set variables for this process and its future children (None removes)."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def split_command_line(words: Sequence[str], shown: Sequence[str]) -> dict[str, str]:
    """Return the variable by which a command line gets the words that its arguments do not show.

    Other users of a host see argument lists, and no variables.
    """
    hidden = {
        place: word for place, (word, seen) in enumerate(zip(words, shown, strict=True))
        if word != seen
    }  # fmt: skip
    if not hidden:
        return {}
    import json  # late: most processes read no variable of JSON

    return {HIDDEN_ARGUMENTS.name: json.dumps(hidden)}


def whole_command_line(shown: Sequence[str]) -> list[str]:
    """Return this process's command line with the words that its arguments do not show.

    The variable is removed: children have command lines of their own.
    """
    words, hidden = list(shown), HIDDEN_ARGUMENTS.get()
    if hidden is None:
        return words
    import json

    change({HIDDEN_ARGUMENTS.name: None})
    for place, word in json.loads(hidden).items():
        words[int(place)] = word
    return words


# They name paths, devices and networks of one host, and would be wrong on another.
_HOST_SPECIFIC_PREFIXES = (
    "AIP_", "AWS_CONTAINER_", "CONDA_", "DBUS_", "ECS_", "GPG_", "KUBERNETES_", "LC_", "LD_",
    "NVIDIA_DRIVER_", "PET_", "RAY_", "SLURM_", "SM_", "SSH_", "TORCHELASTIC_", "XDG_",
)  # fmt: skip
_HOST_SPECIFIC_NAMES = {
    "CLUSTER_SPEC", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "DISPLAY",
    "GLOO_SOCKET_IFNAME", "HOME", "HOSTNAME", "LANG", "LOGNAME", "MAIL", "NCCL_SOCKET_IFNAME",
    "NVIDIA_VISIBLE_DEVICES", "OLDPWD", "PATH", "PIP_CACHE_DIR", "PIP_CERT", "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE", "PIP_LOG", "PIP_PREFIX", "PIP_PYTHON", "PIP_REPORT", "PIP_ROOT", "PIP_SRC",
    "PIP_TARGET", "PWD", "PYTHONHOME", "PYTHONPATH", "SHELL", "SHLVL", "TERM", "TF_CONFIG",
    "TMPDIR", "USER", "VIRTUAL_ENV", "_",
}  # fmt: skip
_PATH_OR_URL_NAMES = {
    "PIP_BUILD_CONSTRAINT", "PIP_CONSTRAINT", "PIP_EDITABLE", "PIP_FIND_LINKS", "PIP_REQUIREMENT",
}  # fmt: skip
"""Portable only if they contain nothing but URLs."""
_CERTIFICATE_NAMES = {
    "AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR",
    "SSL_CERT_FILE",
}  # fmt: skip
"""Files and folders of the certificates that programs trust: one that a host has not, as of a
company's on the driver's host, fails all of their connections there."""
_RAY_WORKER_NAMES = {OMP_NUM_THREADS.name, "PYTHONBREAKPOINT", "PYTHONUNBUFFERED"}
"""Ray sets these in its own processes, whatever the host has."""
_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_devices(count: int) -> list[str]:
    """Return the names of this process's devices, of which there are `count`."""
    visible = os.environ.get(_DEVICES)
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[:count]


def device_variables(names: Sequence[str]) -> dict[str, str]:
    """Return the variables that restrict a process to these devices."""
    return {_DEVICES: ",".join(names)}


def whole_environment() -> dict[str, str]:
    """Return all variables of this process, for a program on this machine."""
    return dict(os.environ)


def portable_environment() -> dict[str, str]:
    """Return the variables that mean the same on another host, for a program there."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _HOST_SPECIFIC_NAMES
        and not name.startswith(_HOST_SPECIFIC_PREFIXES)
        and not (name in _PATH_OR_URL_NAMES and _contains_paths(value))
    }


def _contains_paths(value: str) -> bool:
    return any("://" not in word or word.startswith("file:") for word in value.split())


def ray_program_environment(sent: Mapping[str, str], *, is_whole: bool) -> dict[str, str]:
    """Return the environment for a program that a process of Ray starts.

    Variables that the job's driver sent are complete, or else are added to the host's own, unless
    they name certificates that this host has not.
    """
    own: dict[str, str] = {}
    if not is_whole:
        own = {name: value for name, value in os.environ.items() if name not in _RAY_WORKER_NAMES}
        sent = {
            name: value
            for name, value in sent.items()
            if name not in _CERTIFICATE_NAMES or _names_what_is_here(value)
        }
    devices = {_DEVICES: os.environ[_DEVICES]} if os.environ.get(_DEVICES) else {}  # Ray's choice
    return {**own, **sent, **devices}


def _names_what_is_here(paths: str) -> bool:
    """Whether one of some paths leads to something, if there are any."""
    # A Path raises an error where a folder above it is closed.
    return not paths or any(map(os.path.exists, paths.split(os.pathsep)))


def values_of(names: Iterable[str]) -> dict[str, str | None]:
    """Return the values of variables, None for unset ones, so that `change` can restore them."""
    return {name: os.environ.get(name) for name in names}


def initial_names_of(pid: int) -> set[str]:
    """Return the names of the variables with which a process was started; raises OSError."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in entries}


_INITIAL_VARIABLES: dict[str, str] = {}
_RANK_VARIABLES = (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE)


def record_initial_variables() -> None:
    """Note the variables that this process has now, for `own_variables`."""
    _INITIAL_VARIABLES.update(os.environ)


def own_variables() -> dict[str, str | None]:
    """Return the variables that workers of this process need on any host.

    Those are the rank's variables, what the script has set, changed or removed (None), and the seed
    of hashes of texts.
    """
    names = sorted(_INITIAL_VARIABLES.keys() | os.environ.keys()) if _INITIAL_VARIABLES else []
    now = {name: os.environ.get(name) for name in names}
    changed = {name: value for name, value in now.items() if _INITIAL_VARIABLES.get(name) != value}
    ranks = {each.name: value for each in _RANK_VARIABLES if (value := each.get()) is not None}
    # Forked workers of torch have this process's hash seed, too, if it is known.
    seed = _OWN_HASH_SEED if _OWN_HASH_SEED.isdecimal() else DEFAULT_HASH_SEED
    return {**changed, **ranks, HASH_SEED.name: seed}


_OWN_HASH_SEED = HASH_SEED.get() or ""
"""Read at start: a value that the script sets later does not affect this process's hashes."""


_CHILD_OVERRIDES: ContextVar[Mapping[str, str] | None] = ContextVar("for_children", default=None)


@contextmanager
def child_overrides(values: Mapping[str, str]) -> Iterator[None]:
    """Have `child_environment` set variables, in this context and for the block alone."""
    token = _CHILD_OVERRIDES.set({**(_CHILD_OVERRIDES.get() or {}), **values})
    try:
        yield
    finally:
        _CHILD_OVERRIDES.reset(token)


def child_environment(extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment for a child, with `extra` set (None removes)."""
    environment = {**os.environ, **(_CHILD_OVERRIDES.get() or {}), **(extra or {})}
    return {name: value for name, value in environment.items() if value is not None}


def sidecar_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a sidecar, which is no rank, with `extra` set."""
    ranks = {each.name: None for each in _RANK_VARIABLES}
    return child_environment({**ranks, **(extra or {})})
