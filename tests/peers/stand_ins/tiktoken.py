"""A stand-in for tiktoken, whose vocabularies are downloaded."""


def get_encoding(name):
    """Raise: there is none."""
    raise FileNotFoundError(name)
