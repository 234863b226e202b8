"""The loader that users iterate, and the factory that they give it.

Open to other packages: ``engine``, ``identity``, ``recovery``, ``sharded``, ``worker_pool``.
"""
