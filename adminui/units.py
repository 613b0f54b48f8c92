"""Sizes, times and counts in words. Exact: 65536 is 64 KiB, 65537 is 65,537 B."""

_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
_TIMES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size(value: int) -> str:
    """Bytes in the largest unit that leaves no rest."""
    return _exact(value, _SIZES)


def duration(value: int) -> str:
    """Seconds in the largest unit that leaves no rest; 60 s stays 60 s, as people say it."""
    return f"{value} s" if abs(value) <= 60 else _exact(value, _TIMES)


def days(value: int) -> str:
    """Whole days."""
    return f"{value:,} d"


def count(value: int) -> str:
    """A number of things."""
    return f"{value:,}"


def _exact(value: int, units: tuple[tuple[int, str], ...]) -> str:
    amount, name = next((value // size, name) for size, name in units if value % size == 0)
    return f"{amount:,} {name}"
