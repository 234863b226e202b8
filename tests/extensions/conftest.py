import pytest


@pytest.fixture(autouse=True)
def _registers_nothing_for_long():
    from fkat_data.runtime import registry

    before = {kind: dict(named) for kind, named in registry._entries.items()}
    yield
    for kind, named in registry._entries.items():
        named.clear()
        named.update(before.get(kind, {}))
