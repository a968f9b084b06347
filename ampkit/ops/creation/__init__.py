"""Creation ops: tensors from values, ranges, random numbers and other tensors."""
