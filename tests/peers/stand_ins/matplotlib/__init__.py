"""A stand-in for matplotlib that draws nothing."""


def use(backend):
    """Choose a backend."""
