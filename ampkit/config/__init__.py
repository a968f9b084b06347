"""Recipes: what a training run is, as one TOML file, checked as a whole before anything starts."""

from .field_types import Section
from .read import load
from .recipe import Recipe
from .resume_rules import continued, saved_recipe
from .write import dump

__all__ = ["Recipe", "Section", "continued", "dump", "load", "saved_recipe"]
