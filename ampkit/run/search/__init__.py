"""Searches over a recipe: the fastest policy, and the formats that its layers survive, each verified by training."""
