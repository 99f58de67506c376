"""`python -m mapmrf` and the command `mapmrf` are the command line."""

from mapmrf.interrupts import guard_process


def main() -> None:
    """Run the command line. Signals are noted before numpy and the like are imported, which must not be broken off."""
    guard_process()
    from mapmrf.cli import main

    main(prog_name="mapmrf")


if __name__ == "__main__":
    main()
