import math
import os
import time

from utils.io import save_checkpoint

from .registry import HOOKS


class Hook:
    def before_run(self, runner): ...
    def before_train_epoch(self, runner): ...
    def before_train_iter(self, runner): ...
    def after_train_iter(self, runner): ...
    def after_train_epoch(self, runner): ...
    def after_run(self, runner): ...

    @staticmethod
    def every_n_iters(runner, n):
        return n > 0 and (runner.iter + 1) % n == 0


@HOOKS.register
class CosineLrHook(Hook):
    def __init__(self, min_lr):
        self.min_lr = min_lr

    def before_run(self, runner):
        self.base = [g["lr"] for g in runner.optimizer.param_groups]

    def before_train_iter(self, runner):
        x = 0.5 * (1 + math.cos(math.pi * runner.iter / runner.max_iters))
        for group, base in zip(runner.optimizer.param_groups, self.base):
            group["lr"] = self.min_lr + (base - self.min_lr) * x


@HOOKS.register
class QueueHook(Hook):
    """Puts the newest keys into the negatives' queue."""

    def after_train_iter(self, runner):
        runner.model.enqueue(runner.outputs["keys"])


@HOOKS.register
class CheckpointHook(Hook):
    def __init__(self, interval, keep=2, level=6):
        self.interval, self.keep, self.level = interval, keep, level
        self.written = []

    def after_train_iter(self, runner):
        if not self.every_n_iters(runner, self.interval):
            return
        path = os.path.join(runner.work_dir, f"iter_{runner.iter + 1}.pth.gz")
        digest = save_checkpoint(runner.state_dict(), path, self.level)
        runner.meta["last_digest"] = digest
        self.written.append(path)
        while len(self.written) > self.keep:
            os.remove(self.written.pop(0))


@HOOKS.register
class IterTimerHook(Hook):
    def before_train_epoch(self, runner):
        self.t = time.time()

    def before_train_iter(self, runner):
        runner.log["data_time"] = time.time() - self.t

    def after_train_iter(self, runner):
        runner.log["time"] = time.time() - self.t
        self.t = time.time()


@HOOKS.register
class TextLoggerHook(Hook):
    def __init__(self, interval):
        self.interval = interval

    def after_train_iter(self, runner):
        if self.every_n_iters(runner, self.interval):
            text = ", ".join(f"{k}: {v:.4f}" for k, v in sorted(runner.log.items()))
            print(f"Epoch [{runner.epoch + 1}][{runner.iter + 1}/{runner.max_iters}] {text}", flush=True)
