"""Convert JSON lines to one dataset, and count its tokens, on a cluster of Dask or Ray.

::

    python convert.py                                  # conversion.yaml lists the settings
    python convert.py engine=ray address=auto inputs='/shared/data/*.jsonl' out=s3://bucket/train

The dataset is the same if workers are killed meanwhile.
"""

import glob
import json
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from fkat_data.configuration import instantiate
from fkat_data.datasets import count_parallel
from fkat_data.streaming import write_parallel


def samples_of(path: str) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            sample = json.loads(line)
            yield {"id": sample["id"], "tokens": np.array(sample["tokens"], np.uint16)}


def lengths_of(path: str) -> list[int]:
    return [len(sample["tokens"]) for sample in samples_of(path)]


@contextmanager
def dask_executor(address: str | None, num_workers: int) -> Generator[Any]:
    from dask.distributed import Client

    local = {"n_workers": num_workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with Client(address) if address else Client(**local) as client:
        yield client.get_executor()


class RayExecutor:
    """Runs calls as tasks of Ray, which runs them again when it loses a worker."""

    def __init__(self) -> None:
        import ray

        self._ray = ray
        self._run = ray.remote(lambda function, *arguments: function(*arguments))

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        task = self._run.remote(fn, *args)
        future = task.future()
        future.add_done_callback(lambda done: done.cancelled() and self._ray.cancel(task))
        return future


@contextmanager
def ray_executor(address: str | None, num_workers: int) -> Generator[RayExecutor]:
    import ray

    with ray.init(address) if address else ray.init(num_cpus=num_workers, include_dashboard=False):
        yield RayExecutor()


if __name__ == "__main__":
    config = OmegaConf.merge(OmegaConf.load(Path(__file__).with_name("conversion.yaml")), OmegaConf.from_cli())
    paths = sorted(glob.glob(config.inputs)) or [config.inputs]
    cluster = {"dask": dask_executor, "ray": ray_executor}[config.engine]
    with cluster(config.address, config.num_workers) as executor:
        make_writer = instantiate(config.make_writer)
        num_samples = write_parallel(make_writer, samples_of, paths, out=config.out, executor=executor)
        lengths = count_parallel(lengths_of, paths, executor=executor)
    print(f"{num_samples} samples with {lengths.sum()} tokens in {config.out}")
