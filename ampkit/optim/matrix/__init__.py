"""Optimizers whose update of a matrix is of the whole: its orthogonal factor, or the eigenbasis of its moments."""

from .hidden import hidden_matrices
from .muon import Muon, MuonWithAuxAdam
from .soap import SOAP

__all__ = ["SOAP", "Muon", "MuonWithAuxAdam", "hidden_matrices"]
