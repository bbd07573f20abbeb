"""What a device measured of itself, for people."""

from collections.abc import Mapping

from fedbudget.cli.output import one_line
from fedbudget.cli.views.layout import (
    new_page,
    new_table,
    show_heading,
    show_item,
    show_pairs,
    show_table,
)
from fedbudget.metering import Measured, Meter


def show_measured(
    found: Measured,
    prices: Mapping[str, tuple[float, str]],
    *,
    unit: str,
    written: str | None,
) -> None:
    """Print times, bytes and joules, and the prices that follow from them."""
    with new_page() as console:
        show_heading(console, "Measured on this device")
        table = new_table("", "seconds", "joules", "repeats", right=True)
        for name, meter in (
            (f"step, {found.tau} a round", found.step),
            ("round", found.round),
        ):
            table.add_row(name, *_cells(meter))
        show_table(console, table)
        show_pairs(
            console,
            [
                ("bytes", f"{found.order_bytes} down, {found.reply_bytes} up a round"),
                ("link", found.link),
                ("energy", found.energy),
            ],
        )
        where = "for the config" if written is None else f"written to {written}"
        show_heading(console, one_line(f"Prices in {unit}, {where}"))
        console.print("  [prices]", markup=False)
        for key, (value, _) in prices.items():
            console.print(f"  {key} = {value:.6g}", markup=False)
        show_item(console, f"a cost budget is now in {unit}: set budget.cost to match")
        if found.broker is None:
            show_item(
                console,
                "no network was used: measure the round with --broker from where the "
                "device will be, or raise communication by what its radio needs",
            )


def _cells(meter: Meter) -> tuple[str, str, str]:
    joules = "unknown" if meter.joules is None else f"{meter.joules:.3g}"
    return f"{meter.seconds:.3g}", joules, str(meter.repeats)
