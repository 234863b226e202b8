"""Proof that a loader resumes exactly, and the cause where it does not."""
