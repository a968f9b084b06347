"""The main job of libraries that are written for PyTorch: one program each, run on ampkit and on PyTorch."""
