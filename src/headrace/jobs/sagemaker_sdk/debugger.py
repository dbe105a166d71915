"""Rules and hook configuration of SageMaker Debugger, as launch scripts name them.

Profiler rules are checked when the run has ended (jobs/verdict.py). The others are recorded, and
one note says that they have no effect. Names and order of arguments are those of sagemaker 2.257,
`debugger/debugger.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from headrace.core.errors import UsageError
from headrace.core.suggestions import choices_hint
from headrace.jobs.sagemaker_sdk import rule_configs
from headrace.jobs.sagemaker_sdk.config import FrameworkProfile

_CHECKED = (*rule_configs.DEFAULTS, rule_configs.REPORT)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule that is asked for.

    Attributes:
        name: What it is called.
        rule: Which of Debugger's it is; "": one of the user's own.
        rule_parameters: Those that were given.
        recorded: What else was said of it.
    """

    name: str
    rule: str = ""
    rule_parameters: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def sagemaker(
        cls, base_config: rule_configs.RuleConfig, name: str | None = None, **recorded: object
    ) -> Self:
        """Return one of Debugger's own.

        Args:
            base_config: As `rule_configs` has it, such as `rule_configs.CPUBottleneck()`.
            name: What it is called.
            recorded: What else SageMaker takes, such as `rule_parameters`, `s3_output_path`.

        Raises:
            UsageError: It is none.
        """
        if not isinstance(base_config, rule_configs.RuleConfig):
            raise UsageError(
                f"{cls.__name__}.sagemaker: {base_config!r}: give one of rule_configs, such as "
                "rule_configs.CPUBottleneck()."
            )
        given = recorded.pop("rule_parameters", None)
        more = dict(given) if isinstance(given, Mapping) else {}
        return cls(
            name=name or base_config.rule_name,
            rule=base_config.rule_name,
            rule_parameters={**base_config.rule_parameters, **more},
            recorded={key: value for key, value in recorded.items() if value is not None},
        )

    @classmethod
    def custom(cls, name: str, *recorded: object, **more: object) -> Self:
        """Return one of the user's own; it is recorded, and checked by nobody.

        Args:
            name: What it is called.
            recorded: What else SageMaker takes: an image, an instance type, a source.
            more: Likewise, by names.
        """
        return cls(name=name, recorded={**({"arguments": list(recorded)} if recorded else {}),
                                        **more})  # fmt: skip


class ProfilerRule(_Rule):
    """A rule about how hosts and steps fare: checked at the run's end, as Debugger's are."""


class Rule(_Rule):
    """A rule about tensors: recorded alone."""


@dataclass(frozen=True, slots=True)
class CollectionConfig:
    """Tensors that Debugger saved; recorded alone."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DebuggerHookConfig:
    """How Debugger saved tensors; recorded alone."""

    s3_output_path: str | None = None
    container_local_output_path: str | None = None
    hook_parameters: Mapping[str, Any] | None = None
    collection_configs: Sequence[CollectionConfig] | None = None


@dataclass(frozen=True, slots=True)
class TensorBoardOutputConfig:
    """Where SageMaker put a script's TensorBoard files; recorded alone."""

    s3_output_path: str
    container_local_output_path: str | None = None


def read_rules(told: object, where: str) -> list[_Rule]:
    """Return the rules that are asked for; job files and run.json have names, or dicts.

    Args:
        told: A list of them.
        where: Who asks, as a message begins.

    Raises:
        UsageError: One is none.
    """
    if not isinstance(told, Sequence) or isinstance(told, str | bytes):
        raise UsageError(f"{where}rules: {told!r} is not a list of ProfilerRule.")
    return [_rule(each, f"{where}rules: ") for each in told]


def _rule(told: object, said: str) -> _Rule:
    if isinstance(told, _Rule):
        return told
    if isinstance(told, str):
        if told not in _CHECKED:
            raise UsageError(f"{said}{told}{choices_hint(told, _CHECKED)}")
        return ProfilerRule(told, told)
    if isinstance(told, Mapping) and "name" in told:
        known = [each.name for each in fields(_Rule)]
        for name in told:
            if name not in known:
                raise UsageError(f"{said}{name}{choices_hint(str(name), known)}")
        return ProfilerRule(**told)
    raise UsageError(
        f"{said}{told!r} is no rule: write ProfilerRule.sagemaker(rule_configs.CPUBottleneck())."
    )


def checked_rules(rules: Iterable[_Rule]) -> list[str]:
    """Return the names of those that are checked at the run's end, each once."""
    return list(dict.fromkeys(each.rule for each in rules if each.rule in _CHECKED))


def ignored_settings(
    *, rules: Iterable[_Rule] = (), profile: object | None = None, s3_output_path: object = None,
    others: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """Return one note that says what of Debugger's has no effect here, or none.

    Args:
        rules: Those that are asked for.
        profile: A FrameworkProfile, or anything in its place.
        s3_output_path: Where Debugger would have put what it saw.
        others: Names of other arguments that are given.
    """
    said = []
    asked = list(rules)
    unknown = [each.name for each in asked if each.rule not in _CHECKED]
    if unknown:
        said.append(f"the rules {', '.join(unknown)} (nobody saves tensors, or runs one's own)")
    changed = [
        f"{each.rule}'s {name}={value}"
        for each in asked
        if each.rule in _CHECKED
        for name, value in each.rule_parameters.items()
        if name != "rule_to_invoke" and value != rule_configs.DEFAULTS.get(each.rule, {}).get(name)
    ]
    if changed:
        said.append(f"{', '.join(changed)} (rules have Debugger's own thresholds)")
    if isinstance(profile, FrameworkProfile) and profile.has_parts:
        said.append("the steps and parts of FrameworkProfile (all is looked at closer)")
    if s3_output_path is not None:
        said.append("s3_output_path (what is recorded lies in the run's folder)")
    said += others
    return [f"of SageMaker Debugger's, these have no effect: {'; '.join(said)}"] if said else []
