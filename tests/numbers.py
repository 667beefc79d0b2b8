"""Whole numbers for property tests: near either end of a range, near 0, or anywhere."""

from __future__ import annotations

from hypothesis import strategies as st

#: So far from an end is near.
NEAR = 5


def numbers(low: int, high: int) -> st.SearchStrategy[int]:
    """From `low` to `high`, of which a third each are near an end or near 0, and the first few above `low`: where rules
    have their boundaries, and where small numbers meet each other."""
    ends = {number for end in (low, 0, high) for number in range(end - NEAR, end + NEAR + 1) if low <= number <= high}
    return st.integers(low, min(high, low + NEAR)) | st.sampled_from(sorted(ends)) | st.integers(low, high)
