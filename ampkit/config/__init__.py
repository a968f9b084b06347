"""Recipes: what a training run is, as one TOML file, checked as a whole before anything starts."""

from .changes import continued
from .reading import load
from .recipe import Recipe
from .writing import dump

__all__ = ["Recipe", "continued", "dump", "load"]
