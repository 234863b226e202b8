"""Where files are: paths and URLs, folders, patterns, and the errors of stores, for shard samplers, files and streams alike.

Begin with ``location.resolved``. Nothing is exported: a trainer without stores must not import what they need.
"""
