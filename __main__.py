"""`python -m paceline`: the same as the command `paceline`, by the Python that is named."""

from .backends.cli import main

if __name__ == "__main__":
    main()
