"""oneDNN through ctypes: the library, its primitives, and one file per kind of primitive."""
