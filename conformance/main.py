"""`python main.py --mode run_test ...`: the same as `python -m diopi.conformance`."""

import sys

from diopi.conformance.legacy import main

if __name__ == "__main__":
    sys.exit(main())
