"""Numbers, sizes, durations and shares as people read them."""

import math


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts, such as ``1 shard`` or ``1,200 microbatches``."""
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun}{ending}"


def readable_bytes(size: float) -> str:
    """Return a size with three digits and a unit, in powers of 1,024."""
    if math.isinf(size):
        return "∞"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 0.9995 * 1024**power:
            return f"{size / 1024**power:.3g} {unit}"
    return f"{size:.0f} B"


def readable_duration(value_s: float) -> str:
    """Return seconds with three digits and a unit; from five minutes on in minutes, from two hours on in hours."""
    if value_s >= 7200:
        return f"{value_s / 3600:,.1f} h"
    if value_s >= 300:
        return f"{value_s / 60:,.1f} min"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value_s >= 0.9995 * factor:
            return f"{value_s / factor:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns" if value_s else "0 s"


def readable_share(share: float) -> str:
    """Return a share from 0 to 1 in percent; with a decimal below a tenth."""
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"
