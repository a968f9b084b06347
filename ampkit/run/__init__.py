"""A training run: built from a recipe, stepped, measured, checkpointed, resumed."""
