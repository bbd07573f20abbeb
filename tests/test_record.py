"""The run folder: complete, resumable, and never silently overwritten."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedbudget as fb
from fedbudget.files import whole_file
from fedbudget.record import kind_of, read_run
from tests.examples import plain, round_of, small_data

PLAN = fb.plan(
    fb.Problem(num_samples=[200, 300], dim=3),
    fb.Budget(epsilon=4, cost=900),
    fb.Prices(communication=100, computation=1),
)
STATE = {"theta": np.arange(3.0), "rounds_done": np.array(1)}
OLD = Path(__file__).parent / "old_runs"  # written before there was a devices.bin


def test_a_new_folder_holds_the_plan_and_its_origin(tmp_path: Path) -> None:
    record = fb.Record(tmp_path / "deep" / "run", about={"seed": 7})
    assert record.open(PLAN) == (None, [])
    about = json.loads((record.path / "about.json").read_text())
    assert about["seed"] == 7 and about["kind"] == "simulation"
    assert about["privacy"] == str(replace(PLAN.privacy, kind="simulation"))
    assert about["versions"]["numpy"] == np.__version__
    assert json.loads((record.path / "plan.json").read_text()) == PLAN.to_dict()


def test_a_release_and_a_simulation_are_told_apart(tmp_path: Path) -> None:
    caveat = "NOT covered: the rows of this test"
    for kind in ("release", "simulation"):
        folder = fb.Record(tmp_path / kind)
        folder.open(PLAN, kind=kind, caveats=[caveat])
        run = read_run(folder.path)
        assert run.kind == kind and str(run.privacy).endswith(f"; {caveat}")
        about = json.loads((folder.path / "about.json").read_text())
        assert about["privacy"] == str(run.privacy)
    assert "nothing is promised for this model" in str(run.privacy)
    with pytest.raises(fb.RecordError, match="holds a release, not a simulation"):
        fb.Record(tmp_path / "release").open(PLAN)


def test_only_a_fleet_made_releases_before_folders_told_so() -> None:
    assert kind_of({"seed": 0}) == "simulation" == kind_of({})
    assert kind_of({"fleet": "home"}) == "release"
    assert kind_of({"fleet": "home", "kind": "simulation"}) == "simulation"


def test_an_interrupted_run_is_resumed_after_its_last_complete_round(
    tmp_path: Path,
) -> None:
    first = fb.Record(tmp_path / "run")
    first.open(PLAN)
    first.add_round(round_of(1), STATE)
    with open(tmp_path / "run" / "rounds.jsonl", "a") as file:
        # A row without its state, and an incomplete one.
        file.write(json.dumps(round_of(2).to_dict()) + '\n{"rou')
    state, rounds = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and state["theta"].tolist() == [0, 1, 2]
    assert plain(rounds) == [round_of(1).to_dict()]
    assert plain(read_run(tmp_path / "run").rounds) == plain(rounds)


def test_missing_rounds_are_not_resumed(tmp_path: Path) -> None:
    record = fb.Record(tmp_path)
    record.open(PLAN)
    record.add_round(round_of(1), STATE)
    (tmp_path / "rounds.jsonl").write_text("")
    with pytest.raises(fb.RecordError, match=r"of round 1, rounds\.jsonl of 0"):
        fb.Record(tmp_path).open(PLAN)


def test_a_folder_killed_before_its_first_round_starts_again(tmp_path: Path) -> None:
    fb.Record(tmp_path / "run").open(PLAN)
    assert fb.Record(tmp_path / "run").open(PLAN) == (None, [])


def test_a_first_row_without_its_state_is_not_written_twice(tmp_path: Path) -> None:
    fb.Record(tmp_path / "run").open(PLAN)
    row = json.dumps(round_of(1).to_dict()) + "\n"
    (tmp_path / "run" / "rounds.jsonl").write_text(row)
    again = fb.Record(tmp_path / "run")
    assert again.open(PLAN) == (None, [])
    again.add_round(round_of(1), STATE)
    assert plain(read_run(tmp_path / "run").rounds) == [round_of(1).to_dict()]


@pytest.mark.parametrize("step", ["about.json", "plan.json", "state.npz", "model.npz"])
def test_an_incomplete_file_is_never_read(tmp_path: Path, step: str) -> None:
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    record.add_round(round_of(1), STATE)
    (tmp_path / "run" / f".{step}.partial").write_bytes(b"incomplete")
    state, rounds = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and len(rounds) == 1


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    record = fb.Record(tmp_path / "run", about={"seed": 1})
    record.open(PLAN)
    other = replace(PLAN, tau=PLAN.tau + 1)
    with pytest.raises(fb.RecordError, match="run of another plan"):
        fb.Record(tmp_path / "run", about={"seed": 1}).open(other)
    with pytest.raises(fb.RecordError, match="with seed 1, not 2"):
        fb.Record(tmp_path / "run", about={"seed": 2}).open(PLAN)
    record.add_round(round_of(1), STATE)
    record.finish(np.zeros(3), round_of(1))
    with pytest.raises(fb.RecordError, match="already holds a finished run"):
        fb.Record(tmp_path / "run", about={"seed": 1}).open(PLAN)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "holiday.jpg").touch()
    with pytest.raises(fb.RecordError, match="holds no run"):
        fb.Record(tmp_path / "other").open(PLAN)


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    record.add_round(round_of(1), STATE)
    # The kernel's own full disk: every write to /dev/full fails with ENOSPC.
    (tmp_path / "run" / ".state.npz.partial").symlink_to("/dev/full")
    with pytest.raises(fb.RecordError, match="No space left on device: make room"):
        record.add_round(round_of(2), STATE)
    assert not (tmp_path / "run" / ".state.npz.partial").is_symlink()
    state, rounds = fb.Record(tmp_path / "run").open(PLAN)
    assert state is not None and plain(rounds) == [round_of(1).to_dict()]


def test_a_file_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for mode, content in (("w", "a\r\nb\n"), ("wb", b"a\r\nb\n")):
        with whole_file(path, mode, permissions=0o600) as file:
            file.write(content)
        assert path.read_bytes() == b"a\r\nb\n"
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write("half")
        1 / 0  # noqa: B018
    assert path.read_bytes() == b"a\r\nb\n"
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]
    for invalid in (path / "below", tmp_path, ""):
        with pytest.raises(fb.RecordError, match="cannot write"), whole_file(invalid):
            pass


WRITER = """
import sys, time
import fedbudget as fb
from tests.test_record import PLAN
record = fb.Record(sys.argv[1])
record.open(PLAN)
print("open", flush=True)
time.sleep(600)
"""


def test_a_folder_has_one_writer_until_it_is_killed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"open\n"
        before = sorted(folder.iterdir())
        with pytest.raises(fb.RecordError, match="another process is writing to it"):
            fb.Record(folder).open(PLAN)
        writer.kill()
    assert fb.Record(folder).open(PLAN) == (None, [])
    assert sorted(folder.iterdir()) == before  # no lock is left behind


def test_a_folder_is_free_once_its_record_is_gone(tmp_path: Path) -> None:
    code = WRITER.replace("time.sleep(600)", "")
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    record = fb.Record(tmp_path / "run")
    record.open(PLAN)
    refused = subprocess.run(command, capture_output=True, text=True)
    assert "another process is writing to it" in refused.stderr
    del record
    assert subprocess.run(command, capture_output=True).returncode == 0


PRICES = fb.Prices(communication=100, computation=1)
BUDGET = fb.Budget(epsilon=np.where(np.arange(101) < 2, 10.0, 4.0), cost=500)
MANY = small_data(devices=101, rows=12)
MANY_PLAN = fb.plan(MANY.problem(), BUDGET, PRICES, weights="uniform")


def many_devices() -> fb.SimulatedDevices:
    return fb.SimulatedDevices(MANY, budget=BUDGET, prices=PRICES, participation=0.6)


def assert_same(ours: list[fb.Round], theirs: list[fb.Round]) -> None:
    assert plain(ours) == plain(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.epsilon.tolist() == other.epsilon.tolist()
        assert one.cost.tolist() == other.cost.tolist()
        assert (one.silent, one.refused) == (other.silent, other.refused)


def test_of_many_devices_everything_is_read_back(tmp_path: Path) -> None:
    record, each = fb.Record(tmp_path / "run"), np.linspace(0.0, 4.0, 101)
    record.open(MANY_PLAN)
    refused = {m: f"reason {m}" for m in range(101)}
    first = round_of(1, epsilon=each, cost=100 * each, silent=tuple(range(101)))
    each = np.append(each[1:], np.inf)
    second = round_of(2, epsilon=each, cost=100 * each, refused=refused)
    for number, latest in ((1, first), (2, second)):
        record.add_round(latest, {"rounds_done": np.array(number)})
    rounds = read_run(tmp_path / "run").rounds
    refused[100] = "its reason was not stored"
    assert_same(rounds, [first, replace(second, refused=refused)])
    row = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    assert row["epsilon"] == {"min": 0.0, "median": 2.0, "max": 4.0}
    assert len(row["silent"]) == 100


@pytest.mark.parametrize("damage", ["whole records", "half a record", "no state yet"])
def test_a_run_of_many_devices_that_was_killed_ends_with_the_same_numbers(
    tmp_path: Path, damage: str
) -> None:
    def kill(latest: fb.Round) -> None:
        if latest.number == 2:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        fb.train(MANY_PLAN, many_devices(), record=folder, on_round=kill)
    one = (folder / "devices.bin").read_bytes()
    if damage == "no state yet":
        (folder / "state.npz").unlink()
    else:
        with open(folder / "devices.bin", "ab") as file:
            record = one[len(one) // 2 :]
            later = (3).to_bytes(8, "little") + record[8:]
            file.write(later if damage == "whole records" else later[:-1])
    run = fb.train(MANY_PLAN, many_devices(), record=folder)
    whole = fb.train(MANY_PLAN, many_devices(), record=tmp_path / "whole")
    assert any(done.silent for done in whole.rounds)
    assert_same(run.rounds, whole.rounds)
    assert_same(read_run(folder).rounds, whole.rounds)
    for name in ("devices.bin", "rounds.jsonl"):
        ours, theirs = (folder / name), (tmp_path / "whole" / name)
        assert ours.read_bytes() == theirs.read_bytes()


def test_a_run_that_was_stopped_early_can_be_read(tmp_path: Path) -> None:
    fb.train(MANY_PLAN, many_devices(), record=tmp_path, stop=lambda latest: True)
    run = read_run(tmp_path)
    assert run.finished and len(run.rounds) == 1


@pytest.mark.parametrize("name", ["few", "many"])
def test_a_folder_of_an_older_version_is_read_reported_and_resumed(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OLD / name, folder)
    old = read_run(folder)
    assert not old.finished and [done.number for done in old.rounds] == [1, 2]
    data = small_data(devices=old.plan.num_devices, rows=12)

    def devices() -> fb.SimulatedDevices:
        return fb.SimulatedDevices(data, prices=PRICES, participation=0.9)

    assert "stopped after round 2 of 3" in fb.report(folder).read_text()
    whole = fb.train(old.plan, devices())
    first, last = old.rounds
    assert last.epsilon == pytest.approx(whole.rounds[1].epsilon)
    assert last.cost == pytest.approx(whole.rounds[1].cost)
    assert (first.epsilon >= whole.rounds[0].epsilon * (1 - 1e-9)).all()
    if name == "many":  # only the range was stored: all get the maximum
        largest = np.full(101, whole.rounds[0].epsilon.max())
        assert first.epsilon == pytest.approx(largest)
    run = fb.train(old.plan, devices(), record=folder)
    assert run.theta == pytest.approx(whole.theta, abs=1e-5)
    again = read_run(folder)
    assert again.finished and again.rounds[2].silent == whole.rounds[2].silent
    assert again.rounds[2].epsilon.tolist() == whole.rounds[2].epsilon.tolist()
    assert "of 3" in fb.report(folder).read_text()


def test_a_run_is_resumed_whatever_words_explain_its_plan(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OLD / "few", folder)
    plan = read_run(folder).plan
    reworded = replace(plan, reasons=("in other words",), advice="")
    state, rounds = fb.Record(folder).open(reworded)
    assert state is not None and len(rounds) == 2
    for other in (replace(plan, tau=plan.tau + 1), replace(plan, learning_rate=0.1)):
        with pytest.raises(fb.RecordError, match="another plan"):
            fb.Record(folder).open(other)
    (folder / "plan.json").write_text("[]")
    with pytest.raises(fb.RecordError, match="another plan"):
        fb.Record(folder).open(reworded)


def test_a_folder_that_averaged_a_tail_is_not_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OLD / "few", folder)
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps(about | {"tail_average": 0.5}))
    with pytest.raises(fb.RecordError, match=r"tail_average 0\.5, which has been"):
        fb.Record(folder).open(read_run(folder).plan)
