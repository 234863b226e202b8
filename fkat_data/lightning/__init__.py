"""Lightning: exact resume, data modules from configurations, and statistics in the logger.

Works with ``lightning`` and with ``pytorch_lightning``: objects get the base classes of the one that is imported when
they are made.

```python
from fkat_data.lightning import ExactResume

trainer = Trainer(callbacks=[ExactResume()])
```

Raises:
    ImportError: Neither package is installed.
"""

from fkat_data.integrations.lightning.data_module import DataModule
from fkat_data.integrations.lightning.exact_resume import ExactResume
from fkat_data.integrations.lightning.framework import check_installed
from fkat_data.integrations.lightning.statistics_callback import StatisticsCallback

__all__ = ["DataModule", "ExactResume", "StatisticsCallback"]

check_installed()
