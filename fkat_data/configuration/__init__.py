"""Hydra integration: resolvers for ranks, and errors that name the configuration key.

```python
from fkat_data.configuration import instantiate, register_resolvers

register_resolvers()                    # ${fkat.dp_rank:} and the others
loader = instantiate(config.loader)
```
"""

from fkat_data.configuration.instantiation import instantiate
from fkat_data.configuration.resolvers import rank, register_resolvers, world_size

__all__ = ["instantiate", "rank", "register_resolvers", "world_size"]
