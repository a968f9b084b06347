"""Ranks that are connected by TCP, on machines without MPI: how they find each other, and their transport."""
