"""Files as memory: what is registered, moved and refused."""

from __future__ import annotations

import errno
import os
import tempfile

import pytest
from conftest import Pair, positions

import ferry


def test_a_file_is_read_and_written_as_memory(pair: Pair) -> None:
    with tempfile.TemporaryFile() as file:
        region = pair.target.register_file(file, 100, 65536, name="file")
        pair.peer.probe(10)
        shown = pair.peer.region("file")
        assert (shown.address, shown.length, shown.kind) == (region.address, 65536, ferry.MemoryKind.FILE)
        pair.local.view[:8192] = positions(8192, 1)
        request = [(pair.local.address, region.address + 4096, 8192, region.handle)]
        pair.peer.write(request, durable=True)
        assert os.pread(file.fileno(), 8192, 4196) == positions(8192, 1)
        pair.local.view[:8192] = bytes(8192)
        pair.peer.read(request)
        assert bytes(pair.local.view[:8192]) == positions(8192, 1)
        with pytest.raises(ferry.Error) as beyond:
            pair.peer.read([(pair.local.address, region.address + 40000, 8192, region.handle)])
        assert (beyond.value.status, beyond.value.os_error) == (ferry.Status.SYSTEM, errno.ENODATA)
        region.close()
        region.close()


def test_a_local_file_is_the_source_of_a_write(pair: Pair) -> None:
    with tempfile.TemporaryFile() as file:
        os.pwrite(file.fileno(), positions(4096, 2), 0)
        with pair.source.register_file(file.fileno(), 0, 4096) as region:
            pair.peer.write([(region.address, pair.inbox.address, 4096, pair.inbox.handle)])
        assert bytes(pair.remote.view[:4096]) == positions(4096, 2)


def test_access_is_what_the_file_is_open_for(pair: Pair) -> None:
    with tempfile.NamedTemporaryFile() as file, open(file.name, "rb") as reading:
        with pair.source.register_file(reading, 0, 64):
            pass
        with pytest.raises(ferry.Error) as refused:
            pair.source.register_file(reading, 0, 64, ferry.Access.REMOTE_WRITE)
        assert (refused.value.status, refused.value.os_error) == (ferry.Status.ACCESS, errno.EBADF)


def test_what_is_no_file_is_refused(pair: Pair) -> None:
    ends = os.pipe()
    try:
        with pytest.raises(ferry.InvalidError, match="a pipe"):
            pair.source.register_file(ends[0], 0, 64, "REMOTE_READ")
        with pytest.raises(ferry.InvalidError, match="offset"):
            pair.source.register_file(ends[0], -1, 64, "REMOTE_READ")
    finally:
        for end in ends:
            os.close(end)
