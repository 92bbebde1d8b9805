"""Directories: peers by name, in a list or in etcd. docs/directory.md has the rules."""

from __future__ import annotations

import enum
import os
from ctypes import addressof, c_int, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, NamedTuple

from ._abi import (
    DIRECTORY_NO_WAIT,
    CDirectoryEntry,
    CDirectoryInfo,
    CDirectoryOptions,
    library,
)
from ._errors import Error, Status, call, encoded, invalid, nanoseconds, unsigned
from ._peer import Peer
from ._waits import apart

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._engine import Engine


class DirectoryEntry(NamedTuple):
    """What a directory knows of a name. `engine_id` and `incarnation` are None in a `static:` directory."""

    name: str
    address: str
    engine_id: bytes | None
    incarnation: int | None


class ChangeKind(enum.IntEnum):
    """What has become of a name."""

    ADDED = 1
    CHANGED = 2
    REMOVED = 3
    #: More names have changed than are remembered: list them again.
    LIST_ANEW = 4


class DirectoryChange(NamedTuple):
    """A change of a directory. `entry` is None for LIST_ANEW; for REMOVED it is the entry as it was."""

    kind: ChangeKind
    entry: DirectoryEntry | None


class DirectoryInfo(NamedTuple):
    """The state of a directory."""

    is_connected: bool
    #: For how many seconds etcd has not answered; 0 while it does, and before its first answer.
    cut_off: float
    entries: int
    #: Values in etcd that were left out since open: they are no entries, or beyond the bound.
    ignored: int
    names: int
    names_published: int
    sessions: int
    #: Why etcd is not reached, or a name is not published.
    why: str


def _entry(found: CDirectoryEntry) -> DirectoryEntry:
    known = bool(found.has_identity)
    return DirectoryEntry(
        found.name.decode(),
        found.address.decode(),
        bytes(found.engine_id) if known else None,
        found.incarnation if known else None,
    )


