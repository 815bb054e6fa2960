"""Text from outside, made safe to show: names may hold newlines, terminal escapes, broken UTF-8."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return `text` with every character that does not print as itself escaped.

    Control characters, bidirectional overrides and line separators become their Python escapes, and
    a byte that was not UTF-8 (a lone surrogate, as `os.fsdecode` makes it) becomes `\xNN`.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def one_line(text: str) -> str:
    """Return the beginning of a program's complaint, safe to show, in one line."""
    return printable(" ".join(text.split())[:500])


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
