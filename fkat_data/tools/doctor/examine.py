"""Examine everything, in the order in which it is shown."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fkat_data.tools.doctor.configured import configured_findings
from fkat_data.tools.doctor.finding import Finding
from fkat_data.tools.doctor.installed import installed_findings
from fkat_data.tools.doctor.machine_facts import read_machine
from fkat_data.tools.doctor.machine_findings import machine_findings
from fkat_data.tools.doctor.storage import storage_findings

__all__ = ["examine"]


def examine(make_loader: Callable[[], Any] | None = None, directories: Iterable[Path] = ()) -> dict[str, list[Finding]]:
    """Return findings by the part of the examination: versions, machine, and what was asked for.

    Args:
        make_loader: Makes a loader to look at; None: only the machine is examined.
        directories: Places for a cache to look at.
    """
    facts = read_machine()
    found = {"versions": installed_findings(), "machine": machine_findings(facts)}
    places = [finding for directory in directories for finding in storage_findings(directory)]
    if places:
        found["storage"] = places
    if make_loader is not None:
        found["configuration"] = configured_findings(make_loader, facts.num_usable_cores)
    return found
