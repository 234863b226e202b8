"""Loaders for torchtitan's trainer: endless, closed by the trainer, and one entry of its checkpoints.

torchtitan is not needed to import this.
"""

from fkat_data.integrations.torchtitan import EncodeChat, EncodeText, TitanDataLoader, TitanTextLoader

__all__ = ["EncodeChat", "EncodeText", "TitanDataLoader", "TitanTextLoader"]
