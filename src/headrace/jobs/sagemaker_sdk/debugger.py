"""The rules and hook configuration of SageMaker Debugger, as launch scripts name them.

Profiler rules are checked when the run has ended (jobs/verdict.py). All others are only recorded,
and a note says that they have no effect. Names and order of arguments are those of sagemaker
2.257, `debugger/debugger.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from headrace.core.errors import UsageError, check_choices
from headrace.jobs.sagemaker_sdk import rule_configs
from headrace.jobs.sagemaker_sdk.config import FrameworkProfile

_CHECKED = (*rule_configs.DEFAULTS, rule_configs.REPORT)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A requested rule."""

    name: str
    rule: str = ""  # Debugger's name; "": a rule of the user's own
    rule_parameters: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)  # arguments without effect

    @classmethod
    def sagemaker(
        cls, base_config: rule_configs.RuleConfig, name: str | None = None, **recorded: object
    ) -> Self:
        """Return one of Debugger's own rules.

        Args:
            base_config: A configuration such as `rule_configs.CPUBottleneck()`.
            name: The rule's name.
            recorded: SageMaker's other arguments, such as `rule_parameters`, `s3_output_path`.

        Raises:
            UsageError: `base_config` is no RuleConfig.
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
        """Return a rule of the user's own, which is recorded and not checked.

        Args:
            name: The rule's name.
            recorded: SageMaker's other arguments, such as an image, an instance type, a source.
            more: The same, by name.
        """
        return cls(name=name, recorded={**({"arguments": list(recorded)} if recorded else {}),
                                        **more})  # fmt: skip


class ProfilerRule(_Rule):
    """A rule about hosts and steps, checked at the run's end."""


class Rule(_Rule):
    """A rule about tensors; only recorded."""


@dataclass(frozen=True, slots=True)
class CollectionConfig:
    """The tensors that Debugger saved; only recorded."""

    name: str
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DebuggerHookConfig:
    """How Debugger saved tensors; only recorded."""

    s3_output_path: str | None = None
    container_local_output_path: str | None = None
    hook_parameters: Mapping[str, Any] | None = None
    collection_configs: Sequence[CollectionConfig] | None = None


@dataclass(frozen=True, slots=True)
class TensorBoardOutputConfig:
    """Where SageMaker stored a script's TensorBoard files; only recorded."""

    s3_output_path: str
    container_local_output_path: str | None = None


def read_rules(given: object, where: str) -> list[_Rule]:
    """Return the requested rules; job files and run.json have names or dicts of them.

    Raises UsageError, prefixed by `where`, for an entry that is no rule.
    """
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise UsageError(f"{where}rules: {given!r} is not a list of ProfilerRule.")
    return [_rule(each, f"{where}rules: ") for each in given]


def _rule(given: object, prefix: str) -> _Rule:
    if isinstance(given, _Rule):
        return given
    if isinstance(given, str):
        check_choices([given], _CHECKED, prefix)
        return ProfilerRule(given, given)
    if isinstance(given, Mapping) and "name" in given:
        check_choices(given, [each.name for each in fields(_Rule)], prefix)
        return ProfilerRule(**given)
    raise UsageError(
        f"{prefix}{given!r} is no rule: write ProfilerRule.sagemaker(rule_configs.CPUBottleneck())."
    )


def checked_rules(rules: Iterable[_Rule]) -> list[str]:
    """Return the names of the rules that are checked at the run's end, without duplicates."""
    return list(dict.fromkeys(each.rule for each in rules if each.rule in _CHECKED))


def ignored_settings(
    *, rules: Iterable[_Rule] = (), profile: object | None = None, s3_output_path: object = None,
    others: Iterable[str] = (),
) -> list[str]:  # fmt: skip
    """Return a list of one note about Debugger settings without effect, or an empty list.

    `profile` is a FrameworkProfile or another value; `others` names further arguments.
    """
    ignored = []
    requested = list(rules)
    unknown = [each.name for each in requested if each.rule not in _CHECKED]
    if unknown:
        ignored.append(f"the rules {', '.join(unknown)} (nobody saves tensors, or runs one's own)")
    changed = [
        f"{each.rule}'s {name}={value}"
        for each in requested
        if each.rule in _CHECKED
        for name, value in each.rule_parameters.items()
        if name != "rule_to_invoke" and value != rule_configs.DEFAULTS.get(each.rule, {}).get(name)
    ]
    if changed:
        ignored.append(f"{', '.join(changed)} (rules have Debugger's own thresholds)")
    if isinstance(profile, FrameworkProfile) and profile.has_parts:
        ignored.append("the steps and parts of FrameworkProfile (all is looked at closer)")
    if s3_output_path is not None:
        ignored.append("s3_output_path (what is recorded lies in the run's folder)")
    ignored += others
    text = f"of SageMaker Debugger's, these have no effect: {'; '.join(ignored)}"
    return [text] if ignored else []
