"""Keeps freed memory in the process, so that each step's outputs are not page-faulted anew.

glibc gives every block above 128 KiB back to the system when it is freed; a decode step frees and asks
again for dozens of them, and the kernel zeroes their pages each time. Measured on the 135 M model: see
docs/lab-notes.md.
"""

import ctypes
import platform

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to serve large blocks from its heap and not to trim it; whether it listened (False elsewhere)."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
