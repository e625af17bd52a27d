"""`python -m dicp` is the program `dicp`."""

from dicp.cli import main

if __name__ == "__main__":
    main()
