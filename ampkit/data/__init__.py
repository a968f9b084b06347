"""Data: the handwritten digits, bytes of text, synthetic sets, and the loader that feeds them in batches."""
