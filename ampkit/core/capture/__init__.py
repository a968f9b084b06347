"""Compiled steps: a step captured as a CUDA graph, and the guards that tell when it has to be captured anew."""
