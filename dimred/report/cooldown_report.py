"""What a run's page says about a cooldown."""

from dimred.report.method_report import MethodReport


class CooldownReport(MethodReport):
    """A cooldown's report: which optimizer continued, and from which rate."""

    def sentences(self) -> list[str]:
        """Return a sentence about the optimizer and its rate."""
        cooldown = self.result.cooldown
        assert cooldown is not None  # a cooldown has one
        return [
            f"Cooldown: stage 1's optimizer, {cooldown['optimizer']}, continued from {cooldown['factor']:.3g} times "
            f"its last rate, {cooldown['rate']:.3g}, to 0."
        ]
