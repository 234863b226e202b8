"""torch's DataLoader, its arguments and behaviour, over this library's loader; its public name is in ``fkat_data``.

Open to other packages: ``own_terms``.
"""
