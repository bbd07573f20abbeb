"""`fedbudget paper`: errors are one line."""

from pathlib import Path

import pytest

from tests.cli.running import assert_one_line, run


def test_bad_usage_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "paper"))
    for arguments, says in (
        (("--cases", "adult-3"), ("adult-3", "adult-1")),
        (("--repeats", "1"), ("--repeats", "1", "2")),
        (("--vehicle", "nowhere.mat"), ("nowhere.mat", "leave it out")),
    ):
        result = run(capsys, "paper", *out, *arguments)
        assert_one_line(result, code=2, says=says)
    assert not (tmp_path / "paper").exists()


def test_a_file_in_place_of_the_folder_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "paper").write_text("mine")
    result = run(capsys, "paper", "--quick", "--out", str(tmp_path / "paper"))
    assert_one_line(result, code=1, says=("paper", "choose another folder"))
    assert (tmp_path / "paper").read_text() == "mine"
