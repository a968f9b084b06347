"""Indexing ops: subscripts, gather, scatter and unique."""
