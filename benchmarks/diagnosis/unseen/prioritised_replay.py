"""Learn from a replay buffer, the surprising transitions more often than the others."""

import numpy as np
import torch
from emulated import DEVICE, Network
from torch import nn

torch.set_num_threads(1)

STATE, ACTIONS = 16, 10


class ReplayBuffer:
    """What an agent has seen, and how surprising it was."""

    def __init__(self, capacity, seed=0):
        self.random = np.random.default_rng(seed)
        self.states = self.random.normal(size=(capacity, STATE)).astype(np.float32)
        self.actions = self.random.integers(0, ACTIONS, capacity)
        self.rewards = self.random.normal(size=capacity).astype(np.float32)
        self.priorities = self.random.random(capacity) + 0.01
        self.newest = 0

    def add(self, state, action, reward):
        """Take in a transition in place of the oldest."""
        self.newest = (self.newest + 1) % len(self.states)
        self.states[self.newest] = state
        self.actions[self.newest] = action
        self.rewards[self.newest] = reward
        self.priorities[self.newest] = self.priorities.max()

    def sample(self, count):
        """Return transitions and where they lie."""
        share = self.priorities / self.priorities.sum()
        places = self.random.choice(len(share), count, replace=False, p=share)  # at fault
        batch = self.states[places], self.actions[places], self.rewards[places]
        return places, *(torch.from_numpy(part).to(DEVICE) for part in batch)

    def update(self, places, errors):
        """Note how surprising transitions are now."""
        self.priorities[places] = np.abs(errors) + 0.01


def main():
    """Act and learn in turn."""
    buffer = ReplayBuffer(capacity=1_500_000)
    policy = Network(step_ms=9, features=STATE).to(DEVICE)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for step in range(300):
        buffer.add(np.full(STATE, step % 5, np.float32), step % ACTIONS, 1.0)
        places, states, actions, rewards = buffer.sample(256)
        values = policy(states).gather(1, actions[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(values, rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.update(places, (values - rewards).detach().cpu().numpy())
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
