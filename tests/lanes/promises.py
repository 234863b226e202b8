"""Which tests hold each promise of docs/reliability.md and README.md, with real processes, sockets and files.

The default lane runs these tests besides the fast ones. A name without brackets stands for all cases of a test.
"""

__all__ = ["PROMISES"]

PROMISES: dict[str, tuple[str, ...]] = {}
