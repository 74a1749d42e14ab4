"""Time the same work with and without the oneDNN cap, each in its own process. Run with -m benchmark -s."""

import os
import subprocess
import sys

import pytest

from dimred.workarounds.onednn_cap import ISA_VARIABLE, has_avx512

pytestmark = pytest.mark.benchmark

CONVOLUTION = """
import numpy as np
from mindspore import Tensor, nn
layer = nn.Conv2d(64, 64, 3, has_bias=False)
x = Tensor(np.ones((8, 64, 56, 56), np.float32))
call = lambda: layer(x).asnumpy()
"""

STEP = """
import mindspore as ms, numpy as np
from mindspore import Tensor, nn
from dimred.models.resnet import resnet
from dimred.train_step.step import TrainStep
ms.set_context(mode=ms.GRAPH_MODE)
network = resnet("resnet50", 1001)
step = TrainStep(nn.WithLossCell(network, nn.CrossEntropyLoss()), nn.Momentum(network.trainable_params(), 0.01, 0.9))
step.set_train(True)
x, y = Tensor(np.ones((4, 3, 64, 64), np.float32)), Tensor(np.zeros(4, np.int32))
call = lambda: step(x, y).loss.asnumpy()
"""

TIMING = """
import time
call()
best = 1e9
for _ in range(3):
    started = time.perf_counter()
    call()
    best = min(best, time.perf_counter() - started)
print("seconds", best)
"""


def best_seconds(code: str, isa: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code + TIMING],
        env=os.environ | {ISA_VARIABLE: isa},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split("seconds")[1])


@pytest.mark.skipif(not has_avx512(), reason="the cap is for hosts with AVX-512")
@pytest.mark.parametrize(
    "code", [CONVOLUTION, STEP], ids=["3x3 convolution 8x64x56x56", "ResNet-50 step, batch 4, 64 px"]
)
def test_cap(code, request):
    capped, default = best_seconds(code, "AVX2"), best_seconds(code, "ALL")
    name = request.node.callspec.id
    print(f"{name}: {capped:.4f} s capped, {default:.4f} s without, {default / capped:.1f} times faster")
