"""`python -m mapmrf` is the command line."""

from mapmrf.cli import main

if __name__ == "__main__":
    main(prog_name="mapmrf")
