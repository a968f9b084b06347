"""Parts of DataLoader: its checks, iterators and workers."""
