class Registry:
    def __init__(self, name):
        self.name = name
        self._entries = {}

    def register(self, cls):
        self._entries[cls.__name__] = cls
        return cls

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        kind = cfg.pop("type")
        if kind not in self._entries:
            raise KeyError(f"{kind} is not in the {self.name} registry")
        return self._entries[kind](**cfg, **extra)


HOOKS = Registry("hooks")
MODELS = Registry("models")
RUNNERS = Registry("runners")
