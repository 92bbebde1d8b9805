"""ferry moves bytes between the memories of processes and machines.

Open an Engine, register or allocate memory, connect to a peer, and WRITE or READ lists of requests. The
contracts (who owns memory when, what a result promises) are those of the C library: docs/contracts.md.
"""

from ._abi import Stats
from ._devices import StartAfter
from ._directory import ChangeKind, Directory, DirectoryChange, DirectoryEntry, DirectoryInfo
from ._engine import Engine, Setting, settings, version
from ._errors import (
    AccessError,
    BusyError,
    CallerError,
    CancelledError,
    ClosedError,
    CorruptError,
    EngineError,
    Error,
    InvalidError,
    LimitError,
    NoMemoryError,
    NotFerryError,
    NotRegisteredError,
    OverlapError,
    PanicError,
    PartialError,
    PeerError,
    PeerLostError,
    PendingError,
    RefusedError,
    StaleError,
    Status,
    SystemError,
    TimeoutError,
    TransferError,
    UnavailableError,
    UnreachableError,
    UnsupportedError,
    VersionError,
)
from ._memory import Memory, Region
from ._numbers import Transport
from ._peer import Path, Peer, PeerInfo, PeerState, RemoteRegion
from ._queue import Event, EventKind, Queue
from ._requests import REQUEST_DTYPE, Blocks, Options, Requests, SubmitOptions
from ._results import (
    Access,
    Fence,
    MemoryKind,
    NotificationState,
    Progress,
    RequestResult,
    Result,
    State,
)
from ._transfer import Transfer
from ._uniform import LayerBlocks, UniformBlocks

__version__ = version()

__all__ = [
    "Access",
    "AccessError",
    "Blocks",
    "BusyError",
    "CallerError",
    "CancelledError",
    "ChangeKind",
    "ClosedError",
    "CorruptError",
    "Directory",
    "DirectoryChange",
    "DirectoryEntry",
    "DirectoryInfo",
    "Engine",
    "EngineError",
    "Error",
    "Event",
    "EventKind",
    "Fence",
    "InvalidError",
    "LayerBlocks",
    "LimitError",
    "Memory",
    "MemoryKind",
    "NoMemoryError",
    "NotFerryError",
    "NotRegisteredError",
    "NotificationState",
    "Options",
    "OverlapError",
    "PanicError",
    "PartialError",
    "Path",
    "Peer",
    "PeerError",
    "PeerInfo",
    "PeerLostError",
    "PeerState",
    "PendingError",
    "Progress",
    "Queue",
    "REQUEST_DTYPE",
    "RefusedError",
    "Region",
    "RemoteRegion",
    "RequestResult",
    "Requests",
    "Result",
    "Setting",
    "StaleError",
    "StartAfter",
    "State",
    "Stats",
    "Status",
    "SubmitOptions",
    "SystemError",
    "TimeoutError",
    "Transfer",
    "TransferError",
    "Transport",
    "UnavailableError",
    "UniformBlocks",
    "UnreachableError",
    "UnsupportedError",
    "VersionError",
    "settings",
    "version",
]

# Classes and exceptions print under the name by which programs know them: ferry.BusyError, not
# ferry._errors.BusyError.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
del _name
