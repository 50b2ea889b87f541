"""A console of `rich` that ends as everything else ends where nobody reads what is written."""

from __future__ import annotations

from rich.console import Console

__all__ = ["Screen"]


class Screen(Console):
    """`rich` would end the process with 1 where the reader of a pipe has gone; the command says how that ends."""

    def on_broken_pipe(self) -> None:
        """Called while the `BrokenPipeError` is handled: it goes on to `endings`."""
        raise
