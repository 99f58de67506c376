"""`python -m mapmrf` is the command `mapmrf`."""

from _mapmrf import main

if __name__ == "__main__":
    main()
