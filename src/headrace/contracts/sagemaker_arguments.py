"""Hyperparameters as a script's arguments: the two dialects of SageMaker.

Sources: sagemaker-training 5.1 (mapping.to_cmd_args) for SDK 2, sagemaker-train 1.27
(container_drivers/common/utils.py) for SDK 3.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def sagemaker_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the arguments as SDK 2's containers give them to a script.

    By name; a name of one letter has one dash; True is `True`, None nothing, and a dict
    `a=1,b=2`.
    """
    told = []
    for name in sorted(hyperparameters):
        value = hyperparameters[name]
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={inner}" for key, inner in sorted(value.items()))
        told += [f"--{name}" if len(name) > 1 else f"-{name}", "" if value is None else str(value)]
    return told


def sagemaker_v3_arguments(hyperparameters: Mapping[str, Any]) -> list[str]:
    """Return the arguments as SDK 3's drivers give them to a script.

    In the order given; all but texts are JSON. A text that is JSON is read as such first.
    """
    told = []
    for name, value in hyperparameters.items():
        read = _read(value) if isinstance(value, str) else value
        told += [f"--{name}", read if isinstance(read, str) else json.dumps(read)]
    return told


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
