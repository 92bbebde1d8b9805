"""Layouts of KV caches: arrangements, export and load, and errors that name what is wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import ferry
from ferry import kv
from ferry._abi import library

GROUP = kv.Group(block_tokens=16)
LAYER: dict[str, Any] = {"heads": 4, "elements": 8, "element_bytes": 2, "blocks": 10, "address": 1 << 20}
LAYER["arrangement"] = kv.BLOCK_PAIR_HEAD_TOKEN


def layout(of: kv.Group = GROUP, **changes: Any) -> kv.Layout:
    of_layout: dict[str, Any] = {
        name: changes.pop(name)
        for name in ("model", "revision", "cache", "rope", "tp", "pp", "pcp", "dcp_size", "turn_tokens")
        if name in changes
    }
    layer = kv.Layer(**{"name": "a", **LAYER, **changes})
    return kv.Layout(**{"model": "m", "groups": [of], "layers": [layer], **of_layout})


def extents(arrangement: kv.Arrangement, tokens: int = 16, heads: int = 4) -> dict[str, int]:
    """The bytes from one item to the next in each dimension, from the innermost outwards by the name."""
    sizes = {"BLOCK": 10, "PAIR": 2, "TOKEN": tokens, "HEAD": heads}
    found, at = {"ELEMENT": 2}, 2 * 8
    for word in reversed(arrangement.name.split("_")):
        found[word] = at
        at *= sizes[word]
    return found


@pytest.mark.parametrize("arrangement", list(kv.Arrangement))
@pytest.mark.parametrize("tp", [(0, 1), (1, 2), (5, 8)])
def test_an_arrangement_is_the_strides_that_its_name_says(
    arrangement: kv.Arrangement, tp: tuple[int, int]
) -> None:
    by_name = extents(arrangement, heads=max(4 // tp[1], 1))
    strides = tuple(by_name[word] for word in ("BLOCK", "PAIR", "HEAD", "TOKEN", "ELEMENT"))
    arranged = layout(arrangement=arrangement, tp=tp)
    assert arranged.export() == layout(strides=strides, tp=tp).export()
    others = [layout(arrangement=other, tp=tp).export() for other in kv.Arrangement if other != arrangement]
    assert tp[1] > 2 or arranged.export() not in others


def test_strides_with_padding() -> None:
    """Bytes between the elements, the tokens and the blocks are left out."""
    padded = layout(strides=(5000, 2500, 600, 36, 4))
    assert padded.export() != layout().export()
    assert kv.Layout.load(padded.export()).export() == padded.export()


def test_export_and_load() -> None:
    made = layout(model="modèle", revision="r", cache="fp8", rope="yarn", tp=(3, 4), pp=(0, 2), dcp_size=1)
    again = kv.Layout.load(made.export())
    assert again.export() == made.export()
    assert (again.rank, again.ranks, again.group_count, again.layer_count) == (3, 8, 1, 1)
    assert repr(again) == "<ferry.kv.Layout of rank 3 of 8, 1 layers>"
    assert pickle.loads(pickle.dumps(made)).export() == made.export()
    assert kv.Layout.load(bytearray(made.export())).rank == 3
    for broken in (b"", b"x" * 80, made.export()[:-1], made.export() + b"\0"):
        with pytest.raises(ferry.Error):
            kv.Layout.load(broken)


def test_ranks_count_stages_then_context_then_tensor_parallelism() -> None:
    made = layout(tp=(1, 2), pp=(1, 3), pcp=(2, 4), stage=1)
    assert (made.rank, made.ranks) == ((1 * 4 + 2) * 2 + 1, 24)


def test_kinds_of_groups() -> None:
    window = kv.Group(block_tokens=16, kind=kv.WINDOW, window_tokens=100)
    latent = kv.Group(block_tokens=64, kind=kv.LATENT)
    state = kv.Group(block_tokens=1, kind=kv.STATE)
    layers = [
        kv.Layer(name="full", **LAYER),
        kv.Layer(name="window", **{**LAYER, "address": 2 << 20}, group=1),
        kv.Layer(name="latent", **{**LAYER, "address": 3 << 20, "heads": 1}, group=2, pairs=1),
        kv.Layer(name="state", **{**LAYER, "address": 4 << 20}, group=3, pairs=1),
    ]
    made = kv.Layout(model="m", groups=[GROUP, window, latent, state], layers=layers)
    assert (made.group_count, made.layer_count) == (4, 4)
    for group, what in ((kv.Group(16, kv.WINDOW), r"groups\[0\].*window"), (kv.Group(16, 9), "kind")):
        with pytest.raises(ferry.InvalidError, match=what):
            layout(group)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model": 7}, "model must be a str"),
        ({"model": "a\0b"}, "model has a zero byte"),
        ({"rope": "\ud800"}, "rope is no UTF-8"),
        ({"cache": "x" * 256}, "cache: bytes are 256"),
        ({"name": "a\0b"}, r"layers\[0\].name"),
        ({"name": ""}, "name"),
        ({"heads": 0}, "heads"),
        ({"heads": 2**32}, r"layers\[0\].heads must be 0 to 2\*\*32 - 1, not 4294967296"),
        ({"heads": -1}, r"layers\[0\].heads"),
        ({"heads": 1.5}, r"layers\[0\].heads must be an integer, not 1.5"),
        ({"pairs": 3}, r"layers\[0\].*pairs is 3"),
        ({"elements": 0}, "elements"),
        ({"element_bytes": 0}, "element_bytes"),
        ({"blocks": 0}, "blocks"),
        ({"blocks": 2**64}, r"layers\[0\].blocks"),
        ({"address": -4096}, r"layers\[0\].address"),
        ({"address": 0}, r"layers\[0\].*memory is missing"),
        ({"group": 1}, "group"),
        ({"stage": 1}, "stage"),
        ({"arrangement": 6}, r"layers\[0\]: arrangement: one of PAIR_BLOCK_TOKEN_HEAD, .*not 6"),
        ({"strides": (1, 2, 3, 4)}, r"layers\[0\].strides must be five numbers"),
        ({"strides": (4096, 2048, 512, -16, 2)}, r"layers\[0\].strides: token_stride"),
        ({"strides": (4096, 2048, 512, 15, 2)}, r"layers\[0\].*token 15"),
        ({"tp": 4}, r"tp must be \(rank, size\), not 4"),
        ({"tp": (0, 0)}, r"tp\[1\] is 0"),
        ({"tp": (4, 4)}, "tp_rank"),
        ({"pp": (0, 0)}, r"pp\[1\] is 0"),
        ({"pcp": (0, 0)}, r"pcp\[1\] is 0"),
        ({"pcp": (1, 2**40)}, r"pcp\[1\] must be 0 to"),
        ({"dcp_size": -1}, "dcp_size"),
        ({"turn_tokens": 2**32}, "turn_tokens"),
    ],
)
def test_errors_name_the_field(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(ferry.CallerError, match=names) as caught:
        layout(**changes)
    assert caught.value.status in (ferry.Status.INVALID, ferry.Status.LIMIT)


def test_groups_and_layers_are_needed() -> None:
    layer = kv.Layer(name="a", **LAYER)
    for parts in ({"groups": [], "layers": [layer]}, {"groups": [GROUP], "layers": []}):
        with pytest.raises(ferry.InvalidError, match="group|layer"):
            kv.Layout(model="m", **parts)
    with pytest.raises(ferry.InvalidError, match=r"groups\[0\].block_tokens"):
        layout(kv.Group(block_tokens=-16))
    with pytest.raises(ferry.InvalidError, match="name"):
        kv.Layout(model="m", groups=[GROUP], layers=[layer, layer])


def test_a_closed_layout_is_refused_by_name() -> None:
    with layout() as first:
        second = layout()
        plan = kv.Plan(first, second)
    first.close()
    for use, what in (
        (lambda: first.export(), "the layout is closed"),
        (lambda: kv.Plan(first, second), "the source layout is closed"),
        (lambda: kv.Plan(second, first), "the target layout is closed"),
        (lambda: plan.lower(second, first, [], [], 0), "the target layout is closed"),
        (lambda: pickle.dumps(first), "the layout is closed"),
    ):
        with pytest.raises(ferry.ClosedError, match=what):
            use()
    assert "0 -> 0" in plan.explain()  # The plan keeps what it needs.
    plan.close()
    with pytest.raises(ferry.ClosedError, match="the plan is closed"):
        plan.explain()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(kv.Plan(second, second))


def test_layouts_plans_and_moves_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once: by close, or when the last reference is gone."""
    freed: list[str] = []
    for name in ("layout", "plan", "moves"):
        function = getattr(library, f"ferry_kv_{name}_free")

        def free(pointer: int, name: str = name, function: Any = function) -> None:
            freed.append(name)
            function(pointer)

        monkeypatch.setattr(library, f"ferry_kv_{name}_free", free)
    made = layout()
    plan = kv.Plan(made, made)
    assert plan.lower(made, made, [1], [2], 16) and freed == ["moves"]
    made.close()
    made.close()
    assert freed == ["moves", "layout"]
    del plan, made
    assert freed == ["moves", "layout", "plan"]


