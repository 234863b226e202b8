"""What ships for users' own tests: digests of microbatches, and the first difference between two of them.

Proof that a loader resumes exactly is ``fkat_data.tools.verify_resume``.
"""

from fkat_data.testing.content_digest import digest, first_difference

__all__ = ["digest", "first_difference"]