class Directory:
    """Peers of an engine, by name. Any thread may use it. A `with` block closes it at its end.

    `url` is "static:name=host:port,...", "static:/file", "static:" (names are addresses), or
    "etcd:http://host:port/prefix". `ttl` is how many whole seconds etcd keeps the names of an engine that it
    does not hear from. `timeout` is how long to wait for etcd's first answer; with `wait=False` the directory
    opens at once and goes on trying. A user, password or file that is not given comes from the FERRY_ETCD_*
    variables.
    """

    # For `__del__`, if the arguments of the constructor are wrong.
    _pointer = 0

    def __init__(
        self,
        engine: Engine,
        url: str,
        *,
        ttl: int = 10,
        timeout: float | None = 5.0,
        wait: bool = True,
        user: str | None = None,
        password: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._pointer = 0
        self._engine = engine
        self._url = url
        if not 1 <= unsigned(ttl, "ttl") <= 3600:
            raise invalid(f"ttl must be 1 to 3600 seconds, not {ttl!r}")
        # The library takes 0 for its default.
        open_ms = min(max(nanoseconds(timeout) // 1_000_000, 1), 2**32 - 1)

        def file(path: str | os.PathLike[str] | None) -> bytes | None:
            return None if path is None else os.fsencode(path)

        options = CDirectoryOptions(
            sizeof(CDirectoryOptions),
            ttl,
            open_ms,
            0 if wait else DIRECTORY_NO_WAIT,
            None if user is None else encoded(user, "user"),
            None if password is None else encoded(password, "password"),
            file(ca_file),
            file(cert_file),
            file(key_file),
        )
        pointer = c_void_p()
        where = encoded(url, "url"), addressof(options), addressof(pointer)
        free = library.ferry_directory_free
        kept = engine, options, pointer
        apart(kept, library.ferry_directory_open, engine._pointer, *where, undo=lambda: free(pointer))
        self._pointer = pointer.value or 0

    def close(self) -> None:
        """Withdraws the names and ends the directory. Peers stay connected."""
        apart(self, library.ferry_directory_close, self._pointer)

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, free: Callable[[int], None] = library.ferry_directory_free) -> None:
        # Only here: a call in progress holds the object.
        pointer, self._pointer = self._pointer, 0
        free(pointer)

    def __reduce__(self) -> Any:
        raise TypeError("a directory belongs to its process and cannot be pickled: open one in each process")

    def __repr__(self) -> str:
        try:
            found = self.info()
        except Error as error:
            return f"<ferry.Directory {self._url}, {error.status_name}>"
        state = "connected" if found.is_connected else "not connected"
        return f"<ferry.Directory {self._url}, {state}, {found.entries} entries, {found.names} names>"

    def register(self, name: str, timeout: float | None = None) -> None:
        """Makes the engine known under a name; returns when etcd has it. The directory keeps it by itself.

        BusyError: another engine has the name. UnreachableError: etcd has not answered within the timeout.
        """
        what = self._pointer, encoded(name, "name"), nanoseconds(timeout)
        apart(self, library.ferry_directory_register, *what)

    def unregister(self, name: str, timeout: float | None = None) -> None:
        """Withdraws a name, and returns when etcd has it no longer."""
        what = self._pointer, encoded(name, "name"), nanoseconds(timeout)
        apart(self, library.ferry_directory_unregister, *what)

    def lookup(self, name: str) -> DirectoryEntry:
        """Returns what the directory knows of a name; never waits. UnreachableError: nobody has it."""
        found = CDirectoryEntry(sizeof(CDirectoryEntry))
        call(library.ferry_directory_lookup, self._pointer, encoded(name, "name"), addressof(found))
        return _entry(found)

    def entries(self, prefix: str = "") -> list[DirectoryEntry]:
        """Lists the entries whose names begin with the prefix, in order of the names; never waits."""
        count = c_size_t()
        capacity = 16
        while True:
            found = (CDirectoryEntry * capacity)()
            call(
                library.ferry_directory_list,
                self._pointer,
                encoded(prefix, "prefix"),
                addressof(found),
                sizeof(CDirectoryEntry),
                capacity,
                addressof(count),
            )
            if count.value <= capacity:
                return [_entry(entry) for entry in found[: count.value]]
            capacity = 2 * count.value

    def connect(self, name: str, timeout: float | None = None) -> Peer:
        """Connects to the incarnation that has the name. Goes on trying while the name is missing, or another
        engine answers; then UnreachableError, TimeoutError or StaleError."""
        peer = c_uint64()
        what = self._pointer, encoded(name, "name"), nanoseconds(timeout), addressof(peer)
        apart((self, peer), library.ferry_directory_connect, *what)
        return Peer(self._engine, peer.value)

    def poll(self) -> DirectoryChange | None:
        """Takes the next change; None if there is none. Never waits."""
        kind = c_uint32()
        found = CDirectoryEntry(sizeof(CDirectoryEntry))
        status = call(library.ferry_directory_poll, self._pointer, addressof(kind), addressof(found))
        if status == Status.PENDING:
            return None
        change = ChangeKind(kind.value)
        return DirectoryChange(change, None if change == ChangeKind.LIST_ANEW else _entry(found))

    def fileno(self) -> int:
        """Returns a descriptor for select, poll or an event loop; it is readable while `poll` has a change.

        ferry owns the descriptor: neither read nor close it.
        """
        fd = c_int()
        call(library.ferry_directory_fd, self._pointer, addressof(fd))
        return fd.value

    @property
    def fd(self) -> int:
        """The descriptor of `fileno`."""
        return self.fileno()

    def info(self) -> DirectoryInfo:
        """Whether etcd answers, and which names are published."""
        found = CDirectoryInfo(sizeof(CDirectoryInfo))
        call(library.ferry_directory_get_info, self._pointer, addressof(found))
        return DirectoryInfo(
            bool(found.is_connected),
            found.cut_off_ms / 1000,
            found.entries,
            found.ignored,
            found.names,
            found.names_published,
            found.sessions,
            found.why.decode(),
        )
