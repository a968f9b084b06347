"""PPO and SAC on an environment of one number, from the same weights: the losses of updates on fixed rollouts."""

import gymnasium
import numpy as np
import torch
from job import say, start
from stable_baselines3 import PPO, SAC

PACKAGES = ("stable_baselines3", "gymnasium")


class Walk(gymnasium.Env):
    """A number is moved by the action; the reward is minus its square."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Start at 2."""
        super().reset(seed=seed)
        self.place, self.count = 2.0, 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        """Move."""
        self.place, self.count = self.place + 0.3 * float(action[0]), self.count + 1
        seen = np.array([self.place], np.float32)
        return seen, -(self.place**2), False, self.count == 20, {}


agent = PPO("MlpPolicy", Walk(), n_steps=64, batch_size=32, n_epochs=2, seed=0, device="cpu")
start(agent.policy)
seen = torch.linspace(-2, 2, 9)[:, None]
values, logs, entropy = agent.policy.evaluate_actions(seen, seen / 2)
say("PPO", values, logs, entropy)
(values.square().mean() - logs.mean() - 0.1 * entropy.mean()).backward()
agent.policy.optimizer.step()
say("PPO_after", *agent.policy.evaluate_actions(seen, seen / 2))
agent.learn(128)
say("PPO_learns", float(all(bool(torch.isfinite(p).all()) for p in agent.policy.parameters())))

agent = SAC("MlpPolicy", Walk(), learning_starts=20, batch_size=16, seed=0, device="cpu")
start(agent.policy)
say("SAC", agent.actor(seen, deterministic=True))
say("SAC", *agent.critic(seen, seen / 2))
agent.learn(60)
say("SAC_learns", float(all(bool(torch.isfinite(p).all()) for p in agent.policy.parameters())))
