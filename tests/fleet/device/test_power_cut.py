"""Power cuts at every write of the ledger: no answer is ever uncharged.

A device answers some rounds while a preloaded library records every change of its
folder's files, in order, and every sync to disk. Then each moment is replayed in three
modes: the disk has everything written (the process was killed), only what was synced
(the power was cut), or also half of the last write (an incomplete write). The device is
started again from each of these states.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fedbudget.errors import LedgerError
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.ledger_file import LedgerFile
from fedbudget.fleet.device.policy import read_policy
from fedbudget.fleet.device.statement import read_statement
from tests.fleet.devices import SIGNER, write_device
from tests.fleet.examples import RUN, offer, order, reply

ROOT = Path(__file__).parents[3] / "src"
ROUNDS = 2
ROUND_COST = 105.0

DEVICE = """
import os, sys
from pathlib import Path
from fedbudget.fleet.device.guard import Guard
from fedbudget.fleet.device.policy import read_policy
folder, *messages = sys.argv[1:]
guard = Guard(read_policy(f"{folder}/policy.toml"))
sent = os.open(f"{folder}/sent", os.O_WRONLY | os.O_CREAT, 0o600)
for index, message in enumerate(messages):
    answer = guard.answer_order if index else guard.answer_offer
    (reply,) = answer(bytes.fromhex(message))
    assert reply.code in ("accepted", "answered"), reply
    if reply.theta is not None:
        os.write(sent, reply.to_bytes())
os._exit(0)  # without closing any file
"""


class Change(NamedTuple):
    kind: str  # w: write; t: truncate; u: unlink; s: sync
    name: str
    offset: int
    data: bytes


def read_journal(path: Path) -> Iterator[Change]:
    data, position = path.read_bytes(), 0
    while position < len(data):
        kind, name_size, offset, size = struct.unpack_from("<cIQQ", data, position)
        position += 21
        name = data[position : position + name_size].decode()
        position += name_size
        yield Change(kind.decode(), name, offset, data[position : position + size])
        position += size


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Change]]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux, to record what reaches the disk")
    folder = tmp_path_factory.mktemp("power")
    library, journal = folder / "journal.so", folder / "journal"
    source = Path(__file__).with_name("write_journal.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True
    )
    home = folder / "device"
    write_device(home)
    messages = [SIGNER.sign(offer(drift_momentum=0.5))]
    messages += [SIGNER.sign(order(round=n)) for n in range(1, ROUNDS + 1)]
    before = os.environ.get("PYTHONPATH", "")
    subprocess.run(
        [sys.executable, "-c", DEVICE, str(home), *(m.hex() for m in messages)],
        check=True,
        env=os.environ
        | {
            "LD_PRELOAD": str(library),
            "WATCHED": str(home),
            "JOURNAL": str(journal),
            "PYTHONPATH": os.pathsep.join([*filter(None, [before]), str(ROOT)]),
        },
    )
    return home, list(read_journal(journal))


def on_disk(changes: list[Change], mode: str) -> dict[str, bytearray]:
    """Return the files after these changes and a power cut."""
    files: dict[str, bytearray] = defaultdict(bytearray)
    last_sync = {c.name: i for i, c in enumerate(changes) if c.kind == "s"}
    for index, change in enumerate(changes):
        # A removal is permanent once its folder is synced.
        synced = last_sync.get("" if change.kind == "u" else change.name, -1)
        forced = index <= synced or change.name == "sent"
        incomplete = (
            mode == "incomplete" and index == len(changes) - 1 and change.name != "sent"
        )
        if change.kind == "s" or (mode != "all" and not (forced or incomplete)):
            continue
        if change.kind == "u":
            files.pop(change.name, None)
        else:
            apply(files[change.name], change, half=incomplete)
    return files


def apply(file: bytearray, change: Change, *, half: bool) -> None:
    if change.kind == "t":
        del file[change.offset :]
        file.extend(bytes(change.offset - len(file)))
        return
    data = change.data[: len(change.data) // 2] if half else change.data
    file.extend(bytes(max(0, change.offset - len(file))))
    file[change.offset : change.offset + len(data)] = data


def start_again(home: Path, folder: Path, files: dict[str, bytearray]) -> Guard:
    folder.mkdir()
    for name in ("rows.npz", "policy.toml"):
        (folder / name).symlink_to(home / name)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return Guard(read_policy(folder / "policy.toml"))


@pytest.mark.parametrize("mode", ["all", "forced", "incomplete"])
def test_the_ledger_never_counts_too_little(
    recorded: tuple[Path, list[Change]], mode: str, tmp_path: Path
) -> None:
    home, changes = recorded
    kinds = {change.kind for change in changes}
    assert {"w", "s"} <= kinds and len(changes) > 50
    states = set()
    for moment in range(len(changes) + 1):
        files = on_disk(changes[:moment], mode)
        sent = bytes(files.pop("sent", b""))
        folder = tmp_path / str(moment)
        guard = start_again(home, folder, files)
        answers = split_answers(sent)
        statement = read_statement(folder / "ledger.sqlite")
        charged = sum(run.charged for run in statement.runs)
        assert charged >= len(answers)
        assert statement.cost == charged * ROUND_COST
        for number, answer in enumerate(answers, 1):
            (again,) = guard.answer_order(SIGNER.sign(order(round=number)))
            # The last charged answer is stored; earlier ones may be replaced.
            gone = number < charged and again.code == "wrong-round"
            assert gone or again.to_bytes() == answer
        if charged > len(answers):
            (again,) = guard.answer_order(SIGNER.sign(order(round=charged)))
            assert again.code in ("already-charged", "answered")
        assert read_statement(folder / "ledger.sqlite").cost == statement.cost
        # The answer and the state of drift correction are stored together.
        guard.close()
        policy = read_policy(folder / "policy.toml")
        ledger = LedgerFile(policy.ledger, policy.budget, lineage=policy.data.lineage)
        stored = ledger.last_answer(RUN)
        assert (stored is None) == (sum(run.answered for run in statement.runs) == 0)
        if stored is not None:
            assert ledger.answer(RUN, stored.round) == stored.reply
        ledger.close()
        states.add((charged, len(answers)))
        shutil.rmtree(folder)
    # All rounds, and the moments between a charge and its answer, occurred.
    assert {(n, n) for n in range(ROUNDS + 1)} <= states
    assert {(n + 1, n) for n in range(ROUNDS)} <= states


def split_answers(sent: bytes) -> list[bytes]:
    """Split at the length of an answer, which is equal in these rounds."""
    size = len(reply(theta=bytes(32), previous=0).to_bytes())
    assert len(sent) % size == 0
    return [sent[start : start + size] for start in range(0, len(sent), size)]


def test_a_missing_sync_would_be_detected(
    recorded: tuple[Path, list[Change]], tmp_path: Path
) -> None:
    # This test can fail: without the syncs of the log, a charge is missing.
    home, changes = recorded
    ignored = [c for c in changes if not (c.kind == "s" and c.name.endswith("-wal"))]
    files = on_disk(ignored, "forced")
    sent = split_answers(bytes(files.pop("sent")))
    with pytest.raises(LedgerError, match="once had"):
        start_again(home, tmp_path / "device", files)
    assert len(sent) == ROUNDS
