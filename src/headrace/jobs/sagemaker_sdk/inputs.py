"""The inputs of a job with the names of SageMaker's SDK: a URL prefix, or a file system."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.core.errors import UsageError, choices_hint, did_you_mean
from headrace.records.redaction import shown_value

MODES = ("File", "FastFile", "Pipe", "Mount", "Stream", "Cache")
"""The input modes of a channel."""
DISTRIBUTIONS = ("FullyReplicated", "ShardedByS3Key", "ShardedByKey")
ONLY_CHANNEL = "training"
"""SageMaker's name for an input without a name."""
_FILE_SYSTEMS = ("EFS", "FSxLustre")


@dataclass(frozen=True, slots=True)
class ShuffleConfig:
    """SageMaker's shuffling of a channel's objects; only recorded, their order stays."""

    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"ShuffleConfig: seed {self.seed!r} is not a whole number.")


@dataclass(frozen=True, slots=True)
class TrainingInput:
    """The data of a channel, in object storage or a folder.

    Attributes:
        s3_data: The URL or path of the data.
        distribution: FullyReplicated, or ShardedByS3Key: each host has a share of the objects.
        input_mode: The input mode; None: the Estimator's.
        instance_groups: The names of the groups whose hosts have the channel; None: all.
        content_type: The content type of the objects; None: not given.
        s3_data_type: S3Prefix: all objects whose keys begin with `s3_data`.
        compression: None: files are not unpacked.
        record_wrapping: None: files are not wrapped.
        shuffle_config: ShuffleConfig; only recorded.
    """

    s3_data: str
    distribution: str | None = field(default=None, kw_only=True)
    input_mode: str | None = field(default=None, kw_only=True)
    instance_groups: Sequence[str] | None = field(default=None, kw_only=True)
    content_type: str | None = field(default=None, kw_only=True)
    s3_data_type: str = field(default="S3Prefix", kw_only=True)
    compression: str | None = field(default=None, kw_only=True)
    record_wrapping: str | None = field(default=None, kw_only=True)
    shuffle_config: ShuffleConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_text("TrainingInput: s3_data", self.s3_data)
        _check_choice("TrainingInput: distribution", self.distribution, DISTRIBUTIONS)
        _check_choice("TrainingInput: input_mode", self.input_mode, MODES)
        if self.s3_data_type != "S3Prefix":
            raise UsageError(
                f"TrainingInput: s3_data_type {self.s3_data_type!r}: manifests are not read here. "
                "Put the objects that it lists below a prefix of their own, and name that; or read "
                "the manifest in the script."
            )
        if not isinstance(self.shuffle_config, ShuffleConfig | None):
            raise UsageError(
                f"TrainingInput: shuffle_config {self.shuffle_config!r}: write ShuffleConfig(seed)."
            )
        for name in ("compression", "record_wrapping"):
            if getattr(self, name) not in {None, "None"}:
                raise UsageError(
                    f"TrainingInput: {name}={getattr(self, name)!r}: files reach the script as "
                    "they are. Leave it out, and unpack them in the script."
                )

    def channel(self) -> str:
        """Return the value of `--channel NAME=`."""
        settings = {"distribution": self.distribution, "groups": _names(self.instance_groups),
                "content_type": self.content_type}  # fmt: skip
        return _channel(self.s3_data, settings)


@dataclass(frozen=True, slots=True)
class FileSystemInput:
    """The data of a channel in a file system that this host has mounted.

    Attributes:
        file_system_id: SageMaker's id of the file system; only recorded.
        file_system_type: EFS or FSxLustre; only recorded.
        directory_path: The folder's path on this host.
        file_system_access_mode: ro or rw; the folder's own permissions apply.
        content_type: The content type of the files; None: not given.
        input_mode: The input mode; None: the files are read in place.
        instance_groups: The names of the groups whose hosts have the channel; None: all.
    """

    file_system_id: str
    file_system_type: str
    directory_path: str
    file_system_access_mode: str = "ro"
    content_type: str | None = field(default=None, kw_only=True)
    input_mode: str | None = field(default=None, kw_only=True)
    instance_groups: Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_text("FileSystemInput: directory_path", self.directory_path)
        _check_choice("FileSystemInput: file_system_type", self.file_system_type, _FILE_SYSTEMS)
        _check_choice(
            "FileSystemInput: file_system_access_mode", self.file_system_access_mode, ("ro", "rw")
        )
        _check_choice("FileSystemInput: input_mode", self.input_mode, MODES)

    def channel(self) -> str:
        """Return the value of `--channel NAME=`."""
        settings = {"groups": _names(self.instance_groups), "content_type": self.content_type}
        return _channel(self.directory_path, settings)


