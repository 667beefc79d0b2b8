"""How figures are printed: ours, Java's, their ratio, and what is wanted of it."""

from collections.abc import Mapping, Sequence

import attrs

from bench.servers import Kind


@attrs.define
class Table:
    """Prints rows as they come, and keeps which of them are not what is wanted."""

    missed: list[str] = attrs.field(factory=list)

    def head(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def row(self, name: str, cells: str) -> None:
        print(f"{name:18}{cells}", flush=True)

    def wanted_row(
        self,
        name: str,
        cells: str,
        measured: float | None,
        *,
        at_least: float | None = None,
        below: float | None = None,
    ) -> None:
        """A row of which something is wanted, if it was measured: a ratio as it is printed, or a figure."""
        self.row(name, f"{cells}   {self._check_request(name, measured, at_least, below)}")

    def _check_request(self, name: str, measured: float | None, at_least: float | None, below: float | None) -> str:
        wanted = f"< {below:,g}" if at_least is None else f">= {number(at_least, 0 if at_least >= 100 else 2)}"
        if measured is None:
            return f"(wanted {wanted})"
        is_met = measured < (below or 0) if at_least is None else round(measured, 2) >= at_least
        if not is_met:
            self.missed.append(f"{name}: {measured:,.2f} where {wanted} is wanted")
        return f"(wanted {wanted}{'' if is_met else ': MISSED'})"

    def summary(self) -> None:
        """Say at the end what was missed; nothing where nothing was."""
        if self.missed:
            self.head("Not as wanted:")
            for line in self.missed:
                self.row("", line)


def by_kind(values: Mapping[Kind, str]) -> str:
    return ", ".join(f"{'Java' if kind == 'java' else kind} {value}" for kind, value in values.items())


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def divided(value: float | None, other: float | None) -> float | None:
    return None if value is None or not other else value / other


def slope(values: Sequence[float]) -> float:
    """How much a value grows from one sample to the next: the line through them with the least squares."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * (value - mean) for i, value in enumerate(values)) / spread if spread else 0.0
