"""Tenants whose share of a node is bounded."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Array
from typing import NamedTuple

from .._errors import encoded, invalid, unsigned
from ._abi import CQuota
from ._keys import secret_of

# `bytes` is a field's name below.
Secret = bytes


class Quota(NamedTuple):
    """How much of a node one tenant may have."""

    bytes: int
    """The bytes of memory. The tenant may have the same share of the node's file."""
    secret: Secret | None = None
    """The secret that the tenant's keys are made with, if it has one."""

    def __repr__(self) -> str:
        return f"<ferry.pool.Quota of {self.bytes} bytes>"


def quotas_of(quotas: Mapping[str, int | Quota]) -> Array[CQuota]:
    """Returns the quotas as the library takes them."""
    if not isinstance(quotas, Mapping):
        raise invalid(f"quotas must be a dict of tenants and bytes, not a {type(quotas).__name__}")
    rows = []
    for tenant, quota in quotas.items():
        name = f"quotas[{tenant!r}]"
        if not isinstance(quota, Quota) and not hasattr(quota, "__index__"):
            # An error that showed it might show a secret.
            raise invalid(f"{name} must be a number of bytes or a Quota, not a {type(quota).__name__}")
        wanted = quota if isinstance(quota, Quota) else Quota(quota)
        if not hasattr(wanted.bytes, "__index__"):
            raise invalid(f"{name}.bytes must be an integer, not a {type(wanted.bytes).__name__}")
        secret = secret_of(wanted.secret, f"{name}.secret")
        rows.append(CQuota(encoded(tenant, "quotas"), *secret, unsigned(wanted.bytes, name, 64)))
    return (CQuota * len(rows))(*rows)
