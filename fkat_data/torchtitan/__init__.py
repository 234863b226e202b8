"""Loaders for torchtitan's trainer; torchtitan is not needed to import this."""

from fkat_data.torchtitan.titan_loader import TitanDataLoader

__all__ = ["TitanDataLoader"]
