"""The real SkyPilot for the tests: its own Slurm cloud on a real Slurm cluster of this machine."""

from skypilot.skypilot import SkyPilot, missing

__all__ = ["SkyPilot", "missing"]
