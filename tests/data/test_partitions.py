import numpy as np
import pytest
from hypothesis import given, strategies as st

from fedbudget.data.partitions import (
    Partition,
    by_size,
    dirichlet,
    iid,
    parse_partition,
)
from fedbudget.errors import InvalidInputError


@given(num_rows=st.integers(1, 300), data=st.data(), seed=st.integers(0, 99))
def test_every_row_has_a_device_and_every_device_a_row(
    num_rows: int, data: st.DataObject, seed: int
) -> None:
    num_devices = data.draw(st.integers(1, num_rows))
    alpha = data.draw(st.floats(0.01, 100))
    labels = np.arange(num_rows) % 3
    even = iid(num_rows, num_devices, seed=seed)
    skewed = dirichlet(labels, num_devices, alpha, seed=seed)
    for ids in (even, skewed):
        assert len(ids) == num_rows
        assert np.unique(ids).tolist() == list(range(num_devices))
    assert np.ptp(np.bincount(even)) <= 1


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_by_size_gives_the_requested_counts_or_shares(sizes: list[int]) -> None:
    total = sum(sizes)
    shares = [size / total for size in sizes]
    assert np.bincount(by_size(total, sizes)).tolist() == sizes
    assert np.bincount(by_size(total, shares)).tolist() == sizes


def test_the_seed_determines_the_partition() -> None:
    labels = np.arange(100) % 2
    for name in ("iid:4", "size:60,40", "dirichlet:4:0.3"):
        partition = parse_partition(name)
        first, same, other = (partition.device_ids(labels, seed=s) for s in (1, 1, 2))
        assert np.array_equal(first, same)
        assert not np.array_equal(first, other)


def test_a_small_alpha_skews_the_labels_and_a_large_one_does_not() -> None:
    labels = np.arange(20_000) % 2

    def spread(alpha: float) -> float:
        ids = dirichlet(labels, 10, alpha)
        return float(np.std(np.bincount(ids, labels) / np.bincount(ids)))

    assert spread(0.2) > 0.15
    assert spread(1000) < 0.03


@pytest.mark.parametrize(
    ("name", "expected", "dissimilarity"),
    [
        ("iid:16", Partition(kind="iid", num_devices=16), "iid"),
        ("size:60,40", Partition(kind="size", num_devices=2, sizes=(60, 40)), "iid"),
        ("size:.6,.4", Partition(kind="size", num_devices=2, sizes=(0.6, 0.4)), "iid"),
        (
            "dirichlet:8:0.3",
            Partition(kind="dirichlet", num_devices=8, alpha=0.3),
            "strong",
        ),
        ("column:a:b", Partition(kind="column", column="a:b"), "mild"),
    ],
)
def test_names_of_partitions(
    name: str, expected: Partition, dissimilarity: str
) -> None:
    assert parse_partition(name) == expected
    assert parse_partition(str(expected)) == expected
    assert expected.dissimilarity == dissimilarity


@pytest.mark.parametrize(
    "name",
    ["", "iid", "iid:0", "iid:x", "column:", "dirichlet:4", "size:a", "random:4"],
)
def test_an_invalid_partition_is_refused_with_examples(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"not known: write iid:16"):
        parse_partition(name)


def test_refusals_name_the_value_and_the_remedy() -> None:
    with pytest.raises(InvalidInputError, match="only 3 rows: use at most 3"):
        iid(3, 4)
    with pytest.raises(InvalidInputError, match=r"num_devices .* at least 1, got 0"):
        iid(3, 0)
    with pytest.raises(InvalidInputError, match=r"num_devices .* got '3'"):
        iid(3, "3")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"only 1 row: use at most 1 device$"):
        iid(1, 2)
    with pytest.raises(InvalidInputError, match="add up to 9 rows, the table has 10"):
        by_size(10, [4, 5])
    with pytest.raises(InvalidInputError, match=r"shares add up to 0\.9"):
        by_size(10, [0.4, 0.5])
    with pytest.raises(InvalidInputError, match="less than one row"):
        by_size(10, [0.99, 0.01])
    with pytest.raises(InvalidInputError, match="list of positive numbers"):
        by_size(10, [10, 0])
    with pytest.raises(InvalidInputError, match="alpha must be positive"):
        dirichlet([0, 1], 2, 0.0)
    with pytest.raises(InvalidInputError, match="seed must be a whole number"):
        iid(3, 2, seed=-1)
    with pytest.raises(InvalidInputError, match="needs classes"):
        parse_partition("dirichlet:2:1").device_ids(np.zeros(4))
    with pytest.raises(InvalidInputError, match="needs the table"):
        parse_partition("column:a").device_ids(np.zeros(4))
