"""The command `paceline`, and `python -m paceline`, which is the same by the Python that is named.

What the command is made of takes a moment to load, longer where the files are far away. Ctrl-C in that moment ends the
process as it would end any program, and not with a traceback through somebody's import.
"""

import signal

__all__ = ["main"]


def main() -> None:
    """Load the command, and run it."""
    asked = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if asked:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .backends.cli import main as command

    if asked:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


if __name__ == "__main__":
    main()
