"""Check that a loader resumes exactly, and find the cause if it does not."""
