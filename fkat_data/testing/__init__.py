"""Helpers for users' own tests: digests of microbatches, and the first difference between two of them.

``fkat_data.tools.verify_resume`` checks that a loader resumes exactly.

Open to other packages: ``content_digest``.
"""

from fkat_data.testing.content_digest import digest, first_difference

__all__ = ["digest", "first_difference"]
