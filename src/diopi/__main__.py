"""`python -m diopi` is the program `diopi`."""

from diopi.cli import main

if __name__ == "__main__":
    main()
