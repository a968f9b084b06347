"""8-bit codes of numbers, and products of codes whose sums are exact: what inference in int8 is made of."""
