"""Mix several sources: loaders, batch samplers, and the strategies that choose between them."""

from fkat_data.mixing.batch_sampler import DictBatchSampler
from fkat_data.mixing.dict_dataloader import DictDataLoader
from fkat_data.mixing.strategies import Frequency, RoundRobin, SamplerStrategy, Weighted, token_weights

__all__ = [
    "DictBatchSampler",
    "DictDataLoader",
    "Frequency",
    "RoundRobin",
    "SamplerStrategy",
    "Weighted",
    "token_weights",
]
