"""torch's DataLoader, its arguments and behaviour, over this library's engine; its public name is in ``fkat_data``."""
