"""GCN, GAT and SAGE convolutions on a random graph, 5 steps of Adam each."""

import numpy as np
import torch
from job import DTYPE, numbers, say, start
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

PACKAGES = ("torch_geometric",)
PRECISIONS = ("float32", "bfloat16")

random = np.random.default_rng(0)
edges = torch.from_numpy(random.integers(0, 20, (2, 60)))
graph = Data(x=numbers(20, 6).to(DTYPE), edge_index=edges, y=torch.from_numpy(random.integers(0, 3, 20)))


class Net(nn.Module):
    """Two convolutions of a kind."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.second = kind(6, 16), kind(16, 3)

    def forward(self, x, edges):
        """Scores of the nodes."""
        return self.second(self.first(x, edges).relu(), edges)


for kind in (GCNConv, GATConv, SAGEConv):
    model = start(Net(kind)).to(DTYPE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(graph.x, graph.edge_index).float(), graph.y)
        loss.backward()
        optimizer.step()
        say(f"{kind.__name__}_loss", loss)
    pooled = global_mean_pool(model(graph.x, graph.edge_index), torch.arange(20) // 10)
    say(f"{kind.__name__}_pooled", pooled)
