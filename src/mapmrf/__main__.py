"""`python -m mapmrf` and the command `mapmrf` are the command line."""

from mapmrf.interrupts import guard_process, leave_settled


def main() -> None:
    """Run the command line. Signals are taken over before numpy and the like are imported, which takes its time."""
    guard_process()
    from mapmrf.cli import main

    try:
        main(prog_name="mapmrf")
    finally:
        leave_settled()


if __name__ == "__main__":
    main()
