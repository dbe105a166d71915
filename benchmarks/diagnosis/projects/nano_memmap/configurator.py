"""Executed in train.py's globals: a config file, then --key=value."""
import sys
from ast import literal_eval

for _arg in sys.argv[1:]:
    if "=" not in _arg:
        exec(open(os.path.join(HERE, _arg)).read())
    else:
        _key, _val = _arg.removeprefix("--").split("=", 1)
        if _key not in globals():
            raise ValueError(f"Unknown config key: {_key}")
        try:
            globals()[_key] = literal_eval(_val)
        except (SyntaxError, ValueError):
            globals()[_key] = _val
