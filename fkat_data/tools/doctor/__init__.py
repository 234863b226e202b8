"""Examine a machine, its installed packages and a configuration, before a run does.

``machine_facts`` reads the machine; ``findings`` judges what it read, and knows no machine.
"""
