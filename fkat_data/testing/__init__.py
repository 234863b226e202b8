"""What ships for users' own tests: proof that their data resume exactly.

::

    from fkat_data.testing import verify_resume

    report = verify_resume(make_loader)
    assert report.is_exact, report
"""

from fkat_data.testing.digest import digest, first_difference
from fkat_data.testing.verify import ResumeReport, verify_resume

__all__ = ["ResumeReport", "digest", "first_difference", "verify_resume"]
