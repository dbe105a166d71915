"""SageMaker Debugger's words in a launch script: what they become, and what is reported of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.core.errors import UsageError
from headrace.jobs.job_request import JobRequest, request_job
from headrace.jobs.sagemaker_sdk.config import read_profile
from headrace.jobs.sagemaker_sdk.debugger import read_rules
from headrace.jobs.sagemaker_sdk.inputs import named_inputs
from headrace.observe.doctor.debugger_rules import SAGEMAKER_RULES
from headrace.sagemaker import (
    DataloaderProfilingConfig,
    FrameworkProfile,
    ProfilerConfig,
    ProfilerRule,
    PythonProfilingConfig,
    Rule,
    ShuffleConfig,
    TrainingInput,
    rule_configs,
)


def described(inputs: Any = None, **asked: Any) -> JobRequest:
    given = {"entry_point": "train.py", **asked}
    return request_job(given, named_inputs(inputs, ""), "Estimator: ")


def test_there_is_each_rule_that_the_doctor_has():
    assert set(rule_configs.DEFAULTS) == set(SAGEMAKER_RULES)
    for name in rule_configs.DEFAULTS:
        assert getattr(rule_configs, name)().rule_name == name


def test_rules_and_a_profile_are_recorded_and_one_note_says_what_has_no_effect():
    profile = FrameworkProfile(
        dataloader_profiling_config=DataloaderProfilingConfig(start_step=7, num_steps=1),
        python_profiling_config=PythonProfilingConfig(),
    )
    job = described(
        rules=[
            ProfilerRule.sagemaker(rule_configs.CPUBottleneck(60, patience=1000)),
            ProfilerRule.custom("mine", "image", "ml.c4.xlarge", 20),
            Rule.sagemaker(rule_configs.loss_not_decreasing(), rule_parameters={"mode": "EVAL"}),
        ],
        profiler_config=ProfilerConfig(
            s3_output_path="s3://b/p", system_monitor_interval_millis=None,
            framework_profile_params=profile,
        ),
    )  # fmt: skip
    assert job.flags() == ["--contract=sagemaker", "--profile=deep", "--profile-interval=500ms"]
    (note,) = job.notes
    for message in ("the rules mine, LossNotDecreasing", "CPUBottleneck's threshold=60 (",
                 "the steps and parts of FrameworkProfile", "s3_output_path"):  # fmt: skip
        assert message in note
    content = json.loads(job.arguments_json())
    assert read_rules(content["rules"], "")[0].rule_parameters == {
        "threshold": 60,
        "patience": 1000,
    }
    assert [each.name for each in read_rules(content["rules"], "")] == [
        "CPUBottleneck", "mine", "LossNotDecreasing",
    ]  # fmt: skip
    again = read_profile(content["profiler_config"]["framework_profile_params"])
    assert isinstance(again, FrameworkProfile)
    assert again.dataloader_profiling_config == profile.dataloader_profiling_config
    # What run.json has describes the same job.
    again = described(rules=content["rules"], profiler_config=content["profiler_config"])
    assert again.flags() == job.flags()


def test_what_is_as_debugger_has_it_needs_no_note():
    rules = [ProfilerRule.sagemaker(rule_configs.ProfilerReport()), "StepOutlier"]
    whole = ProfilerConfig(framework_profile_params=FrameworkProfile())
    assert described(rules=rules, profiler_config=whole, debugger_hook_config=False).notes == ()
    off = described(profiler_config=ProfilerConfig(disable_profiler=True))
    assert off.flags()[-1] == "--profile=off"


def test_words_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match=r"Did you mean threshold\?"):
        rule_configs.CPUBottleneck(treshold=50)
    with pytest.raises(UsageError, match=r"Did you mean CPUBottleneck\?"):
        rule_configs.ProfilerReport(CPUBotleneck_threshold=50)
    with pytest.raises(UsageError, match=r"Did you mean CPUBottleneck\?"):
        described(rules=["CPUBotleneck"])
    with pytest.raises(UsageError, match="5 is no rule"):
        described(rules=[5])
    with pytest.raises(UsageError, match="give one of rule_configs"):
        ProfilerRule.sagemaker("CPUBottleneck")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="steps and a time are given"):
        FrameworkProfile(start_step=5, duration=10)
    with pytest.raises(UsageError, match="num_steps 0 is not a whole number, 1 or more"):
        DataloaderProfilingConfig(num_steps=0)
    with pytest.raises(UsageError, match=r"Did you mean start_step\?"):
        ProfilerConfig(framework_profile_params={"start_stp": 5})


def test_the_order_of_a_channel_stays_and_that_is_reported():
    given = TrainingInput("s3://b/t", shuffle_config=ShuffleConfig(7))
    lowered = described({"train": given})
    assert json.loads(lowered.arguments_json())["inputs"]["train"]["shuffle_config"] == {"seed": 7}
    assert ["train: shuffle_config has no effect" in each for each in lowered.notes] == [True]
    content = json.loads(lowered.arguments_json())["inputs"]
    assert named_inputs(content, "") == {"train": given}
    for wrong in (7, ShuffleConfig):
        with pytest.raises(UsageError, match=r"write ShuffleConfig\(seed\)"):
            TrainingInput("s3://b/t", shuffle_config=wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="seed 'a' is not a whole number"):
        ShuffleConfig("a")  # type: ignore[arg-type]


def test_code_in_a_repository_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"git_config: .*git clone .* source_dir"):
        described(git_config={"repo": "https://example.com/r.git", "branch": "main"})
    assert described(git_config=None).notes == ()
