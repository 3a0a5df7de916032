"""A real Slurm cluster for the tests: one machine, several nodes, started in a second."""

from cluster.cluster import Cluster, missing

__all__ = ["Cluster", "missing"]
