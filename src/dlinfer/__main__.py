"""`python -m dlinfer` is the program `dlinfer`."""

from dlinfer.cli import main

if __name__ == "__main__":
    main()
