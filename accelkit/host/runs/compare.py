"""Comparing what two runs left: final metrics by their exact value, outputs by their digest."""

from accelkit.contract.data import data
from accelkit.host.runs.record import FileDigest, Record


@data
class Comparison:
    """What was compared, and the first thing that differs."""

    metrics: int
    outputs: int
    first: str | None
    """A line; None when all is equal."""

    @property
    def bitwise(self) -> bool:
        """Whether something was compared and all of it is equal to the last bit."""
        return self.first is None and self.metrics + self.outputs > 0

    def __str__(self) -> str:
        """One line, with the word bitwise only where it is true."""
        if self.first is not None:
            return f"differs: {self.first}"
        if not self.bitwise:
            return "nothing to compare: the run logged no metrics (accelerator.log) and wrote no outputs"
        return f"bitwise equal: {self.metrics} metrics, {self.outputs} output files"


def compare(recorded: Record, now: Record) -> Comparison:
    """Compare two ended runs: metrics first, then outputs, each in the order of their names."""
    first = _first_metric(recorded, now)
    outputs = {**_outputs(recorded.outputs, "outputs"), **_outputs(recorded.workdir_outputs, "workdir")}
    others = {**_outputs(now.outputs, "outputs"), **_outputs(now.workdir_outputs, "workdir")}
    first = first or next((_output(n, outputs.get(n), others.get(n)) for n in sorted({*outputs, *others})
                           if outputs.get(n) != others.get(n)), None)  # fmt: skip
    return Comparison(metrics=len(recorded.metrics), outputs=len(outputs), first=first)


def _first_metric(recorded: Record, now: Record) -> str | None:
    for name in sorted({*recorded.metrics, *now.metrics}):
        then, today = recorded.metrics.get(name), now.metrics.get(name)
        if then is None or today is None:
            return f"metric {name}: {'not logged now' if then else 'not in the record'}"
        if then.hex != today.hex:
            return f"metric {name}: recorded {then.value} ({then.hex}), now {today.value} ({today.hex})"
    return None


def _outputs(files: dict[str, FileDigest], place: str) -> dict[str, FileDigest]:
    return {f"{place}/{name}": digest for name, digest in files.items()}


def _output(name: str, then: FileDigest | None, now: FileDigest | None) -> str:
    words = ["not there" if d is None else f"{d.sha256[:12]} ({d.size} bytes)" for d in (then, now)]
    return f"output {name}: recorded {words[0]}, now {words[1]}"
