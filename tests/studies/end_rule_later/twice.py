"""D: twice the rate of the recipe, and 40 % of all epochs that bring the whole of it to 0, linear."""
import math, sys
from pathlib import Path
from tests.studies.end_rule_runs import LENGTHS, Cooldowns, Measured, Runs
from dimred.averaging.windows import Window

LATER = {22: 17, 36: 27, 69: 52}  # epochs of stage 1 of B and C -> those of D, which trains for as many in all

class Twice(Runs):
    def __init__(self, out, name, seed):
        super().__init__(out, name, seed)
        self._task = self._task._replace(rate=2 * self._task.rate)
        self._name += "_twice"
        self._run = out / self._name

    def _cool_down(self, at, factor, curve, epochs):
        if self._cooldowns is None:
            options = [*self._task.options, f"seed={self._seed}"]
            self._cooldowns = Cooldowns(self._data, self._weights(at), self._config(2), options, 50)
        return self._cooldowns.run(self._weights(at), factor, curve, epochs)

    def store(self, epochs):
        files = {at: self._out / "store" / f"{self._name.removesuffix('_twice')}_{at}_D.npz" for at in epochs}
        files = {at: file for at, file in files.items() if not file.exists()}
        if not files:
            return
        self._train(max(LATER[at] for at in files))
        for at, file in files.items():
            measured = Measured(self._network)
            total = at + math.ceil(at / 4)
            start = LATER[at]
            *_, end = self._cool_down(start, 1.0, "linear", total - start)
            measured.add("end", end)
            averages = self._averages(start)
            n = len(averages.steps)
            for length in (one for one in LENGTHS if one <= n):
                measured.add(f"uniform {length}", averages.of(Window(n - length, n)))
            measured.add(f"all {n}", averages.of(Window(0, n)))
            measured.write(file)
            print(file, total, flush=True)

out, name, *seeds = sys.argv[1:]
for seed in map(int, seeds):
    Twice(Path(out).resolve(), name, seed).store([36, 22])
