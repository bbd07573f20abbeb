"""The measurements of a device, as text."""

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
    measured: Measured,
    prices: Mapping[str, tuple[float, str]],
    *,
    unit: str,
    written: str | None,
) -> None:
    """Print times, bytes and joules, and the prices computed from them."""
    with new_page() as console:
        show_heading(console, "Measured on this device")
        table = new_table("", "seconds", "joules", "repeats", right=True)
        for name, meter in (
            (f"local step, {measured.tau} per round", measured.step),
            ("round", measured.round),
        ):
            table.add_row(name, *_cells(meter))
        secure = measured.secure
        if secure is not None:
            name = f"round of a secure sum, {secure.devices} devices"
            table.add_row(name, *_cells(secure.meter))
        show_table(console, table)
        sums: list[tuple[str, str]] = []
        if secure is not None:
            sizes = f"{secure.order_bytes} down, {secure.reply_bytes} up per round"
            sums.append(("bytes, secure sum", sizes))
        show_pairs(
            console,
            [
                (
                    "bytes",
                    f"{measured.order_bytes} down, {measured.reply_bytes} up per round",
                ),
                *sums,
                ("link", measured.link),
                ("energy", measured.energy),
            ],
        )
        where = "for the config" if written is None else f"written to {written}"
        show_heading(console, one_line(f"Prices in {unit}, {where}"))
        console.print("  [prices]", markup=False)
        for key, (value, _) in prices.items():
            console.print(f"  {key} = {value:.6g}", markup=False)
        show_item(console, f"cost budgets are now in {unit}: set budget.cost to match")
        if measured.broker is None:
            show_item(
                console,
                "no network was used: measure the round with --broker at the device's "
                "location, or add the cost of its radio to communication",
            )


def _cells(meter: Meter) -> tuple[str, str, str]:
    joules = "unknown" if meter.joules is None else f"{meter.joules:.3g}"
    return f"{meter.seconds:.3g}", joules, str(meter.repeats)
