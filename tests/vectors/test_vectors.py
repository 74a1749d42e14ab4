"""Weights moved in host memory and by graphs are those that networks read; projections are matrix products."""

import gc
import resource

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from dimred.distributed.ranks import ALONE
from dimred.errors import CheckpointError
from dimred.vectors.parameters import from_arrays, to_arrays
from dimred.vectors.projection import GraphProjection, HostProjection
from dimred.vectors.weights import GraphCopies, GraphVectors, HostVectors, ReusedMemory, make_copies, make_vectors


class Straight(nn.Cell):
    """A network that computes sum(x w + b), without control flow."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.arange(12).reshape(4, 3).astype(np.float32)), name="w")
        self.b = Parameter(Tensor(np.ones(3, np.float32)), name="b")

    def construct(self, x):
        return (ops.matmul(x, self.w) + self.b).sum()


class Branching(Straight):
    def construct(self, x):
        y = ops.matmul(x, self.w)
        if y.sum() > 0:  # noqa: SIM108  (control flow of a graph is what this is about)
            total = (y + self.b).sum()
        else:
            total = ops.matmul(x, self.w).sum() + 2 * self.b.sum()
        return total


def by_hand(network, x):
    return float((x @ network.w.asnumpy() + network.b.asnumpy()).sum())


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("kind", [Straight, Branching])
@pytest.mark.parametrize("weights_of", [HostVectors, GraphVectors])
@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_network_sees_the_moved_weights_whatever_its_graph(kind, weights_of, compiled_before):
    network, x = kind(), np.ones((2, 4), np.float32)
    if compiled_before:
        network(Tensor(x))
    weights = weights_of(network.trainable_params())
    start = weights.read()
    vector = start.asnumpy().copy()
    np.testing.assert_array_equal(vector, [*range(12), 1, 1, 1])

    def check(answer):
        assert float(network(Tensor(x)).asnumpy()) == pytest.approx(by_hand(network, x))
        np.testing.assert_allclose(weights.read().asnumpy(), answer, rtol=1e-6)

    weights.put((1.0, start), (0.5, start))
    check(1.5 * vector)
    total, square = weights.add(2.0, (1.0, start), (-3.0, start))
    np.testing.assert_allclose(total.asnumpy(), -2 * vector, rtol=1e-6)
    assert square == pytest.approx(4 * vector @ vector)
    check(-2.5 * vector)
    weights.put((1.0, start))
    check(vector)
    assert start.asnumpy().tobytes() == vector.tobytes()  # the copy stayed as it was
    ops.assign(network.b, Tensor(np.full(3, 7, np.float32)))
    check([*range(12), 7, 7, 7])
    ms.load_param_into_net(network, {"w": Parameter(Tensor(np.zeros((4, 3), np.float32)), name="w")})
    np.testing.assert_array_equal(weights.read().asnumpy(), [0] * 12 + [7, 7, 7])


def test_host_and_graph_move_long_vectors_alike():
    sizes = [3, 131_071, 262_149, 1, 7]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    moves = []
    for weights_of in (HostVectors, GraphVectors):
        parameters = [Parameter(Tensor(value), name=f"p{number}") for number, value in enumerate(values)]
        weights = weights_of(parameters)
        start = weights.read()
        np.testing.assert_array_equal(start.asnumpy(), np.concatenate(values))
        direction = Tensor(np.random.default_rng(1).standard_normal(sum(sizes)).astype(np.float32))
        weights.put((1.0, start), (0.3, direction))
        _, square = weights.add(-0.1, (1.0, start), (-1.0, direction), (0.9, start))
        answer = 1.9 * start.asnumpy().astype(np.float64) - direction.asnumpy()
        assert square == pytest.approx(answer @ answer, rel=1e-5)
        moves.append(weights.read().asnumpy())
    np.testing.assert_allclose(*moves, rtol=1e-5, atol=1e-6)


def n_graphs() -> int:
    """Count the compiled graphs of all cells."""
    return sum(len(one.compile_cache) for one in gc.get_objects() if issubclass(type(one), nn.Cell))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("kind", [HostVectors, GraphVectors])
def test_gradients_are_joined_in_the_parameters_order(kind):
    weights = Straight().trainable_params()
    vectors, n_before = kind(weights), n_graphs()
    for scale in (1, 2):
        tensors = [Tensor(scale * np.full(p.shape, 5 + i, np.float32)) for i, p in enumerate(weights)]
        np.testing.assert_array_equal(vectors.flatten(tensors).asnumpy(), scale * np.array([5] * 12 + [6] * 3))
    assert n_graphs() - n_before <= 1  # not one graph for each value


def test_the_memory_of_vectors_that_are_gone_is_used_again():
    """Memory fresh from the system causes page faults when it is first written, and these can be counted."""
    m = 10_000_000  # so many weights that malloc gives the memory back to the system
    weights = HostVectors([Parameter(Tensor(np.ones(m, np.float32)), name="p")])
    projection = HostProjection(np.full((1, m), m**-0.5, np.float32))

    def use():
        start, (up,) = weights.read(), projection.back_project(np.ones(1))
        weights.add(1e-3, (1.0, start), (1.0, up))

    use()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        use()
    n_faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert n_faults < 100  # 15 vectors are 285 pages of 2 MB


def test_a_vector_that_is_still_needed_is_not_overwritten():
    weights = HostVectors([Parameter(Tensor(np.arange(5, dtype=np.float32)), name="p")])
    projection = HostProjection(np.eye(1, 5, dtype=np.float32))
    (up,) = projection.back_project(np.ones(1))
    total, _ = weights.add(1.0, (2.0, up))
    part = weights.read().asnumpy()[1:]  # the only reference to that vector
    memory = ReusedMemory(5)
    array = memory.vector()
    array[:] = 9
    array = array[3:]
    for number in range(2, 5):
        weights.put((float(number), weights.read()))
        weights.add(1.0, (1.0, weights.read()))
        projection.back_project(np.full(1, number))
        memory.vector()[:] = number
    np.testing.assert_array_equal(part, [1, 2, 3, 4])
    np.testing.assert_array_equal(array, [9, 9])
    np.testing.assert_array_equal(total.asnumpy(), [2, 0, 0, 0, 0])
    np.testing.assert_array_equal(up.asnumpy(), [1, 0, 0, 0, 0])


def test_half_precision_weights_go_by_graphs():
    weights = make_vectors([Parameter(Tensor(np.ones(3), ms.float16), name="p")])
    assert isinstance(weights, GraphVectors)
    weights.put((2.0, weights.read()))
    np.testing.assert_array_equal(weights.read().asnumpy(), [2, 2, 2])


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(("make", "more_kinds"), [(make_copies, [ms.bfloat16]), (GraphCopies, [])])
def test_side_state_of_every_type_comes_back_byte_for_byte(make, more_kinds):
    """The CPU's graphs can't assign bfloat16; NumPy can."""
    kinds = [ms.float32, ms.float16, ms.float64, ms.int32, ms.bool_, *more_kinds]
    parameters = [Parameter(Tensor([1, 0, 1], kind), name=str(kind)) for kind in kinds]
    parameters.append(Parameter(Tensor(5, ms.int64), name="scalar"))
    before = [parameter.asnumpy().tobytes() for parameter in parameters]
    state = make(parameters)
    copies = state.save()
    for parameter in parameters:
        parameter.asnumpy()[...] = 0  # as a kernel does, in place
        assert not parameter.float().asnumpy().any()
    later = state.save()
    state.restore(copies)
    assert [parameter.asnumpy().tobytes() for parameter in parameters] == before
    state.restore(later)
    assert not any(parameter.float().asnumpy().any() for parameter in parameters)
    state.restore(copies)
    assert [parameter.asnumpy().tobytes() for parameter in parameters] == before
    assert parameters[-1].float() == 5


@pytest.mark.parametrize(("k", "m"), [(1, 50), (32, 50), (5, 600_001)])
@pytest.mark.parametrize("kind", [HostProjection, lambda rows: GraphProjection(rows, ALONE)], ids=["host", "graph"])
def test_both_projections_are_the_matrix_products(kind, m, k):
    rng = np.random.default_rng(m)
    rows = (rng.standard_normal((k, m)) / np.sqrt(m)).astype(np.float32)
    vector = rng.standard_normal(m).astype(np.float32)
    projection = kind(rows)
    down = projection.project(Tensor(vector))
    assert down.shape == (k,)
    assert down.dtype == np.float64
    np.testing.assert_allclose(down, rows.astype(np.float64) @ vector, rtol=0, atol=2e-5)
    coordinates = rng.standard_normal((3, k))
    for n in (1, 2, 3):
        ups = projection.back_project(*coordinates[:n])
        assert len(ups) == n
        for up, z in zip(ups, coordinates, strict=False):
            np.testing.assert_allclose(up.asnumpy(), z @ rows.astype(np.float64), rtol=0, atol=1e-5 / np.sqrt(m))


def test_arrays_are_put_back_completely_or_not_at_all():
    network = nn.Dense(3, 2)
    before = to_arrays(network.get_parameters())
    new = {name: value + 1 for name, value in before.items()}
    with pytest.raises(CheckpointError, match="has no 'bias'"):
        from_arrays(network.get_parameters(), {"weight": new["weight"]}, "it")
    with pytest.raises(CheckpointError, match=r"'bias' with the shape \(3,\), but the network has \(2,\)"):
        from_arrays(network.get_parameters(), new | {"bias": np.zeros(3, np.float32)}, "it")
    for dtype in (np.int8, bool):
        match = rf"it has 'bias' in the type {np.dtype(dtype)}, but the network has Float32"
        with pytest.raises(CheckpointError, match=match):
            from_arrays(network.get_parameters(), new | {"bias": np.ones(2, dtype)}, "it")
    for name, value in to_arrays(network.get_parameters()).items():
        np.testing.assert_array_equal(value, before[name])
    from_arrays(network.get_parameters(), new | {"another": np.zeros(1)}, "it")
    for name, value in to_arrays(network.get_parameters()).items():
        np.testing.assert_array_equal(value, new[name])


def test_the_arrays_are_copies():
    network = nn.Dense(3, 2)
    arrays = to_arrays(network.get_parameters())
    arrays["weight"] += 1
    assert not np.array_equal(network.weight.asnumpy(), arrays["weight"])
