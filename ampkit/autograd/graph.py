"""PyTorch's address of what reads a graph and its gradients: nodes, their edges and hooks."""

from ..core.autograd.gradient_edge import GradientEdge, get_gradient_edge
from ..core.autograd.node import Node

__all__ = ["GradientEdge", "Node", "get_gradient_edge"]
