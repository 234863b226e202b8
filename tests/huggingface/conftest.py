"""Nothing is downloaded."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny models are slower on several threads, and much slower beside other work."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)
