"""The command `mapmrf`: handlers for signals first, since importing the package alone takes some milliseconds."""

import _signal  # type: ignore[import-not-found]  # the standard module takes some milliseconds to import
import os


def main() -> None:
    """Run the command line."""
    for number, default in ((2, _signal.default_int_handler), (15, 0)):
        if _signal.getsignal(number) == default:
            _signal.signal(number, _leave)
    from mapmrf.run.interrupts import process

    process.guard(_leave)
    from mapmrf.cli import main

    try:
        main(prog_name="mapmrf")
    finally:
        process.leave_after_work()


def _leave(number: int, frame: object) -> None:
    """End the program at once: nothing has been printed or written yet."""
    os.write(2, b"mapmrf: interrupted\n")
    os._exit(128 + number)
