"""From a saved state to sample ids: the samples that a rank reads next, for any number of ranks. Internal.

Open to other packages: ``epochs``, ``rank_batches``, ``resume_point``, ``skips``, ``torch_iteration``,
``weight_schedule``, ``world``.
"""
