"""`python -m dicore.workers worker|forkserver FD [MODULE...]`: what `dicore.workers.launch` starts."""

import sys

from dicore.workers.process import main

main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
