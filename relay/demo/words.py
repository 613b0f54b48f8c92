"""What the demo says when it fails, and numbers as a person reads them."""

KIB, MIB = 2**10, 2**20


class DemoFailed(Exception):  # noqa: N818 - what Django prints before the text
    """Why the demo did not succeed, in a line for the operator."""


class NoRelay(DemoFailed):
    """Nothing answers at the address."""


def counted(number: int, noun: str) -> str:
    """`1 part`, `1,366 parts`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def in_units(size: int) -> str:
    """A number of bytes as a person reads it: `512 bytes`, `7.4 KiB`, `48 KiB`."""
    if size < KIB:
        return counted(size, "byte")
    number, unit = (size / KIB, "KiB") if size < MIB else (size / MIB, "MiB")
    return f"{number:.1f}".removesuffix(".0") + f" {unit}"
