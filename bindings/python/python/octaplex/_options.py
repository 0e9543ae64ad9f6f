"""Checks options before they reach the extension, so that wrong ones raise our own errors."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, Optional

from ._octaplex import Error


def whole(value: Any, what: str, most: int = sys.maxsize) -> int:
    """Returns a whole number from 0 to ``most``."""
    try:
        found = operator.index(value)
    except TypeError:
        raise Error(f"{what} is {shown(value)}: pass a whole number") from None
    if not 0 <= found <= most:
        raise Error(f"{what} is {shown(found)}: pass a number from 0 to {most}")
    return found


def real(value: Any, what: str) -> float:
    """Returns a float."""
    try:
        found = float(value) if not isinstance(value, str) else math.nan
    except (OverflowError, TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise Error(f"{what} is {shown(value)}: pass a number")
    return found


def flag(value: Any, what: str) -> bool:
    """Returns a bool."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise Error(f"{what} is {shown(value)}: pass True or False")


def text(value: Any, what: str) -> str:
    """Returns a string: a spec or a name."""
    if not isinstance(value, str):
        raise Error(f"{what} is {shown(value)}: pass a string")
    return value


def text_or_none(value: Any, what: str) -> Optional[str]:
    """Returns a string or None."""
    return None if value is None else text(value, what)


def whole_or_none(value: Any, what: str) -> Optional[int]:
    """Returns a whole number or None."""
    return None if value is None else whole(value, what)


def real_or_none(value: Any, what: str) -> Optional[float]:
    """Returns a float or None."""
    return None if value is None else real(value, what)


def shown(value: Any) -> str:
    """Returns a value for a message: on one line, and cut if it is long."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else words[:57] + "..."


def size_of(layers: Any, kv_heads: Any, head_dim: Any, capacity: Any) -> tuple[int, int, int, int]:
    """Returns the size of a cache."""
    layers, kv_heads = whole(layers, "layers"), whole(kv_heads, "kv_heads")
    return layers, kv_heads, whole(head_dim, "head_dim"), whole(capacity, "capacity")
