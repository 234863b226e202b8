# in process
import itertools
from collections import Counter

import torch
from stage import SHARDS, factory

import fkat_data

# Lines of tokens; those of prose are the longest.
LENGTHS = {"prose": range(100, 141), "code": range(20, 61), "tables": range(8, 17)}
data = {name: [torch.ones(length, dtype=torch.int64) for length in lengths] * 16 for name, lengths in LENGTHS.items()}

code_loader = fkat_data.ShardedDataLoader(1, SHARDS, factory, multiprocessing=False)
text_loader = fkat_data.ShardedDataLoader(2, SHARDS, factory, multiprocessing=False)
# after
assert {microbatch["source"] for _, microbatch in zip(range(20), loader, strict=False)} == {"code", "text"}


def shares_of_tokens(mixture):
    counted = Counter()
    for name, tokens in itertools.islice(mixture, 2000):
        counted[name] += int(tokens.sum())
    return {name: round(100 * count / counted.total()) for name, count in counted.items()}


assert mixture.strategy.weights == [1, 4, 1]
for given, expected in ((shares, {"prose": 90, "code": 9, "tables": 1}), (weights, shares)):
    counted = shares_of_tokens(DictDataLoader(sources, Weighted(given, seed=7), key=None, on_exhausted="restart"))
    assert all(abs(counted[name] - share) <= 4 for name, share in expected.items()), counted
assert Counter(itertools.islice(strategy, 1000)).most_common(1)[0][0] == "code"
assert Counter(itertools.islice(strategy, 1000, 2000)).most_common(1)[0][0] == "text"
