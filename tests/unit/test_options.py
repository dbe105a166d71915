"""Options of a job: one field gives flag, key, argument, dry run and page; texts bring it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from documentation import options_page
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UsageError
from headrace.core.overrides import parse_overrides
from headrace.jobs.cli_args import split_headrace_flags
from headrace.jobs.job_request import argument_names, request_job
from headrace.jobs.options import (
    SWITCH,
    TEXT,
    OptionGroup,
    argument_texts,
    number,
    option,
    option_texts,
    options_of,
    parse_options,
)
from headrace.jobs.spec import (
    ContractOptions,
    HostsOptions,
    JobSpec,
    RecordingOptions,
    RunOptions,
    Script,
    ScriptOptions,
    SyncOptions,
    job_options,
)
from headrace.platforms.instance_groups import GroupSpec

NAMES = st.from_regex(r"[a-f][a-f_1-]{0,4}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
NUMBERS = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | NUMBERS
    | TEXTS
    | st.sampled_from(["1.10", "NaN", '"a"', "[", "1e3"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
GROUPS = st.builds(
    GroupSpec,
    name=st.sampled_from(["gpu", "cpu-1"]),
    hosts=st.integers(1, 9),
    cpus=st.none() | st.integers(1, 8),
    gpus=st.none() | st.integers(0, 8),
)
SPECS = st.builds(
    JobSpec,
    script=st.builds(
        Script,
        path=NAMES,
        is_module=st.booleans(),
        arguments=st.lists(TEXTS, max_size=3).map(tuple),
    ),
    torchrun_flags=st.sampled_from([(), ("--standalone", "--nproc-per-node=2")]),
    run=st.builds(RunOptions, name=st.none() | NAMES, dry_run=st.booleans()),
    environment=st.builds(
        ScriptOptions,
        environment=st.dictionaries(st.sampled_from(["A", "B_1"]), TEXTS, max_size=2),
        max_run_s=st.none() | st.integers(1, 10**9).map(float) | st.sampled_from([0.5, 86400.25]),
    ),
    contract=st.builds(
        ContractOptions,
        contracts=st.sampled_from([("sagemaker",), ("vertex", "sagemaker-v3")]),
        hyperparameters=st.dictionaries(NAMES, VALUES, max_size=3),
        channels=st.dictionaries(st.sampled_from(["train", "test"]), st.just("s3://b/a=b")),
        input_modes=st.sampled_from([{}, {"": "File"}, {"": "FastFile"}]),
        distribution=st.sampled_from([None, "mpi"]),
        processes_per_host=st.none() | st.integers(1, 8),
    ),
    recording=st.builds(
        RecordingOptions,
        profile=st.sampled_from(["on", "off", "deep"]),
        interval_s=st.integers(100, 60_000).map(lambda ms: ms / 1000),
        overrides=st.sampled_from([(), parse_overrides("num_workers=8,pin_memory@t.py:4=on")]),
        metrics=st.sampled_from([{}, {"loss": "loss=([0-9.]+)"}]),
    ),
    hosts=st.builds(
        HostsOptions,
        engine=st.just("ray"),
        groups=st.lists(GROUPS, max_size=2, unique_by=lambda group: group.name).map(tuple),
        hosts_s=st.floats(0.001, 10**6),
        max_preemptions=st.integers(-1, 10),
        driver=st.booleans(),
    ),
    sync=st.builds(SyncOptions, output_path=st.none() | st.just("s3://b/out")),
)


@settings(max_examples=40)
@given(spec=SPECS)
def test_hosts_get_the_same_job_as_json(spec: JobSpec):
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@settings(max_examples=40)
@given(spec=SPECS)
def test_the_flags_of_a_job_give_the_same_options(spec: JobSpec):
    texts = spec.texts()
    flags = [flag for name, each in texts.items() for flag in job_options()[name].flags(each)]
    assert split_headrace_flags([*flags, "train.py"]) == (texts, ["train.py"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms(OptionGroup):
    number_of_rooms: int = option("rooms", number(1), "Run", "How many rooms.", default=4)
    has_garden: bool = option("with_garden", SWITCH, "Run", "There is a garden.", default=False)


def test_a_field_is_all_that_an_option_needs():
    rooms, garden = options_of(Rooms)
    assert (rooms.flag, rooms.argument) == ("--rooms", "rooms")
    assert garden.spellings == ("--with-garden", "--with_garden")
    assert parse_options(Rooms, {"rooms": ["2", "7"]}) == Rooms(number_of_rooms=7)
    for value in (Rooms(), Rooms(number_of_rooms=2, has_garden=True)):
        assert parse_options(Rooms, option_texts(value)) == value
    assert option_texts(Rooms()) == {}
    assert argument_texts(rooms, 3, "") == ["3"]
    assert argument_texts(garden, True, "") == ["true"]
    with pytest.raises(UsageError, match="--rooms 0: give a whole number, 1 or more"):
        parse_options(Rooms, {"rooms": ["0"]})
    for wrong, of in ((True, rooms), ("yes", garden), (None, rooms)):
        with pytest.raises(UsageError, match=f"Estimator: {of.argument}: {wrong!r} is not"):
            argument_texts(of, wrong, "Estimator: ")


def test_a_flag_with_nothing_behind_it_is_refused():
    """As of a shell's variable that is not set: --source-dir=$CODE."""
    texts = {each.name: "" for each in job_options().values() if each.kind.parse is TEXT.parse}
    assert {"name", "source_dir", "cache_limit"} <= texts.keys()
    for name, text in {**texts, "dependency": "", "channel": "train="}.items():
        with pytest.raises(UsageError, match=f"{job_options()[name].flag} .*(is empty|no such)"):
            JobSpec.parse({"contract": ["sagemaker"], name: [text]}, Script(path="train.py"))


@pytest.mark.parametrize("contracts", [[], ["torchrun"], ["torchrun,torchrun"]])
def test_channels_of_a_job_whose_script_would_not_find_them_are_refused(contracts: list[str]):
    texts = {"contract": contracts, "channel": ["train=s3://b/train"]}
    with pytest.raises(UsageError, match=r"--channel train=.*Add --contract sagemaker"):
        JobSpec.parse(texts, Script(path="train.py"))
    for more in ("sagemaker", "vertex"):
        found = JobSpec.parse({**texts, "contract": [*contracts, more]}, Script(path="train.py"))
        assert found.contract.channels == {"train": "s3://b/train"}


@pytest.mark.parametrize(
    ("argument", "value", "flag"),
    [
        ("requirements", "none", "--requirements=none"),
        ("apply", "num_workers=2", "--apply=num_workers=2"),
        ("profile", "deep", "--profile=deep"),
        ("hosts_timeout", "90s", "--hosts-timeout=90s"),
        ("max_preemptions", 3, "--max-preemptions=3"),
        ("driver", True, "--driver"),
    ],
)
def test_options_are_arguments_by_their_names(argument: str, value: Any, flag: str):
    given = {"entry_point": "train.py", argument: value}
    assert flag in request_job(given, {}, "").flags()


def test_every_option_is_described():
    assert Path(__file__).parents[2].joinpath("docs/options.md").read_text() == options_page()
    assert {each.argument for each in job_options().values()} - {None} <= set(argument_names())
