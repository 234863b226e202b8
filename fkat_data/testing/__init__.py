"""Helpers for users' own tests: digests of microbatches, and the first difference between two of them.

``fkat_data.tools.verify_resume`` checks that a loader resumes exactly.

``fkat_data.testing.contracts`` has tests for stores, formats, shuffles, movers and states of your own.
"""

from fkat_data.testing.content_digest import digest, first_difference

__all__ = ["digest", "first_difference"]
