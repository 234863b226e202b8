"""Exact resume where accelerate, or the ``Trainer`` of transformers, drives the loop."""

from fkat_data.integrations.huggingface.preparation import prepare
from fkat_data.integrations.huggingface.trainer_mixin import ExactResumeMixin, last_checkpoint

__all__ = ["ExactResumeMixin", "last_checkpoint", "prepare"]
