"""Exact resume where accelerate or transformers drives the loop: behind ``fkat_data.huggingface``."""
