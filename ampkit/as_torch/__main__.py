"""`python -m ampkit.as_torch SCRIPT ARGS`, or `-m MODULE ARGS`: run a program for PyTorch on ampkit, as Python does."""

from .run import main

if __name__ == "__main__":
    main()
