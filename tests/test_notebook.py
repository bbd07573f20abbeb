"""The example notebook is executed, and shows what it showed when it was committed.

`python -m tests.test_notebook` executes it again and keeps the outputs.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.test_readme import assert_alike

NOTEBOOK = Path(__file__).parent.parent / "examples" / "quickstart.ipynb"

pytest.importorskip("nbclient", reason="notebooks are executed by nbclient")
pytest.importorskip("ipykernel", reason="notebooks are executed by ipykernel")


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def execute(notebook: Any, folder: Path) -> Any:
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def printed(notebook: Any) -> list[str]:
    """Return what the code cells print; pictures are not compared."""
    return [
        "".join(out.text for out in cell.outputs if out.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own packages
def test_the_notebook_shows_what_it_prints(tmp_path: Path) -> None:
    shown = printed(read())
    assert sum(map(bool, shown)) >= 4, "commit the notebook with its outputs"
    fresh = printed(execute(read(), tmp_path))
    for new, old in zip(fresh, shown, strict=True):
        assert_alike(new, old)


def test_the_notebook_was_executed_in_order_and_without_errors() -> None:
    cells = [cell for cell in read().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {out.output_type for cell in cells for out in cell.outputs}
    assert kinds <= {"stream", "display_data"}
    assert any(out.output_type == "display_data" for c in cells for out in c.outputs)


def rewrite(folder: Path) -> None:
    """Execute the notebook and keep its outputs, without times and paths."""
    import nbformat

    notebook = execute(read(), folder)
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        rewrite(Path(temporary))
