"""Tools for use outside a training job: the command line, conversion, simulation, reports, checks of a resume.

Nothing else in the package imports this one. Begin with ``cli``: each command calls what is exported here, and
prints it. Each name is imported on its first use.

```python
from fkat_data.tools import verify_resume

report = verify_resume(make_loader)
assert report.is_exact, report
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkat_data.tools.checkpoint_position import positions_in, read_checkpoint
    from fkat_data.tools.cli import app
    from fkat_data.tools.conversion import convert
    from fkat_data.tools.doctor import examine
    from fkat_data.tools.report import page
    from fkat_data.tools.resume_check import ResumeReport, verify_resume
    from fkat_data.tools.simulate import simulate_dataset
    from fkat_data.tools.traced_run import read_run

__all__ = [
    "ResumeReport",
    "app",
    "convert",
    "examine",
    "page",
    "positions_in",
    "read_checkpoint",
    "read_run",
    "simulate_dataset",
    "verify_resume",
]

_MODULES = {
    "app": "cli",
    "convert": "conversion",
    "examine": "doctor",
    "page": "report",
    "read_run": "traced_run",
    **dict.fromkeys(("ResumeReport", "verify_resume"), "resume_check"),
    **dict.fromkeys(("positions_in", "read_checkpoint"), "checkpoint_position"),
    "simulate_dataset": "simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
