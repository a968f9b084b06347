"""NeuralNetClassifier in a pipeline of scikit-learn: fit, grid search, checkpoint; NeuralNetRegressor."""

import numpy as np
import torch
from job import say, start, timed
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Checkpoint, EpochScoring, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

PACKAGES = ("skorch",)


class Net(nn.Module):
    def __init__(self, width=16, outputs=3, last=True):
        super().__init__()
        self.layers = start(nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, outputs)))
        self.last = last

    def forward(self, x):
        found = self.layers(x)
        return found.softmax(-1) if self.last else found


random = np.random.default_rng(0)
x = random.standard_normal((90, 8)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0)
net = NeuralNetClassifier(
    Net, max_epochs=5, lr=0.05, optimizer=torch.optim.Adam, train_split=ValidSplit(3, stratified=False), verbose=0,
    batch_size=16, callbacks=[Checkpoint(dirname="kept"), EpochScoring("accuracy", name="train_acc", on_train=True),
                              GradientNormClipping(1.0), LRScheduler("StepLR", step_size=2, gamma=0.5)],
)  # fmt: skip
pipe = make_pipeline(StandardScaler(), net)
with timed():
    pipe.fit(x, y)
for name in ("train_loss", "valid_loss", "valid_acc", "train_acc"):
    say(name, net.history[:, name])
say("chances", pipe.predict_proba(x[:4]))
net.load_params(checkpoint=net.callbacks[0])
say("loaded", net.predict_proba(x[:2]))
net.save_params(f_params="net.pt", f_optimizer="optimizer.pt", f_history="history.json")
search = GridSearchCV(NeuralNetClassifier(Net, max_epochs=2, train_split=False, verbose=0), {"lr": [0.01, 0.1],
                      "module__width": [4, 8]}, cv=2, scoring="neg_log_loss")  # fmt: skip
say("search", search.fit(x, y).cv_results_["mean_test_score"])
line = NeuralNetRegressor(Net, module__outputs=1, module__last=False, max_epochs=4, lr=0.05, verbose=0)
say("line", line.fit(x, x[:, :1] * 2).predict(x[:4]), line.history[-1, "train_loss"])
