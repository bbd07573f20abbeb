"""`fedbudget export`."""

from typing import TYPE_CHECKING, Annotated

import typer

from fedbudget.cli.options import AsJson
from fedbudget.cli.output import print_json

if TYPE_CHECKING:
    from fedbudget.interop.export import LinearModel


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
        facts = model.to_dict() | {"file": out, "dim": model.dim}
        print_json({name: facts[name] for name in facts if name != "weights"})
        return
    from fedbudget.cli.views.layout import new_page, show_line

    with new_page() as console:
        show_line(console, f"{out}: {model.loss}, predicts {_label(model)}")
        show_line(console, _columns(model))
        show_line(console, f"privacy: {model.privacy}")


def _label(model: "LinearModel") -> str:
    if model.classes is None:
        return f"{model.label}{f' in {model.unit}' if model.unit else ''}"
    return f"{model.label}: {', '.join(model.classes)}"


def _columns(model: "LinearModel") -> str:
    if model.schema is None:
        return f"takes encoded rows of {model.dim} columns: its schema is not known"
    names = ", ".join(model.schema.features)
    return f"takes raw columns: {names} (schema {model.schema.digest[:12]})"
