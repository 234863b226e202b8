"""Configurations to compose with Hydra, by ``hydra.searchpath: [pkg://fkat_data.configs]`` in yours."""
