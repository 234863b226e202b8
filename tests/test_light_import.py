"""What an import of the package brings along: beside torch, next to nothing."""

import json

PROGRAM = """
import json, sys
import torch

def brought(*names):
    before = set(sys.modules)
    for name in names:
        __import__(name)
    new = set(sys.modules) - before
    tops = {name.partition(".")[0] for name in new} - set(sys.stdlib_module_names)
    return sorted(top for top in tops if "cython" not in top), sorted(name for name in new if name[:9] == "fkat_data")

package = brought("fkat_data")
with_data = brought("fkat_data.datasets", "fkat_data.samplers", "fkat_data.mixing")
print(json.dumps([*package, with_data[0], brought("fkat_data.streaming")[0]]))
"""
#: Modules for which worker processes are started, and a machine without them has no use.
ONLY_FOR_WORKERS = {
    *("fkat_data.loader.worker_starter", "fkat_data.transport.segment", "fkat_data.transport.channel"),
    *("fkat_data.worker.spawn", "fkat_data.worker.process", "fkat_data.worker.ship", "fkat_data.worker.serve"),
    *("fkat_data.worker.template_process", "fkat_data.worker.picks", "fkat_data.device.page_lock"),
}


def test_an_import_brings_along_neither_the_configuration_nor_what_only_some_data_need(run_script):
    package, own, with_data, with_streaming = json.loads(run_script(PROGRAM).stdout)
    assert set(package) <= {"fkat_data", "numpy", "cloudpickle"}
    assert not set(own) & ONLY_FOR_WORKERS
    assert set(with_data) <= {"fkat_data", "numpy"}
    unwanted = {"hydra", "omegaconf", "fsspec", "pandas", "pyarrow", "aiohttp", "s3fs", "PIL", "rich", "typer"}
    assert not set(with_streaming) & unwanted
