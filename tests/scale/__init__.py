"""Scaling on paper: the collectives of a step of one rank among many, their time on a cluster, and memory."""