Input: TypeAlias = "str | TrainingInput | FileSystemInput"


def named_inputs(inputs: object, where: str) -> dict[str, Input]:
    """Return the inputs of a job by channel name; raises UsageError, prefixed by `where`.

    `inputs` is None, a URL, a TrainingInput or FileSystemInput, or several of them by name; job
    files have dicts of their arguments instead.
    """
    if inputs is None:
        return {}
    if not isinstance(inputs, Mapping) or _kind_of(inputs) is not None:
        return {ONLY_CHANNEL: _input(inputs, f"{where}inputs")}
    found = {}
    for name, value in inputs.items():
        if not isinstance(name, str) or not name or "=" in name:
            raise UsageError(f"{where}inputs: {name!r}: a channel's name is a text, without '='.")
        found[name] = _input(value, f"{where}inputs: {name}")
    return found


def input_notes(inputs: Mapping[str, Input]) -> list[str]:
    """Return which settings of inputs have no effect here."""
    return [
        f"inputs: {name}: shuffle_config has no effect: objects come in the order of their keys, "
        "each epoch; shuffle in the script, or read shards with headrace.ShardDataset"
        for name, value in inputs.items()
        if isinstance(value, TrainingInput) and value.shuffle_config is not None
    ]


def mode_of(value: Input, usual: str | None) -> str | None:
    """Return the input mode of an input in a job with the mode `usual`; None: the default."""
    own = None if isinstance(value, str) else value.input_mode
    if own is None and isinstance(value, FileSystemInput):
        return None  # it is mounted already
    return own or usual


def _input(value: object, where: str) -> Input:
    if isinstance(value, str | TrainingInput | FileSystemInput):
        return value
    kind = _kind_of(value) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping) and kind is not None:
        return _made(kind, value, where)
    raise UsageError(
        f"{where}: {shown_value(value)} is no input. Give a URL or a path, a TrainingInput, or a "
        "FileSystemInput."
    )


def read_file_system(arguments: Mapping[str, Any], where: str) -> FileSystemInput:
    """Return the FileSystemInput of its arguments; raises UsageError."""
    found = _made(FileSystemInput, arguments, where)
    assert isinstance(found, FileSystemInput)
    return found


def _made(
    kind: type[TrainingInput | FileSystemInput], arguments: Mapping[str, Any], where: str
) -> TrainingInput | FileSystemInput:
    known = list(kind.__dataclass_fields__)
    given = {("s3_data" if key == "uri" else key): each for key, each in arguments.items()}
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: there is no {key}.{did_you_mean(str(key), known)}")
    try:
        if isinstance(given.get("shuffle_config"), Mapping):
            given["shuffle_config"] = ShuffleConfig(**given["shuffle_config"])
        return kind(**given)
    except TypeError as error:  # a required argument is missing
        raise UsageError(f"{where}: {error}.") from error


def _kind_of(value: Mapping[Any, Any]) -> type[TrainingInput | FileSystemInput] | None:
    if {"s3_data", "uri"} & set(value):
        return TrainingInput
    return FileSystemInput if "directory_path" in value else None


def _names(groups: Sequence[str] | None) -> list[str] | None:
    if groups is None:
        return None
    return [
        each if isinstance(each, str) else each["name"] if isinstance(each, Mapping) else each.name
        for each in groups
    ]


def _channel(uri: str, settings: Mapping[str, Any]) -> str:
    more = {name: value for name, value in settings.items() if value}
    return json.dumps({"uri": uri, **more}) if more else uri


def _check_text(where: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: {shown_value(value)}: give a text: a URL or a path.")


def _check_choice(where: str, value: object, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise UsageError(f"{where} {value!r}{choices_hint(str(value), known)}")
