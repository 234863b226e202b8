"""Tools for use outside a training job: the command line, conversion, simulation, reports, checks of a resume.

Nothing else in the package imports this one. Each name is imported on its first use.

```python
from fkat_data.tools import verify_resume

report = verify_resume(make_loader)
assert report.is_exact, report
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fkat_data.tools.converting.convert import convert
    from fkat_data.tools.resume_check.verify import ResumeReport, verify_resume
    from fkat_data.tools.simulation.simulate import simulate_dataset, simulate_resplit

__all__ = [
    "ResumeReport",
    "convert",
    "simulate_dataset",
    "simulate_resplit",
    "verify_resume",
]

#: name -> the module below this package that defines it
_MODULES = {
    "ResumeReport": "resume_check.verify",
    "convert": "converting.convert",
    "simulate_dataset": "simulation.simulate",
    "simulate_resplit": "simulation.simulate",
    "verify_resume": "resume_check.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
