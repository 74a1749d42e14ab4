import sys
from pathlib import Path
from tests.benchmarks.choice_runs import Runs
for seed in map(int, sys.argv[2:]):
    runs = Runs(Path(sys.argv[1]).resolve(), "photos", seed, None)
    stores = {one: runs._store(f"{one}_schedule_free_annealed") for one in (30, 45, 89)}
    runs._train(f"photos_{seed}_free", 2, ["optimizer.name=schedule_free", "schedule.name=constant"], stores, "--snapshot")
