"""Keys: which 32 bytes name a chunk of a KV cache."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from ctypes import addressof, c_size_t, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from .._abi import library
from .._buffers import Pin, numbers
from .._errors import call, encoded, invalid, unsigned
from ..kv._handle import Handle
from ._abi import (
    EXTRA_IMAGE,
    EXTRA_LORA,
    EXTRA_SALT,
    CChainOptions,
    CExtra,
    CHash,
    CIdentity,
    CKey,
    CPair,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .._buffers import SupportsArrayInterface

    Tokens = Union[Sequence[int], Buffer, SupportsArrayInterface]

CHUNK_TOKENS = 256


class Key(bytes):
    """The key of a value: 32 bytes. `str(key)` is 64 hex digits, and `Key.parse` reads them."""

    __slots__ = ()

    def __new__(cls, value: bytes | bytearray) -> Key:
        if not isinstance(value, (bytes, bytearray)) or len(value) != sizeof(CKey):
            mend = ": Key.parse reads its 64 hex digits, and Keyspace.key makes one of a hash"
            raise invalid(f"key must be {sizeof(CKey)} bytes, not {value!r}{mend}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Key:
        """Returns the key of 64 hex digits."""
        found = CKey()
        call(library.ferry_pool_key_parse, encoded(text, "text"), addressof(found))
        return cls(bytes(found.bytes))

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"<ferry.pool.Key {self[:4].hex()}...>"


class Image(NamedTuple):
    """An image, or anything else whose place a prompt holds with token ids."""

    hash: bytes
    """1 to 1,024 bytes that tell images apart."""
    first_token: int
    """Counted from the first of the tokens handed over; negative if the image began before them."""
    token_count: int


class Keyspace:
    """The keys of one tenant under one identity: all that the bytes of a chunk depend on besides its tokens.
    Two engines share values where all of it is equal. Any thread may use it.

    `scales` and `rope` are the scales of a quantised cache and the parameters of the position embedding, in
    any form that is the same everywhere; `more` has further names and values. Keys depend on nothing of the
    process: neither the seed of its hashes nor its Python.

    With a `secret`, 16 to 1,024 bytes that cannot be guessed, nobody makes a key of the tenant without it.
    """

    def __init__(
        self,
        tenant: str,
        model: str,
        *,
        revision: str = "",
        dtype: str = "",
        scales: bytes = b"",
        rope: bytes = b"",
        more: Mapping[str, bytes] | None = None,
        secret: bytes | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        pairs = [
            (encoded(name, "more"), value_of(value, f"more[{name!r}]"))
            for name, value in (more or {}).items()
        ]
        rows = (CPair * len(pairs))(*(CPair(name, value, len(value)) for name, value in pairs))
        identity = CIdentity(
            sizeof(CIdentity),
            0,
            encoded(tenant, "tenant"),
            encoded(model, "model"),
            encoded(revision, "revision"),
            encoded(dtype, "dtype"),
            value_of(scales, "scales"),
            len(scales),
            value_of(rope, "rope"),
            len(rope),
            addressof(rows),
            len(rows),
            *secret_of(secret, "secret"),
        )
        self.chunk_tokens: int = unsigned(chunk_tokens, "chunk_tokens")
        """Tokens of a chunk. `Pool` takes the same number, and nodes with another one refuse each other."""
        if self.chunk_tokens == 0:
            raise invalid("chunk_tokens must be 1 to 65536, not 0")
        self._name = f"{model!r} of {tenant!r}"
        pointer = c_void_p()
        try:
            call(library.ferry_pool_keyspace_new, addressof(identity), addressof(pointer))
        finally:
            self._handle = Handle(pointer.value or 0, library.ferry_pool_keyspace_free)

    def key(self, hash: bytes) -> Key:
        """Returns the key of a value that the program names by a hash of its own: any 1 to 1,024 bytes."""
        found = CKey()
        hash = value_of(hash, "hash")
        call(library.ferry_pool_key_of, self._handle.pointer, hash, len(hash), addressof(found))
        return Key(bytes(found.bytes))

    def keys_of(
        self,
        tokens: Tokens,
        *,
        parent: bytes | None = None,
        lora: str | None = None,
        salt: bytes | None = None,
        images: Sequence[Image | tuple[bytes, int, int]] = (),
    ) -> list[Key]:
        """Returns the key of each full chunk of a prompt. The key of a chunk depends on all tokens up to its
        end; tokens that fill no chunk have none.

        `tokens` are integers; arrays of 32 bits are used without a copy. `lora` is the name of an adapter,
        and `salt` keeps prompts apart whose tokens are equal. With a `parent`, the hash that `chain` has
        returned, the tokens go on from there; `lora` and `salt` count in it already.
        """
        return self.chain(tokens, parent=parent, lora=lora, salt=salt, images=images)[0]

    def chain(
        self,
        tokens: Tokens,
        *,
        parent: bytes | None = None,
        lora: str | None = None,
        salt: bytes | None = None,
        images: Sequence[Image | tuple[bytes, int, int]] = (),
    ) -> tuple[list[Key], bytes | None]:
        """Does as `keys_of`, and returns also the hash of the last full chunk, which is the `parent` of later
        tokens; without a full chunk the `parent` of this call."""
        extras = [(EXTRA_LORA, encoded(lora, "lora"), 0, 0)] if lora is not None else []
        if salt is not None:
            extras.append((EXTRA_SALT, value_of(salt, "salt"), 0, 0))
        for at, (hash, first, length) in enumerate(images):
            name = f"images[{at}]"
            if not -(2**63) <= first < 2**63:
                raise invalid(f"{name}: first_token {first} does not fit into 64 bits")
            extras.append(
                (EXTRA_IMAGE, value_of(hash, name), first, unsigned(length, f"{name}: token_count"))
            )
        rows = (CExtra * len(extras))(
            *(
                CExtra(sizeof(CExtra), kind, it, len(it), first, length, 0)
                for kind, it, first, length in extras
            )
        )
        if parent is not None and (not isinstance(parent, bytes) or len(parent) != sizeof(CHash)):
            raise invalid(f"parent must be the {sizeof(CHash)} bytes that chain returned, not {parent!r}")
        # A pointer to the bytes of `parent`, which may have zeros.
        options = CChainOptions(sizeof(CChainOptions), self.chunk_tokens, parent, addressof(rows), len(rows))
        view = _tokens(tokens)
        keys, count, last = (CKey * (len(view) // self.chunk_tokens))(), c_size_t(), CHash()
        pin = Pin(view, "tokens")
        try:
            call(
                library.ferry_pool_chain,
                self._handle.pointer,
                addressof(options),
                pin.address,
                len(view),
                addressof(keys),
                len(keys),
                addressof(count),
                addressof(last),
            )
        finally:
            pin.release()
        found, size = bytes(keys), sizeof(CKey)
        made = [Key(found[at : at + size]) for at in range(0, len(found), size)]
        return made, bytes(last.bytes) if made else parent

    def __repr__(self) -> str:
        return f"<ferry.pool.Keyspace {self._name}, {self.chunk_tokens} tokens a chunk>"


def _tokens(tokens: Any) -> memoryview:
    """Returns token ids as integers of 32 bits."""
    view = None
    if not isinstance(tokens, (list, tuple, range)):
        view = numbers(tokens, "tokens", (4, 8))
        if view.itemsize == 4:
            return view
    try:
        return memoryview(array("I", view.tolist() if view is not None else tokens))
    except (TypeError, OverflowError) as error:
        raise invalid(f"tokens: {error}") from None


def secret_of(secret: Any, name: str) -> tuple[bytes | None, int]:
    """Returns the pointer and the length that the library takes; an empty secret is one that it refuses."""
    if secret is None:
        return None, 0
    if not isinstance(secret, (bytes, bytearray)):
        # An error that showed it would end up in logs.
        raise invalid(f"{name} must be bytes, not a {type(secret).__name__}")
    secret = bytes(secret)
    return secret, len(secret)


def value_of(value: Any, name: str) -> bytes:
    """Returns bytes for the library."""
    if not isinstance(value, (bytes, bytearray)):
        raise invalid(f"{name} must be bytes, not {value!r}")
    return bytes(value)
