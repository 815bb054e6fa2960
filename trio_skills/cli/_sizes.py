"""Numbers of bytes, as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes that `64MiB` (1,024s), `64MB` (1,000s), `64M` (1,024s) or `65536` mean.

    Raises `ValueError` for anything else, and for what is less than a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size; write 64MiB, 500kB, 1G or a number of bytes")
    number, unit, binary = match.groups()
    decimal = not binary and text.strip().lower().endswith("b")
    size = int(float(number) * (1000 if decimal else 1024) ** _UNITS[unit.lower()])
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte")
    return size


def format_size(size: float) -> str:
    """Return a number of bytes in at most four digits: `512 B`, `1.5 MB` (1,000s)."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
