"""A search of the learning rate and width of a small network by TPE, with pruned trials."""

import optuna
import torch
from job import numbers, say, start
from torch import nn

PACKAGES = ("optuna",)

optuna.logging.set_verbosity(optuna.logging.ERROR)
x, y = numbers(32, 4), numbers(32, 1, seed=1)


def objective(trial):
    """The loss after some steps."""
    width = trial.suggest_int("width", 2, 8)
    rate = trial.suggest_float("rate", 1e-3, 1e-1, log=True)
    model = start(nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(10):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.report(loss.item(), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return loss.item()


study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner())
study.optimize(objective, n_trials=15)
say("value", study.best_value)
say("parameters", study.best_params["width"], study.best_params["rate"])
