"""Average a folder of bfloat16 checkpoints in one way, in a process of its own; see ``measured``."""

import json
import resource
import subprocess
from pathlib import Path

import numpy as np
from safetensors import deserialize
from safetensors.numpy import save_file

import dimred
from tests.benchmarks import measured
from tests.benchmarks.measured import Engine, Point, cost_of, read_and_write

_LAYER = 5_000_000  # weights of a layer at most
Cost = dict[str, float]


def paths_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("run/*/model.safetensors"))


def prepare(folder: Path, point: Point) -> Cost:
    """Write files named as trainers do; random bits would give infinities and NaN."""
    rng, n_weights = np.random.default_rng(0), point["megabytes"] * 500_000 // point["files"]
    pool = (rng.standard_normal(2 * _LAYER, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    firsts = range(0, n_weights, _LAYER)
    header = {
        f"layer.{first // _LAYER}.weight": {
            "dtype": "BF16",
            "shape": [min(_LAYER, n_weights - first)],
            "data_offsets": [2 * first, 2 * min(first + _LAYER, n_weights)],
        }
        for first in firsts
    }
    head = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    for number in range(1, point["files"] + 1):
        path = folder / "run" / f"checkpoint-{number}000" / "model.safetensors"
        path.parent.mkdir(parents=True)
        # mergekit asks for a kind of network that transformers knows; it finds the layers of any by itself.
        (path.parent / "config.json").write_text('{"model_type": "vit", "architectures": ["Layers"]}')
        with path.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for first in firsts:
                file.write(pool[rng.integers(_LAYER) :][: min(_LAYER, n_weights - first)].data)
    return {}


def plain_loop(folder: Path, point: Point) -> Cost:
    """Average in float64 by the obvious loop over the safetensors library; NumPy has no bfloat16."""

    def run() -> None:
        totals: dict[str, np.ndarray] = {}
        for path in paths_in(folder):
            for name, tensor in deserialize(path.read_bytes()):
                wide = np.frombuffer(tensor["data"], np.uint16).astype(np.uint32) << 16
                totals[name] = totals.get(name, 0.0) + wide.view(np.float32).astype(np.float64)
        tensors = {}
        for name, total in totals.items():
            bits = (total / point["files"]).astype(np.float32).view(np.uint32)
            tensors[name] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        save_file(tensors, folder / "loop.safetensors")

    return cost_of(run)


def merge(folder: Path, profile: str | None = None) -> Cost:
    out = folder / "merged.safetensors"
    cost = cost_of(lambda: dimred.merge(folder / "run", out, profile=profile))
    for path in (out, Path(f"{out}.json")):
        path.unlink()
    return cost


def least(folder: Path, point: Point) -> Cost:
    """Read every checkpoint once, and write one."""
    paths = paths_in(folder)
    return cost_of(lambda: read_and_write(paths, folder / "written", paths[0].stat().st_size))


def mergekit(folder: Path, point: Point) -> Cost:
    """Run mergekit's command, whose imports are counted."""
    import yaml

    from tests.helpers.peers import peers

    models = [{"model": str(path.parent), "parameters": {"weight": 1}} for path in paths_in(folder)]
    recipe = {"merge_method": "linear", "models": models, "dtype": "float32", "out_dtype": "bfloat16"}
    (folder / "mergekit.yaml").write_text(yaml.safe_dump(recipe))
    command = [peers() / "mergekit-yaml", folder / "mergekit.yaml", folder / "mergekit"]
    command.append("--no-copy-tokenizer")
    seconds = cost_of(lambda: subprocess.run(command, check=True, capture_output=True))["seconds"]
    return {"seconds": seconds, "peak": 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}


ENGINES: dict[str, Engine] = {
    "prepare": prepare,
    "dimred merge": lambda folder, point: merge(folder),
    "dimred merge, ema=0.1": lambda folder, point: merge(folder, "ema=0.1"),
    "reading and writing once": least,
    "a float64 loop": plain_loop,
    "mergekit": mergekit,
}

if __name__ == "__main__":
    measured.main(ENGINES)
