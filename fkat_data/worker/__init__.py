"""What runs where the data is made: a process of its own, or the caller's own thread.

Open to other packages: ``batches``, ``count``, ``current``, ``fetch``, ``index_batches``, ``inline``, ``items``,
``messages``, ``picks``, ``produce``, ``settings``, ``ship``, ``spawn``, ``template_process``.
"""
