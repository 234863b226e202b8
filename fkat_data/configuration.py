"""Hydra integration: resolvers for ranks, and errors that name the configuration key.

```python
from fkat_data.configuration import instantiate, register_resolvers

register_resolvers()                    # ${fkat.dp_rank:} and the others
loader = instantiate(config.loader)
```

The resolvers ask torch.distributed and the environment variables of torchrun:

=================================  ==================================================================
``${fkat.rank:}``                  the rank; 0 without torchrun
``${fkat.world_size:}``            the number of ranks; 1 without torchrun
``${fkat.local_rank:}``            ``LOCAL_RANK``, the rank on this machine; 0 without torchrun
``${fkat.dp_rank:n}``              the data-parallel rank if *n* ranks share one model; n defaults to 1
``${fkat.dp_size:n}``              the number of data-parallel ranks
=================================  ==================================================================

Consecutive ranks share one model: with ``n`` = 2, ranks 0 and 1 are data-parallel rank 0 and read the same data.
"""

from fkat_data.integrations.hydra import instantiate, rank, register_resolvers, world_size

__all__ = ["instantiate", "rank", "register_resolvers", "world_size"]
