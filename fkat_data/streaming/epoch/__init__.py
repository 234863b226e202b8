"""From a saved state to sample ids: the samples that a rank reads next, for any number of ranks. Internal.

Open to other packages: ``epoch_state``, ``epochs``, ``rank_batches``, ``resume_point``, ``skips``,
``weight_schedule``, ``world``.
"""
