from .registry import HOOKS, RUNNERS


@RUNNERS.register
class EpochRunner:
    def __init__(self, model, optimizer, work_dir, max_epochs):
        self.model, self.optimizer = model, optimizer
        self.work_dir, self.max_epochs = work_dir, max_epochs
        self.hooks, self.log, self.meta = [], {}, {}
        self.epoch = self.iter = self.max_iters = self.samples = 0
        self.outputs = None

    def register_hooks(self, cfgs):
        for cfg in cfgs:
            self.hooks.append(HOOKS.build(cfg))

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name)(self)

    def state_dict(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "iter": self.iter,
            "meta": dict(self.meta),
        }

    def train_iter(self, batch):
        self.outputs = self.model(*batch)
        self.optimizer.zero_grad()
        self.outputs["loss"].backward()
        self.optimizer.step()
        self.log["loss"] = self.outputs["loss"].item()
        self.samples += len(batch[0])

    def run(self, loader):
        self.max_iters = self.max_epochs * len(loader)
        self.call_hook("before_run")
        for self.epoch in range(self.max_epochs):
            self.model.train()
            self.call_hook("before_train_epoch")
            for batch in loader:
                self.call_hook("before_train_iter")
                self.train_iter(batch)
                self.call_hook("after_train_iter")
                self.iter += 1
            self.call_hook("after_train_epoch")
        self.call_hook("after_run")
