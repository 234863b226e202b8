import fkat_data


def test_all_is_sorted_and_complete():
    assert fkat_data.__all__ == sorted(fkat_data.__all__)
    assert len(fkat_data.__all__) == len(set(fkat_data.__all__))
    for name in fkat_data.__all__:
        assert hasattr(fkat_data, name)


def test_the_documented_names_are_there():
    assert {
        "DataLoaderFactory",
        "DistributedDataParallelShardSampler",
        "FsShardSampler",
        "ShardSampler",
        "ShardedDataLoader",
        "ShuffledShardSampler",
    } <= set(fkat_data.__all__)


def test_importing_the_package_imports_nothing_heavy_besides_torch(run_script):
    done = run_script(
        """
import sys
import torch, torch.utils.data
before = set(sys.modules)
import fkat_data
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
print(torch.cuda.is_initialized(), torch.distributed.is_initialized())
"""
    )
    modules, initialised = done.stdout.splitlines()
    assert "fkat_data" in modules.split()
    assert not {
        "hydra",
        "omegaconf",
        "fsspec",
        "pyarrow",
        "pandas",
        "aiohttp",
        "yaml",
        "accelerate",
        "transformers",
    } & set(modules.split())
    assert initialised == "False False"


def test_importing_the_package_starts_no_process_and_sets_no_start_method(run_script):
    done = run_script(
        """
import signal
before = [signal.getsignal(number) for number in signal.valid_signals()]
import multiprocessing, threading
import fkat_data, psutil
print(multiprocessing.get_start_method(allow_none=True), threading.active_count(), psutil.Process().children())
print(before == [signal.getsignal(number) for number in signal.valid_signals()])
"""
    )
    assert done.stdout == "None 1 []\nTrue\n"
