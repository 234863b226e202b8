import logging

import pytest

from fkat_data import DataLoader

BUSY = {"delivered": 10, "produced": 10, "elapsed_s": 10.0, "waited_s": 9.0, "num_cpus": 16}


@pytest.mark.parametrize(
    ("numbers", "advice"),
    [
        ({"produce_s": 9.0}, "set num_workers=1 or more"),
        ({"produce_s": 9.0, "num_workers": 1}, "raise num_workers from 1 to 9"),
        ({"produce_s": 18.0, "num_workers": 2, "num_workers_per_shard": 2}, "raise num_workers from 2 to 16"),
        ({"produce_s": 18.0, "num_workers": 4, "num_workers_per_shard": 1}, "raise num_workers from 4 to 16"),
        ({"produce_s": 1.0, "idle_s": 9.0, "num_workers": 1}, "let epochs follow one another sooner"),
        ({"produce_s": 1.0, "blocked_s": 9.0, "num_workers": 1}, "raise prefetch_factor (None"),
        ({"produce_s": 9.0, "num_workers": 1, "waited_behind_s": 9.0}, "raise prefetch_factor or memory_limit_bytes"),
    ],
)
def test_the_verdict_names_arguments_of_the_dataloader(numbers, advice):
    statistics = type(DataLoader(range(9)).statistics())(**BUSY, **numbers)
    assert advice in statistics.verdict.advice
    assert statistics.verdict.text.endswith(statistics.verdict.advice)
    for other in ("shard", "num_microbatch_prefetches", "multiprocessing"):
        assert other not in statistics.verdict.text


def test_the_log_names_arguments_of_the_dataloader(caplog):
    with caplog.at_level(logging.INFO), DataLoader(range(9), batch_size=3) as loader:
        list(loader)
    assert "set num_workers=1 or more" in caplog.text
