"""Check that a loader resumes exactly, and find the cause if it does not.

Open to other packages: ``saved_place``, ``verify``.
"""
