"""The stand-in for gymnasium by its older name."""

from gymnasium import make as make
