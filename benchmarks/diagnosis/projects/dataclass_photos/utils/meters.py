class Mean:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def value(self):
        return self.total / max(1, self.count)
