"""README.md is run: every command, every Python block, every output it shows.

Words must agree exactly; blanks do not count; numbers may differ by 5 %, for a search
may end at a neighbour on another processor. `make readme` rewrites the outputs.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

NOT_RUN = ("make demo", "make test", "git clone")  # checked to exist, not run
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, and its lines."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The shell commands in it, without prompts and comments."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line.split("  #")[0].split(" # ")[0].strip() for line in lines if line]

    @property
    def output(self) -> str:
        """What a console block shows below its command."""
        return "\n".join(
            line for line in self.text.splitlines() if not line.startswith("$ ")
        )


FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[Block]:
    return [Block(match[1], match[2]) for match in FENCE.finditer(text)]


BLOCKS = blocks(README.read_text(encoding="utf-8"))


def of(*languages: str) -> Iterator[Block]:
    return (block for block in BLOCKS if block.language in languages)


def run_shell(command: str, folder: Path) -> str:
    """Run a command at 80 columns without colour; return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-o", "errexit", "-c", command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,
        env=os.environ | {"PATH": path, "COLUMNS": "80", "NO_COLOR": "1"},
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def run_python(code: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, str(README), "exec"), {})
    return shown.getvalue()


def assert_alike(output: str, shown: str) -> None:
    """Compare words exactly, blanks not at all, and numbers to 5 %."""
    assert NUMBER.sub("#", output).split() == NUMBER.sub("#", shown).split()
    numbers = [float(number) for number in NUMBER.findall(output)]
    expected = [float(number) for number in NUMBER.findall(shown)]
    assert numbers == pytest.approx(expected, rel=0.05)


CONSOLE = [block for block in of("console") if block.commands]


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.commands[0])
def test_commands_show_what_the_readme_shows(block: Block, tmp_path: Path) -> None:
    (command,) = block.commands
    assert_alike(run_shell(command, tmp_path), block.output)


def test_other_commands_run_or_exist(tmp_path: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in of("sh"):
        for command in block.commands:
            if command.startswith("make "):
                assert command.split()[1] in targets
            if not command.startswith(NOT_RUN):
                run_shell(command, tmp_path)


def test_python_blocks_print_what_the_readme_shows() -> None:
    pairs = [
        (first, second)
        for first, second in pairwise(BLOCKS)
        if first.language == "python"
    ]
    assert pairs
    for code, shown in pairs:
        assert shown.language == "text"
        assert_alike(run_python(code.text), shown.text)


def test_the_readme_is_short() -> None:
    before_links, _ = README.read_text(encoding="utf-8").split("\n## Read on\n")
    assert len(before_links.split()) <= 900


def test_the_test_command_is_what_ci_runs() -> None:
    assert "make test" in [command for b in of("sh") for command in b.commands]
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_the_comparison_can_fail() -> None:
    assert_alike("tau  36, loss 0.0121", "tau 36, loss 0.0122")
    for other in ("tau 36, gain 0.0121", "tau 30, loss 0.0121", "tau 36"):
        with pytest.raises(AssertionError):
            assert_alike("tau 36, loss 0.0121", other)


def rewrite(folder: Path) -> None:
    """Put fresh outputs into README.md."""
    last_python = ""

    def fresh(match: re.Match[str]) -> str:
        nonlocal last_python
        block = Block(match[1], match[2])
        if block.language == "console":
            shown = run_shell(block.commands[0], folder)
            return f"```console\n$ {block.commands[0]}\n{shown}```"
        if block.language == "text":
            return f"```text\n{run_python(last_python)}```"
        if block.language == "python":
            last_python = block.text
        return match[0]

    text = README.read_text(encoding="utf-8")
    README.write_text(FENCE.sub(fresh, text), encoding="utf-8")


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        rewrite(Path(temporary))
