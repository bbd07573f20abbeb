"""`fedbudget predict`."""

from typing import TYPE_CHECKING, Annotated

import typer

from fedbudget.cli.options import AsJson
from fedbudget.cli.output import one_line, print_json

if TYPE_CHECKING:
    from fedbudget.interop.export import LinearModel
    from fedbudget.interop.prediction import Predictions


def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="The folder of a finished run, or an exported .json or .onnx file.",
            show_default=False,
        ),
    ],
    table: Annotated[
        str,
        typer.Argument(
            help="A table of raw columns, as in training: .csv, .csv.gz or .parquet. "
            "It needs no label.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The file to write, .csv or .parquet: the table's columns and the "
            "predictions. Default: none, the first rows are shown.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="For windows of readings, the column of the devices: no window mixes "
            "their readings. Rows are in the order of time. Default: that of the "
            "training, if the table has it; without it, all rows are one device's.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a table: label names, or numbers in the label's unit."""
    from fedbudget.interop.export import LinearModel
    from fedbudget.interop.prediction import predict_table

    linear = LinearModel.load(model)
    result = predict_table(linear, table, out, device=device)
    if as_json:
        digest = None if linear.schema is None else linear.schema.digest
        facts = {"file": out, "rows": result.num_rows, "label": linear.label}
        print_json(
            {
                **facts,
                "unit": linear.unit,
                "classes": dict(result.classes) or None,
                "first": result.first,
                "schema_digest": digest,
                "device": result.device,
            }
        )
        return
    _show(linear, result, out)


def _show(model: "LinearModel", result: "Predictions", out: str | None) -> None:
    from fedbudget.cli.views.layout import (
        new_page,
        new_table,
        show_heading,
        show_item,
        show_table,
    )
    from fedbudget.text import counted

    with new_page() as console:
        rows = counted(result.num_rows, "row")
        if model.classes is None:
            unit = f" {model.unit}" if model.unit else ""
            spread = f"{result.least:.4g} to {result.most:.4g}{unit}"
            show_heading(console, f"{rows}: {model.label} from {spread}")
        else:
            counts = [f"{result.classes[c]} {c}" for c in model.classes]
            show_heading(console, f"{rows}: {model.label} {', '.join(counts)}")
        if result.first:
            names = list(result.first[0])
            shown = new_table(*names, right=True)
            for row in result.first:
                shown.add_row(*(_cell(row[name]) for name in names))
            show_table(console, shown)
        if model.schema is not None and model.schema.windows is not None:
            show_item(console, _whose(result.device))
        if out is None:
            show_item(console, "the first rows; --out FILE writes all of them")
        else:
            show_item(console, f"the first rows; all of them: {one_line(out)}")


def _whose(device: str | None) -> str:
    if device is None:
        return (
            "one row per window; all rows were taken as one device's: --device COLUMN "
            "keeps several apart"
        )
    return f"one row per window, of the readings of one {one_line(device)} each"


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(str(value))
