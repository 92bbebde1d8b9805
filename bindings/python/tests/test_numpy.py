"""Arrays of numpy go to the library by pointer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conftest import LENGTH, Pair, positions

import ferry
from ferry import _requests

np: Any = pytest.importorskip("numpy")


def structured(pair: Pair, count: int, step: int) -> Any:
    """Requests for every second piece of the memory."""
    found = np.zeros(count, dtype=ferry.REQUEST_DTYPE)
    found["local"] = pair.local.address + 2 * step * np.arange(count, dtype="u8")
    found["remote"] = pair.inbox.address + 2 * step * np.arange(count, dtype="u8")
    found["length"] = step
    found["remote_region"] = pair.inbox.handle
    return found


def check_pieces(pair: Pair, count: int, step: int, seed: int) -> None:
    wanted = np.frombuffer(positions(LENGTH, seed), dtype="u1").reshape(-1, step)
    found = np.frombuffer(pair.remote.view, dtype="u1").reshape(-1, step)
    assert (found[: 2 * count : 2] == wanted[: 2 * count : 2]).all()
    assert not found[1::2].any()


def test_a_structured_array_is_used_where_it_is(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 1)
    requests = structured(pair, 128, 256)
    lent = _requests.requests_of(requests)
    assert lent._address == requests.ctypes.data
    _requests.give_back(lent)
    assert pair.peer.write(requests).requests_in == 128
    check_pieces(pair, 128, 256, 1)


def test_rows_of_four(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 2)
    rows = structured(pair, 16, 256).view("u8").reshape(-1, 4)
    transfer = pair.peer.submit_write(rows)
    transfer.wait(10)
    check_pieces(pair, 16, 256, 2)


def test_columns(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 3)
    wanted = structured(pair, 128, 256)
    columns = ferry.Requests.from_columns(
        wanted["local"].copy(), wanted["remote"].astype("i8"), 256, pair.inbox.handle
    )
    assert columns._words.tobytes() == wanted.tobytes()
    pair.peer.write(columns)
    check_pieces(pair, 128, 256, 3)


def test_arrays_of_another_layout_are_refused(pair: Pair) -> None:
    addresses = np.zeros(4, dtype="u8")
    with pytest.raises(ferry.InvalidError, match="different lengths.*'local': 4, 'remote': 3"):
        ferry.Requests.from_columns(addresses, addresses[:3].copy(), 8)
    with pytest.raises(ferry.InvalidError, match="remote must be .* 64 bits"):
        ferry.Requests.from_columns(addresses, addresses.astype("f8"), 8)
    with pytest.raises(ferry.InvalidError, match="local must be .*strides"):
        ferry.Requests.from_columns(addresses[::2], addresses[:2].copy(), 8)
    swapped = np.zeros(4, dtype=[ferry.REQUEST_DTYPE[place] for place in (1, 0, 2, 3)])
    floats = np.zeros(4, dtype=[(name, "f8") for name, _ in ferry.REQUEST_DTYPE])
    turned = np.zeros(4, dtype=[(name, ">u8") for name, _ in ferry.REQUEST_DTYPE])
    for other in (
        swapped,
        floats,
        turned,
        addresses,
        addresses.reshape(-1, 2),
        np.zeros((4, 4), dtype="f8"),
        bytes(32),
    ):
        with pytest.raises(ferry.InvalidError, match="REQUEST_DTYPE"):
            pair.peer.write(other)
    with pytest.raises(ferry.InvalidError, match="requests: .*contiguous"):
        pair.peer.write(structured(pair, 4, 256)[::2])


@pytest.mark.parametrize("kind", ["i4", "i8"])
def test_block_ids_are_used_where_they_are(pair: Pair, kind: str) -> None:
    pair.local.view[:] = positions(LENGTH, 4)
    order = np.random.default_rng(7).permutation(256)
    local_ids, remote_ids = np.arange(256, dtype=kind), order.astype(kind)
    base = np.array([pair.local.address], dtype="u8")
    blocks = ferry.Blocks(
        local_base=base,
        remote_base=[pair.inbox.address],
        local_stride=[256],
        remote_stride=[256],
        block_bytes=[256],
        local_blocks=local_ids,
        remote_blocks=remote_ids,
    )
    assert blocks._c.local_blocks == local_ids.ctypes.data
    assert blocks._c.local_base == base.ctypes.data
    pair.peer.submit_write_blocks(blocks).wait(10)
    wanted = np.frombuffer(positions(LENGTH, 4), dtype="u1").reshape(-1, 256)
    found = np.frombuffer(pair.remote.view, dtype="u1").reshape(-1, 256)
    assert (found[order] == wanted).all()


def test_bad_blocks_are_named(pair: Pair) -> None:
    layer: dict[str, Any] = dict(
        local_base=[1], remote_base=[1], local_stride=[8], remote_stride=[8], block_bytes=[8]
    )
    ids = np.zeros(4, dtype="i4")
    with pytest.raises(ferry.InvalidError, match="'remote_base': 2"):
        ferry.Blocks(**{**layer, "remote_base": [1, 2]}, local_blocks=ids, remote_blocks=ids)
    with pytest.raises(ferry.InvalidError, match="local_blocks must be .* 32 or 64 bits"):
        ferry.Blocks(**layer, local_blocks=ids.astype("i2"), remote_blocks=ids)
    with pytest.raises(ferry.InvalidError, match="4 ids of 4 bytes, 4 of 8"):
        ferry.Blocks(**layer, local_blocks=ids, remote_blocks=ids.astype("i8"))
    with pytest.raises(ferry.InvalidError, match="remote_blocks"):
        ferry.Blocks(**layer, local_blocks=ids, remote_blocks=["a", "b"])  # type: ignore[list-item]


def test_no_work_for_each_item(pair: Pair) -> None:
    """A hundred times as many ids take far less than a hundred times as long to submit."""
    layer: dict[str, Any] = dict(
        local_base=[1], remote_base=[1], local_stride=[8], remote_stride=[8], block_bytes=[8]
    )

    def quickest(count: int) -> float:
        ids = np.arange(count)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            ferry.Blocks(**layer, local_blocks=ids, remote_blocks=ids)
            times.append(time.perf_counter() - started)
        return min(times)

    assert quickest(1_000_000) < 20 * quickest(10_000)