def test_the_constants_are_members_of_enums() -> None:
    for kind in (kv.GroupKind, kv.Arrangement, kv.Mode, kv.EventKind):
        for member in kind:
            assert getattr(kv, member.name) is member and member.name in kv.__all__
    for name in kv.__all__:
        kind_ = getattr(kv, name)
        if isinstance(kind_, type):
            assert (kind_.__module__, kind_.__qualname__) == ("ferry.kv", name)


ORDER = "block pair token head element"


class Array:
    """An array with an interface of numpy's or CUDA's form."""

    def __init__(self, protocol: str, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
        said = {"version": 3, "typestr": "<f2", "data": (1 << 20, False), "shape": shape, "strides": strides}
        setattr(self, protocol, said)


class Torch:
    """What a tensor of torch has. Its array interface raises, as that of a tensor on a device does."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape, self.strides = shape, strides

    @property
    def __array_interface__(self) -> Any:
        raise TypeError("can't convert a tensor on a device to numpy")

    def data_ptr(self) -> int:
        return 1 << 20

    def element_size(self) -> int:
        return 2

    def stride(self) -> tuple[int, ...]:
        return self.strides


def of(
    tensor: Any, order: str = ORDER, groups: Any = (GROUP,), tp: Any = (0, 2), **of_layer: Any
) -> kv.Layout:
    return kv.Layout(model="m", groups=groups, layers=[kv.Layer.of(tensor, "a", order, **of_layer)], tp=tp)


def test_a_layer_is_what_its_tensor_says() -> None:
    expected = layout(arrangement=kv.BLOCK_PAIR_TOKEN_HEAD, tp=(0, 2)).export()
    shape = (10, 2, 16, 2, 8)
    dense = (512, 256, 16, 8, 1)
    tensors: list[Any] = [Torch(shape, dense)]
    for protocol in ("__array_interface__", "__cuda_array_interface__"):
        tensors += [Array(protocol, shape, None), Array(protocol, shape, tuple(2 * step for step in dense))]
    for tensor in tensors:
        assert of(tensor).export() == of(tensor, heads=4).export() == expected
    moved = of(Torch((2, 10, 8, 16, 2), (256, 512, 1, 16, 8)), "pair block element token head")
    assert moved.export() == expected
    gaps = layout(strides=(2000, 1000, 30, 60, 2), tp=(0, 2)).export()
    assert of(Torch(shape, (1000, 500, 30, 15, 1))).export() == gaps != expected


def test_a_latent_has_one_head_on_each_rank() -> None:
    group = kv.Group(16, kind="latent")
    made = of(Torch((10, 16, 8), (128, 8, 1)), "block token element", [group], heads=1)
    strides = (256, 0, 0, 16, 2)  # those of dimensions of size 1 do not count
    assert made.export() == layout(group, tp=(0, 2), heads=1, pairs=1, strides=strides).export()


def test_a_tensor_that_does_not_fit_is_refused_by_its_dimension() -> None:
    shape, dense = (10, 2, 16, 2, 8), (512, 256, 16, 8, 1)
    wrong: list[tuple[Any, str, str]] = [
        (Torch((10, 2, 32, 2, 8), dense), ORDER, "token"),
        (Torch((10, 3, 16, 2, 8), dense), ORDER, "pair"),
        (Torch(shape, dense), "block pair token element", "order"),
        (Torch(shape, dense), "block pair token head elements", "elements"),
        (Torch(shape, dense), "pair token head element", "order"),
        (Torch(shape, (-512, 256, 16, 8, 1)), ORDER, "tensor.strides must be 0 to"),
    ]
    for tensor, order, words in wrong:
        with pytest.raises(ferry.CallerError, match=rf"layers\[0\].*{words}"):
            of(tensor, order)
    for nothing in (b"bytes", [1.0], None, Array("__array_interface__", (), None)):
        with pytest.raises(ferry.InvalidError, match="tensor must be|order|typestr"):
            of(nothing)
