"""What an import of the package brings along: beside torch, next to nothing. One process answers for all packages."""

import json

PROGRAM = """
import json, signal, sys
import torch, torch.utils.data

def brought(*names):
    before = set(sys.modules)
    for name in names:
        __import__(name)
    new = set(sys.modules) - before
    tops = {name.partition(".")[0] for name in new} - set(sys.stdlib_module_names)
    return sorted(top for top in tops if "cython" not in top), sorted(name for name in new if name[:9] == "fkat_data")

def handlers():
    return [signal.getsignal(number) for number in signal.valid_signals()]

before = handlers()
package = brought("fkat_data")
with_data = brought("fkat_data.datasets", "fkat_data.samplers", "fkat_data.mixing")[0]
with_streaming = brought("fkat_data.streaming", "fkat_data.extensions", "fkat_data.testing.contracts")[0]
import multiprocessing, threading
is_quiet = [
    handlers() == before,
    multiprocessing.get_start_method(allow_none=True) is None,
    threading.active_count() == 1,
    not torch.cuda.is_initialized(),
    not torch.distributed.is_initialized(),
]
from fkat_data import DataLoader
next(iter(DataLoader([1, 2, 3])))
is_quiet.append("psutil" not in sys.modules)
import psutil
print(json.dumps([*package, with_data, with_streaming, [*is_quiet, not psutil.Process().children()]]))
"""
#: Modules for which worker processes are started, and a machine without them has no use.
ONLY_FOR_WORKERS = {
    *("fkat_data.engine.worker_starter", "fkat_data.transport.segment", "fkat_data.transport.channel"),
    *(
        "fkat_data.worker.process.process_client",
        "fkat_data.worker.process.handle",
        "fkat_data.worker.process.ship",
        "fkat_data.worker.process.serve",
    ),
    *("fkat_data.worker.process.forkserver", "fkat_data.worker.process.claim_table", "fkat_data.device.page_lock"),
}
UNWANTED = {
    *("hydra", "omegaconf", "yaml", "rich", "typer", "click"),
    *("fsspec", "aiohttp", "s3fs", "pandas", "pyarrow", "zstandard", "brotli", "cramjam", "xxhash", "PIL"),
    *("accelerate", "transformers", "lightning", "pytest", "psutil"),
}


def test_an_import_brings_along_and_starts_nothing_that_only_some_need(run_script):
    package, own, with_data, with_streaming, is_quiet = json.loads(run_script(PROGRAM).stdout)
    assert set(package) <= {"fkat_data", "numpy", "cloudpickle"}
    assert not set(own) & ONLY_FOR_WORKERS
    assert set(with_data) <= {"fkat_data", "numpy"}
    assert not set(with_streaming) & UNWANTED
    assert is_quiet == [True] * len(is_quiet)
