"""config.yaml and overrides "group.key=value" on the command line, as with hydra."""
import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml


def _namespace(value):
    if isinstance(value, dict):
        return SimpleNamespace(**{k: _namespace(v) for k, v in value.items()})
    return value


def main(config_path):
    def decorate(task):
        @functools.wraps(task)
        def wrapper():
            path = Path(task.__code__.co_filename).resolve().parent / config_path
            config = yaml.safe_load(path.read_text())
            for override in sys.argv[1:]:
                key, _, value = override.partition("=")
                *groups, last = key.split(".")
                node = config
                for group in groups:
                    node = node[group]
                if last not in node:
                    raise SystemExit(f"no such option: {key}")
                node[last] = yaml.safe_load(value)
            return task(_namespace(config))

        return wrapper

    return decorate
