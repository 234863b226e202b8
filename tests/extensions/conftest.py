import sys
from pathlib import Path

import pytest

# extension_examples can be imported by spawned workers, which search the trainer's sys.path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _registers_nothing_for_long():
    from fkat_data import registry

    before = {kind: dict(named) for kind, named in registry._entries.items()}
    yield
    for kind, named in registry._entries.items():
        named.clear()
        named.update(before.get(kind, {}))
