"""torch's DataLoader, its arguments and behaviour, over this library's engine; its public name is in ``fkat_data``.

``data_loader`` is the face. It makes one of the plans here: of batches of indices (``numbered_plan``, ``drawn_plan``) or of
strands, which are copies of an iterable dataset (``strand_plan``); ``epochs_of_ranks`` and ``rank_share`` deal what is left
of an epoch out to other ranks. ``states`` reads and writes its states. Begin with ``data_loader.DataLoader``.
"""
