"""What 16 bits do to a model: where a NaN came from, what each layer loses, and what runs in which dtype."""
