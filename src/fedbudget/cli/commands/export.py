"""`fedbudget export`."""

from typing import Annotated

import typer

from fedbudget.cli.options import AsJson
from fedbudget.cli.output import print_json


def export(
    run: Annotated[
        str, typer.Argument(help="The folder of a finished run.", show_default=False)
    ],
    out: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="The file to write: .onnx, .joblib (scikit-learn) or .json.",
            show_default=False,
        ),
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Export the model of a run: ONNX, scikit-learn or JSON."""
    from fedbudget.interop.export import LinearModel

    model = LinearModel.from_run(run)
    model.save(out)
    if as_json:
        facts = {"loss": model.loss, "dim": model.dim, "classes": model.classes}
        print_json({"file": out, **facts, "privacy": model.privacy})
        return
    kind = "regression" if model.classes is None else f"{len(model.classes)} classes"
    from fedbudget.cli.views.layout import new_page, show_line

    with new_page() as console:
        show_line(console, f"{out}: {model.loss}, {model.dim} columns, {kind}")
        show_line(console, "encode rows as in training, with the same schema")
        show_line(console, f"privacy: {model.privacy}")
