"""Shares of which some are wrong."""

from hypothesis import given, settings, strategies as st

from fedbudget.fleet.secure import shamir
from fedbudget.fleet.secure.reed_solomon import corrected

ELEMENTS = st.integers(0, shamir.PRIME - 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_secret_is_found_while_few_shares_are_wrong(data: st.DataObject) -> None:
    points = data.draw(
        st.lists(st.integers(1, 1000), unique=True, max_size=12, min_size=1)
    )
    threshold = data.draw(st.integers(1, len(points)))
    secret = data.draw(ELEMENTS)
    shares = shamir.split(secret, points, threshold=threshold)
    most = (len(points) - threshold) // 2
    changed = data.draw(st.sets(st.sampled_from(points), max_size=most))
    for point in changed:
        offset = data.draw(st.integers(1, shamir.PRIME - 1))
        shares[point] = (shares[point] + offset) % shamir.PRIME
    assert corrected(shares, threshold=threshold) == (secret, frozenset(changed))


@given(data=st.data())
def test_of_more_wrong_shares_nothing_is_said_of_the_secret(
    data: st.DataObject,
) -> None:
    """None, or another word of the code, which the caller's check refuses."""
    shares = shamir.split(data.draw(ELEMENTS), range(1, 8), threshold=4)
    wrong = shares | {1: 5, 2: 6, 3: 7}
    code = corrected(wrong, threshold=4)
    assert code is None or len(code[1]) <= 1


def test_too_few_shares_are_no_word() -> None:
    assert corrected({1: 8, 2: 9}, threshold=3) is None
    assert corrected({}, threshold=1) is None


def test_zero_is_a_secret_as_any_other() -> None:
    assert corrected({1: 0, 2: 0, 3: 0, 4: 1}, threshold=2) == (0, frozenset({4}))
