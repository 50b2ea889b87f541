"""Words that are not ours, on their way to the other end of a link.

An error comes from a script, a disk or a library, a refusal names what a rank has sent: such text may be of any
length, and hold what is no text at all, as a file name does that is not UTF-8. A message with it could not be sent, and
who cannot send what it decided is broken (N-24, N-25).
"""

from __future__ import annotations

__all__ = ["LONGEST_TEXT", "is_text", "sayable", "sayable_error"]

LONGEST_TEXT = 1000
"""Characters of words for people, such as an error: what is wrong stands at their front, what to do at their end."""


def sayable(text: str) -> str:
    """The text as every codec can take it: what is no character is a question mark, and of what is too long the middle
    is left out."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT * 2 // 3]} [...] {text[-LONGEST_TEXT // 4 :]}"
    return text if is_text(text) else text.encode("utf-8", "replace").decode("utf-8")


def sayable_error(error: str | None) -> str | None:
    """The same of an error, where there is one."""
    return None if error is None else sayable(error)


def is_text(text: str) -> bool:
    """Whether it has an encoding in UTF-8, which is what travels (N-24)."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
