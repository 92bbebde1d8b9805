"""`conformance` with each case as a test."""

import conformance
import pytest


@pytest.mark.parametrize("case", conformance.CASES, ids=lambda case: case.__name__)
def test(case):
    if case is conformance.numpy_arrays:
        pytest.importorskip("numpy")
    case(conformance.Pair())
