"""A web server that breaks its answers by a script: in front of another server, or with a directory of its own.

with FaultServer(directory, {"a.bin": [fault("status", status=503), fault("reset", after=0.5)]}) as server:
    ...  # GET server.url + "/a.bin": a 503, then a reset half-way, then right answers
    server.count("a.bin")  # requests so far
"""

from proxy.faults import KINDS, Fault, RandomPlan, fault
from proxy.server import FaultServer

__all__ = ["KINDS", "Fault", "FaultServer", "RandomPlan", "fault"]
