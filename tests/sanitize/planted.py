"""Makes a planted mistake (planted.c) in an interpreter that uses the package ferry.

Arguments: the library with the mistakes, and the name of one. The sanitizer must report the mistake, or the suite in
Python would run without it (scripts/sanitize.sh).
"""

import ctypes
import sys

from ferry import _abi

print("libferry", _abi.library.ferry_version().decode())
getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])()
