"""Options as the extension takes them: what is none of these is an error in our words."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, Optional

from ._octaplex import Error


def whole(value: Any, what: str, most: int = sys.maxsize) -> int:
    """A number that counts something."""
    try:
        found = operator.index(value)
    except TypeError:
        raise Error(f"{what} is {_shown(value)}: pass a whole number") from None
    if not 0 <= found <= most:
        raise Error(f"{what} is {_shown(found)}: pass a number from 0 to {most}")
    return found


def real(value: Any, what: str) -> float:
    """A number that measures something."""
    try:
        found = float(value) if not isinstance(value, str) else math.nan
    except (OverflowError, TypeError, ValueError):
        found = math.nan
    if math.isnan(found):
        raise Error(f"{what} is {_shown(value)}: pass a number")
    return found


def flag(value: Any, what: str) -> bool:
    """True or False."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") and type(value).__module__ == "numpy":
        return bool(value)
    raise Error(f"{what} is {_shown(value)}: pass True or False")


def text(value: Any, what: str) -> str:
    """A spec or a name."""
    if not isinstance(value, str):
        raise Error(f"{what} is {_shown(value)}: pass a string")
    return value


def text_or_none(value: Any, what: str) -> Optional[str]:
    """The same, or None."""
    return None if value is None else text(value, what)


def whole_or_none(value: Any, what: str) -> Optional[int]:
    """The same, or None."""
    return None if value is None else whole(value, what)


def real_or_none(value: Any, what: str) -> Optional[float]:
    """The same, or None."""
    return None if value is None else real(value, what)


def _shown(value: Any) -> str:
    """A value in a message: on one line, and not all of a large one."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 60 else words[:57] + "..."
