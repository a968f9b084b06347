"""Shape ops: views, concatenation, padding and rearrangement of elements."""
