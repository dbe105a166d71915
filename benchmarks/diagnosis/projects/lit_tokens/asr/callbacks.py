import time

import lightning as L

from .metrics import token_error_rate


class Throughput(L.Callback):
    def __init__(self):
        self.samples = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.samples += len(batch["tokens"])


class ErrorRateMonitor(L.Callback):
    """A moving average of the training token error rate."""

    def __init__(self, every_n_steps=1, momentum=0.98):
        self.every_n_steps = every_n_steps
        self.momentum = momentum
        self.value = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.every_n_steps <= 0 or batch_idx % self.every_n_steps:
            return
        hypotheses = pl_module.last_logits.argmax(-1).tolist()
        rate = token_error_rate(batch["tokens"].tolist(), hypotheses)
        self.value = rate if self.value is None else self.momentum * self.value + (1 - self.momentum) * rate
        pl_module.log("train_ter", self.value)


class EpochPrinter(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        self.t = time.time()

    def on_train_epoch_end(self, trainer, pl_module):
        loss = trainer.callback_metrics.get("train_loss")
        print(f"epoch {trainer.current_epoch}: loss {float(loss):.3f} in {time.time() - self.t:.1f} s", flush=True)
