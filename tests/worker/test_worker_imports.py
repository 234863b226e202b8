import sys


def test_a_worker_imports_neither_the_trainers_side_nor_cuda(run_script):
    done = run_script(
        """
import sys, types

# The package's own __init__ imports everything: a worker's modules are judged by what they import themselves.
package = types.ModuleType("fkat_data")
package.__path__ = [sys.argv[1]]
sys.modules["fkat_data"] = package
import fkat_data.worker.process.main
import torch
ours = sorted(name for name in sys.modules if name.startswith("fkat_data."))
print(*ours)
print(torch.cuda.is_initialized())
""",
        str(next(iter(sys.modules["fkat_data"].__path__))),
    )
    modules, cuda = done.stdout.splitlines()
    layers = {name.split(".")[1] for name in modules.split()}
    assert "worker" in layers
    assert not layers & {"engine", "loaders", "device", "integrations", "datasets", "streaming"}
    assert cuda == "False"
