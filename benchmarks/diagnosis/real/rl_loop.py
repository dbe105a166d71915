import argparse
import math
import random
import time
from collections import deque
from itertools import count

import torch
from emulated import Accelerated
from torch import nn


class CartPole:
    def __init__(self, substeps):
        self.substeps = substeps
        self.state = [0.0] * 4

    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return torch.tensor(self.state)

    def derivatives(self, state, force):
        _, velocity, angle, spin = state
        cos, sin = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        return [velocity, push - 0.05 * turn * cos / 1.1, spin, turn]

    def integrate(self, force, seconds):
        h = seconds / self.substeps
        s = self.state
        for _ in range(self.substeps):
            k1 = self.derivatives(s, force)
            k2 = self.derivatives([a + h / 2 * b for a, b in zip(s, k1, strict=True)], force)
            k3 = self.derivatives([a + h / 2 * b for a, b in zip(s, k2, strict=True)], force)
            k4 = self.derivatives([a + h * b for a, b in zip(s, k3, strict=True)], force)
            s = [
                a + h / 6 * (b + 2 * c + 2 * d + e)
                for a, b, c, d, e in zip(s, k1, k2, k3, k4, strict=True)
            ]
        self.state = s

    def step(self, action):
        self.integrate(10.0 if action else -10.0, 0.02)
        position, _, angle, _ = self.state
        done = abs(position) > 2.4 or abs(angle) > 0.21
        return torch.tensor(self.state), 1.0, done


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *transition):
        self.memory.append(transition)

    def sample(self, batch_size):
        columns = zip(*random.sample(self.memory, batch_size), strict=True)
        states, actions, rewards, next_states, dones = columns
        return (
            torch.stack(states),
            torch.tensor(actions),
            torch.tensor(rewards),
            torch.stack(next_states),
            torch.tensor(dones, dtype=torch.float32),
        )


def select_action(policy_net, state, eps):
    if random.random() < eps:
        return random.randrange(2)
    with torch.no_grad():
        return policy_net(state.unsqueeze(0)).argmax().item()


def optimize_model(learner, target_net, optimizer, memory, args):
    states, actions, rewards, next_states, dones = memory.sample(args.batch_size)
    values = learner(states).gather(1, actions[:, None]).squeeze(1)
    with torch.no_grad():
        expected = rewards + args.gamma * target_net(next_states).max(1).values * (1 - dones)
    loss = nn.functional.smooth_l1_loss(values, expected)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(learner.parameters(), 100)
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(description="DQN")
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--substeps", type=int, default=3000, help="of the integrator")
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    policy_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    target_net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 2))
    learner = Accelerated(policy_net, step_ms=15)
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-3, amsgrad=True)
    env, memory = CartPole(args.substeps), ReplayMemory(10_000)
    steps_done, start = 0, time.time()
    for episode in count():
        state = env.reset()
        for t in count(1):
            eps = 0.05 + 0.85 * math.exp(-steps_done / 200)
            action = select_action(policy_net, state, eps)
            next_state, reward, done = env.step(action)
            memory.push(state, action, reward, next_state, done)
            state = next_state
            steps_done += 1
            if len(memory.memory) >= args.batch_size:
                optimize_model(learner, target_net, optimizer, memory, args)
            if steps_done % 50 == 0:
                target_net.load_state_dict(policy_net.state_dict())
            if done or steps_done >= args.frames:
                break
        if episode % 5 == 0:
            print(f"episode {episode}: {t} frames")
        if steps_done >= args.frames:
            break
    print(f"{steps_done / (time.time() - start):.1f} frames/s")


if __name__ == "__main__":
    main()
