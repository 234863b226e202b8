"""What joins loaders to other programs: frameworks, clusters, configurations, monitoring.

Faces of users are beside this package: ``fkat_data.lightning``, ``fkat_data.ray`` and others import from here. Nothing is
exported: each module needs a package that not every user has.
"""
