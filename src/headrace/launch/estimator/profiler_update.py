"""`Estimator.update_profiler`: how a run is recorded, changed while it runs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from headrace.core.errors import UsageError
from headrace.launch.estimator.debugger import read_rules, without_effect
from headrace.launch.estimator.framework_profile import FrameworkProfile, read_profile
from headrace.launch.estimator.lowering import as_json
from headrace.launch.estimator.started_run import StartedRun
from headrace.launch.recording import check_interval
from headrace.launch.told import tell
from headrace.records.launcher import hide_secrets
from headrace.records.run_folder import RunFolder

_DEEP_S = 20.0
_WHERE = "update_profiler: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilerUpdate:
    """What is to change; None: that stays.

    Attributes:
        rules: Rules that are checked, too, when the run has ended.
        system_monitor_interval_millis: Milliseconds between samples of the system.
        s3_output_path: SageMaker's place for what is recorded.
        framework_profile_params: FrameworkProfile: look closer, for its duration or 20 seconds.
        disable_framework_metrics: Look closer no more.
        deep_s: Look closer for so many seconds.
    """

    rules: object | None
    system_monitor_interval_millis: int | None
    s3_output_path: str | None
    framework_profile_params: object | None
    disable_framework_metrics: bool
    deep_s: float | None

    def apply(self, run: StartedRun) -> None:
        """Change how a run is recorded, and write down in its folder what was asked.

        Raises:
            UsageError: Nothing is to change, or a value cannot be; all stays as it is.
            RecordsError: It does not run, or is not recorded.
        """
        millis = self.system_monitor_interval_millis
        interval_s = None if millis is None else check_interval(f"{millis}ms")
        rules = [] if self.rules is None else read_rules(self.rules, _WHERE)
        profile = read_profile(self.framework_profile_params)
        self._check(profile)
        switch = run.switch()
        switch.on = True
        if interval_s is not None:
            switch.interval_s = interval_s
        if self.disable_framework_metrics:
            switch.end_deep()
        elif self.deep_s is not None or profile is not None:
            duration = profile.duration if isinstance(profile, FrameworkProfile) else None
            switch.go_deep(self.deep_s or duration or _DEEP_S)
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        update = {name: value for name, value in given.items() if value}
        told = json.loads(json.dumps({"rules": rules, "update": update}, default=as_json))
        _note(run, hide_secrets(told))
        for note in without_effect(
            rules=rules, profile=profile, s3_output_path=self.s3_output_path
        ):
            tell(f"headrace: {_WHERE}{note}\n")

    def _check(self, profile: object | None) -> None:
        changes = (self.rules, self.system_monitor_interval_millis, self.s3_output_path, profile,
                   self.disable_framework_metrics, self.deep_s)  # fmt: skip
        if not any(each is not None and each is not False for each in changes):
            raise UsageError(
                f"{_WHERE}say what is to change, such as system_monitor_interval_millis=500."
            )
        if self.disable_framework_metrics and (profile is not None or self.deep_s is not None):
            asked = "deep_s" if profile is None else "framework_profile_params"
            raise UsageError(f"{_WHERE}disable_framework_metrics and {asked}: give one of them.")


def _note(run: StartedRun, told: dict[str, list[object]]) -> None:
    attempt = run.attempt
    asked = {} if attempt is None else attempt.asked
    changes = {"profiler_updates": [*asked.get("profiler_updates", []), told["update"]]}
    if told["rules"]:
        changes["rules"] = [*asked.get("rules", []), *told["rules"]]
    RunFolder(run.path).note_asked(run.number, changes)
