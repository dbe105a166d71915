from .stream import ShardStream

__all__ = ["ShardStream"]
