"""`python -m diopi.conformance`: the suite with the flags of the published one."""

import sys

from diopi.conformance.legacy import main

if __name__ == "__main__":
    sys.exit(main())
