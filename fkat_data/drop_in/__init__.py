"""torch's DataLoader, its arguments and behaviour, over this library's engine; its public name is in ``fkat_data``.

Open to other packages: ``data_loader``, ``dataset_plan``, ``drawn_plan``, ``strand``, ``strand_plan``.
"""
