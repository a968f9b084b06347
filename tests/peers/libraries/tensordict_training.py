"""TensorDicts indexed, stacked, reshaped and saved; modules over their keys; a classifier by functional parameters."""

import torch
from job import numbers, say, start
from tensordict import TensorDict, from_module, tensorclass
from tensordict.nn import InteractionType, ProbabilisticTensorDictModule, TensorDictModule, TensorDictSequential
from tensordict.nn.distributions import NormalParamExtractor
from torch import nn

PACKAGES = ("tensordict",)

data = TensorDict({"x": numbers(8, 6), "nested": {"y": torch.arange(8) % 3}}, batch_size=[8])
say("index", data[2:5]["x"], data["nested", "y"][::2])
both = torch.stack([data, data.apply(lambda value: value * 2)], 0)
say("stack", both.shape, both[1]["x"], torch.cat([data, data], 0).shape, both.reshape(-1)["x"])
parts = data.split(3, 0)
say("split", *(part["x"] for part in parts), data.view(2, 4)["nested", "y"])
data.memmap("kept")
say("saved", TensorDict.load_memmap("kept")["x"])
say("flat", data.flatten_keys(".")["nested.y"], (data["x"] > 0).sum())


@tensorclass
class Sample:
    """An image with its label."""

    image: torch.Tensor
    label: torch.Tensor


samples = Sample(numbers(4, 3, 3), torch.arange(4), batch_size=[4])
say("class", samples[1:3].image, samples.to_tensordict()["label"])

net = start(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)))
module = TensorDictSequential(
    TensorDictModule(net, in_keys=["x"], out_keys=["scores"]),
    TensorDictModule(nn.Softmax(-1), in_keys=["scores"], out_keys=["chances"]),
)
optimizer = torch.optim.Adam(module.parameters(), lr=0.02)
for _ in range(5):
    found = module(data.clone())
    loss = nn.functional.cross_entropy(found["scores"], found["nested", "y"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
say("chances", module(data)["chances"])

weights = from_module(net)
with weights.apply(lambda value: value * 0.5).to_module(net):
    say("functional", net(data["x"]))
say("weights", net(data["x"]), weights.flatten_keys(".").norm()["0.weight"])
torch.save(weights.data.to_dict(), "weights.pt")

actor = TensorDictSequential(
    TensorDictModule(nn.Sequential(start(nn.Linear(6, 4)), NormalParamExtractor()), ["x"], ["loc", "scale"]),
    ProbabilisticTensorDictModule(in_keys=["loc", "scale"], out_keys=["action"],
                                  distribution_class=torch.distributions.Normal,
                                  default_interaction_type=InteractionType.DETERMINISTIC, return_log_prob=True),
)  # fmt: skip
say("action", *(actor(data.clone())[key] for key in ("loc", "scale", "action")))
