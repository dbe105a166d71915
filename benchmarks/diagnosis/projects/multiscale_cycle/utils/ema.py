from timm.utils import ModelEmaV2


class WarmEma(ModelEmaV2):
    """The decay grows to its final value."""

    def __init__(self, model, decay=0.999, tau=200):
        super().__init__(model, decay=decay)
        self.final, self.tau, self.updates = decay, tau, 0

    def step(self, model):
        self.updates += 1
        self.decay = min(self.final, self.updates / (self.updates + self.tau))
        self.update(model)
