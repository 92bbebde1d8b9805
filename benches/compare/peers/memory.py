"""Memory for the measured transfers, and the classes that all engines share."""

import ctypes
import mmap


class Unavailable(Exception):
    """The engine, or the requested path, is missing on this machine. The message says why."""


class OwnMemory:
    """Memory of the caller's own: an anonymous mapping, in huge pages where there are some, as ferry's and
    the raw references' are, so that all engines have the same pages."""

    def __init__(self, bytes):
        self.bytes = bytes
        self.map = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.map.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # huge pages are optional
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def populate(self):
        """Touches the pages before any run."""
        ctypes.memset(self.address, 1, self.bytes)


class ForeignMemory:
    """Memory that the engine allocated."""

    def __init__(self, address, bytes):
        self.address = address
        self.bytes = bytes

    populate = OwnMemory.populate


class Peer:
    """The other end, as an engine names it, and the start of its memory."""

    def __init__(self, handle, address):
        self.handle = handle
        self.address = address
