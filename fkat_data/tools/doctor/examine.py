"""Examine everything, in the order in which it is shown."""

import platform
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fkat_data.tools.doctor.configured import configured_findings
from fkat_data.tools.doctor.finding import Finding, Level
from fkat_data.tools.doctor.machine_facts import read_machine
from fkat_data.tools.doctor.machine_findings import machine_findings
from fkat_data.tools.doctor.storage import storage_findings


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


_PACKAGE = "fkat_data"


def installed_findings() -> list[Finding]:
    """Return a finding for Python, for each package that is required, and for each of an extra that is installed."""
    try:
        needed = metadata.requires(_PACKAGE) or []
        pythons = metadata.metadata(_PACKAGE)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return [Finding(_PACKAGE, Level.ADVICE, "runs from a folder and is not installed", "pip install fkat_data")]
    found = [Finding(_PACKAGE, Level.OK, metadata.version(_PACKAGE)), _python(pythons)]
    extras = metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    # The same package may be asked for by several extras.
    by_name: dict[str, Requirement] = {}
    for requirement in map(Requirement, needed):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
            by_name.setdefault(requirement.name, requirement)
    by_name.pop(_PACKAGE, None)  # what its extras have of one another
    for name, requirement in sorted(by_name.items(), key=lambda item: (item[1].marker is not None, item[0])):
        finding = judge_version(name, _version_of(name), requirement.specifier, is_required=requirement.marker is None)
        if finding is not None:
            found.append(finding)
    return found


def judge_version(name: str, version: str | None, wanted: SpecifierSet, *, is_required: bool) -> Finding | None:
    """Return what to say about one package; None for one that is not installed and not required."""
    if version is None:
        return Finding(name, Level.WRONG, "not installed", f"pip install '{name}{wanted}'") if is_required else None
    if wanted.contains(version, prereleases=True):
        return Finding(name, Level.OK, version)
    level = Level.WRONG if is_required else Level.ADVICE
    return Finding(name, level, f"{version}; {wanted} is supported", f"pip install '{name}{wanted}'")


def _python(wanted: str) -> Finding:
    version = platform.python_version()
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding("python", Level.OK, version)
    return Finding("python", Level.WRONG, f"{version}; {wanted} is supported", f"Use Python {wanted}.")


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
