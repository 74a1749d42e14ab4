"""Real jobs of 2 ranks on two hosts, and with ``-m slow`` of 3 ranks on one in graph mode; see ``checks.py``."""

import json
import os
import subprocess
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor

from dimred.distributed.ranks import ALONE, Intent
from dimred.launch.job import make_job
from dimred.vectors.projection import columns_of_rank
from tests.distributed.agreement import STEPS
from tests.distributed.checks import EXACT
from tests.distributed.steps import K
from tests.helpers.processes import nothing_is_left, soon
from tests.launch.jobs import launch_command


@pytest.fixture(scope="module", params=[(2, 2, "pynative"), pytest.param((3, 1, "graph"), marks=pytest.mark.slow)])
def answers(request, tmp_path_factory):
    """Run the checks on 2 ranks of two hosts, both on this machine, or on 3 of one; map each check to its answers."""
    devices, nodes, mode = request.param
    out = tmp_path_factory.mktemp("ranks")
    job = make_job("tests.distributed.checks", "stage_1", [], out=out, devices=devices, device_target="CPU")
    commands = [
        launch_command(job.program, out, mode, devices=devices, nodes=nodes, node=node, port=job.master_port)
        for node in range(nodes)
    ]
    alike = os.environ | {"OMP_NUM_THREADS": "1"}  # as many as the launcher gives each of several ranks here
    others = [subprocess.Popen(command, env=alike) for command in commands[1:]]
    statuses = [subprocess.run(commands[0], env=alike).returncode, *(other.wait(timeout=60) for other in others)]
    assert not any(statuses)
    assert soon(lambda: nothing_is_left(out))
    found = [json.loads((job.folder(rank) / "checks.json").read_text()) for rank in range(devices)]
    return {check: [each[check] for each in found] for check in found[0]}


def test_collectives(answers):
    for rank, found in enumerate(answers["collectives"]):
        size = len(answers["collectives"])
        assert found["sum"] == [size * (size + 1) / 2, size / 2]
        assert found["tell"] == "größer"
        assert found["any"] == [True, False]
        assert found["averaged"] == [[[(size - 1) / 2] * 3] * 2] * 2
        assert found["broadcast"] == [Tensor([value], kind).asnumpy().tobytes().hex() for value, kind in EXACT]
        assert found["gather"] == [[2**24 + number, 0.1] for number in range(size)]
        assert found["run_on_rank_zero"] == (7 if rank == 0 else None)
        assert (
            found["failures"]
            == [
                "ZeroDivisionError: division by zero",
                "IndexError: list index out of range",
                "OSError: [Errno 28] No space left on device",
            ]
            if rank == 0
            else [
                "DimredError: rank 0 could not continue: ZeroDivisionError('division by zero')",
                "DimredError: rank 0 could not continue: IndexError('list index out of range')",
                "FaultError: rank 0 could not continue: No space left on device",
            ]
        )
        assert found["differs"]


def test_work_that_fails_on_one_rank_fails_on_all(answers):
    size = len(answers["one_rank_fails_at_work"])
    last = size - 1
    for rank, found in enumerate(answers["one_rank_fails_at_work"]):
        assert found == [
            "DataError: no image" if rank == last else f"DataError: rank {last} could not continue: no image",
            "OSError: [Errno 28] No space left on device"
            if rank == 0
            else "FaultError: rank 0 could not continue: No space left on device",
            "7.0",
            f"{size}.0",
        ]


def test_rank_0_alone_keeps_the_snapshots_of_a_callback(answers):
    assert answers["snapshot_callback"] == [True] + [False] * (len(answers["collectives"]) - 1)


def end_of(event: str, rank: int, last: int) -> str:
    if event == "SIGTERM":
        return "StoppedError: stopped by SIGTERM"
    return "DamagedError: no image" if rank == last else f"DataError: rank {last} could not continue: no image"


def test_the_state_that_all_ranks_save_is_that_before_the_step_which_one_of_them_voted_against(answers) -> None:
    """The state equals that of a run stopped there, with all parts or micro-batches, at every phase of the reads."""
    others = answers.get("one_rank_leaves_between_micro_batches", [{}] * len(answers["one_rank_leaves"]))
    found = [
        one | {f"micro {case}": each for case, each in other.items()}
        for one, other in zip(answers["one_rank_leaves"], others, strict=True)
    ]
    last, reads = len(found) - 1, (3, 6, 8, 11, 14, 16)
    for case in found[0]:
        of_case = [each[case] for each in found]
        assert all(each["as stopped"] for each in of_case), (case, of_case)
        assert len({each["weights"] for each in of_case}) == 1
        event, step = [*case.removeprefix("micro ").split(), ""][:2]
        for rank, each in enumerate(of_case):
            n_made = int(step) - 1 if step else 2 * STEPS
            assert (each["saved"], each["recorded"]) == (n_made, list(range(1, n_made + 1)))
            if event == "whole":
                assert (each["launched"], each["end"]) == (2 * STEPS, "the end")
                assert each["reads"] == [0, *reads]  # 0 and 8: the ranks meet before an epoch's first step
                continue
            # A rank that fails before an epoch's first step has no batch to go on with, so the ranks meet before it.
            launched = n_made if n_made in (0, STEPS) else min(read for read in reads if read > n_made)
            assert (each["launched"], each["end"]) == (launched, end_of(event.replace("both", "fault"), rank, last))


def test_ranks_go_on_or_end_together_where_the_loss_of_one_is_not_finite(answers) -> None:
    found = answers["one_loss_is_not_finite"]
    for each in found:
        said = "DivergedError: none of the 10 losses up to step 10 was a finite number"
        assert each["diverged"] == [list(range(1, 11)), 11, said]
        for step in (4, 5, 6):
            assert each[f"dropped {step}"] == found[0][f"dropped {step}"]
            assert each[f"dropped {step}"]["as stopped"]
            assert each[f"dropped {step}"]["n_overflows"] == 2


def test_the_votes_and_all_small_gradients_take_one_all_reduce(answers) -> None:
    """Each of the two large tensors among the means takes one of its own, and each tensor that may be fused."""
    for each in answers["all_reduces"]:
        assert (each["of a step"], each["of means"], each["shapes"]) == (1, 3, True)
        assert each["error"] < 1e-5
        assert each["fused error"] < 1e-5
        assert each["fused"] == [1024] * 2 + [1025] * 3 + [1026] * 20
        # A ring adds three ranks in an order that depends on the place in the vector; the sum of two has only one.
        assert each["fused is equal"] or len(answers["all_reduces"]) > 2
        assert [text.partition(";")[0] for text in each["refused"]] == [
            "all_reduce_split is [4, 1]",
            "all_reduce_split is [25]",
        ]


def test_each_rank_holds_its_columns_and_all_get_the_same(answers):
    found = answers["subspace"]
    assert all(each["down_error"] < 1e-6 and each["up_error"] < 1e-6 for each in found)
    assert len({each["digest"] for each in found}) == 1
    assert {each["held"] for each in found} == {K * -(-101 // len(found))}


def test_ranks_with_b_rows_give_what_one_gives_with_all_rows(answers):
    found = answers["beside_one_rank"]
    assert all(each["stage_1_error"] < 1e-5 for each in found)
    assert all(each["stage_2_error"] < 1e-3 * each["moved"] for each in found), found
    assert all(each["decisions"] == each["decisions_alone"] == found[0]["decisions"] for each in found)
    assert len({each["digest"] for each in found}) == 1


def test_ranks_are_weighted_by_their_labels_that_count(answers) -> None:
    found = answers["counted_labels"]
    assert max(error for each in found for error in each["errors"]) < 1e-6, found
    assert len({each["digest"] for each in found}) == 1


def test_ranks_share_labels_that_are_probabilities(answers) -> None:
    found = answers["probabilities"]
    assert max(each["error"] for each in found) < 1e-6, found
    assert len({each["digest"] for each in found}) == 1


def test_ranks_agree_where_one_of_them_sees_another_loss(answers):
    decisions = [each["decisions"] for each in answers["one_loss_differs"]]
    assert all(each == decisions[0] for each in decisions)
    outcomes = [outcome for outcome, *_ in decisions[0]]
    assert outcomes[2] == "NON_FINITE_GRADIENT"
    assert decisions[0][2][3] == decisions[0][1][3]  # the weights stayed
    assert decisions[0][0][:3] != ("ACCEPTED", 1.0, 1)  # what the others alone would have taken


def test_ranks_draw_the_masks_that_the_micro_batches_of_one_rank_draw(answers) -> None:
    for each in answers["dropout"]:
        assert each["ranks"] == pytest.approx(each["one rank"], rel=1e-6)
        for one, two in zip(each["one part"], each["one rank"], strict=True):
            assert one != pytest.approx(two, rel=1e-5)


def test_training_draws_other_masks_on_each_rank_and_on_rank_0_those_of_one_rank(answers) -> None:
    found = answers["masks_of_training"]
    assert all(len({*masks}) == len(found) for masks in zip(*(each["rank"] for each in found), strict=True))
    assert all(each["alone"] == found[0]["rank"] for each in found)
    assert all(each["rank, weights"] == each["alone, weights"] == found[0]["rank, weights"] for each in found)


def test_all_ranks_begin_with_the_weights_of_rank_0_and_draw_noise_of_their_own(answers) -> None:
    """A user's network may draw its weights from a generator of its own."""
    found = answers["own_networks"]
    assert found[0]["seed"] == 1
    assert len({each["seed"] for each in found}) == len(found)
    assert len({each["at first"] for each in found}) == len(found)
    assert {each["of the task"] for each in found} == {found[0]["at first"]}


def test_a_stage_1_begins_with_the_same_checkpoint_on_all_ranks(answers):
    assert {text.partition(";")[0] for text in answers["other_checkpoint"]} == {"the ranks do not have the same --from"}


def test_accuracy_is_exact_over_uneven_shares(answers):
    found = answers["evaluation"]
    assert [each["accuracy"] for each in found] == [8 / 23] * len(found)
    others = len(found) - 1
    assert [each["many"] for each in found] == [(2**24 + others) / (2**24 + 2 * others)] * len(found)


def test_every_rank_has_the_loss_of_every_sample_in_the_same_order(answers):
    losses = [each["losses"] for each in answers["evaluation"]]
    assert all(each == losses[0] for each in losses)
    right, wrong = np.log(np.e + 2) - 1, np.log(np.e + 2)
    np.testing.assert_allclose(sorted(losses[0]), [right] * 8 + [wrong] * 15, rtol=1e-5)


def test_a_measure_of_the_whole_split_gets_all_rows_in_the_order_of_the_split(answers):
    order = np.arange(23) % 3
    for each in answers["evaluation"]:
        assert each["whole"] == order @ 3 ** np.arange(23)
        assert each["predicted"] == order.tolist()


def test_batch_norm_is_re_estimated_from_all_rows_of_all_ranks(answers):
    found = answers["statistics"]
    assert [each["n_batches"] for each in found] == [2] * len(found)
    assert max(each["error"] for each in found) < 1e-5
    assert len({each["digest"] for each in found}) == 1


def test_every_rank_has_the_averages_of_the_snapshots_that_rank_0_reads(answers):
    found = answers["averages"]
    assert all(each["steps"] == [1, 2, 3, 4, 5] and each["error"] < 1e-6 for each in found)
    assert len({each["digest"] for each in found}) == 1


def test_files_are_read_under_one_path_and_compared(answers):
    path = "/proc/self/cwd/resume/state-7.ckpt"
    for rank, each in enumerate(answers["shared_files"]):
        assert each["nothing"] is None
        shared, missing, same, differing = each["found"]
        assert (shared, same) == ([{"epoch": 1}, True], [{"epoch": 2}, True])
        assert f"all hosts must have {path}, on a shared disk or as copies under the same path: {path} " in missing
        assert missing.startswith("rank 1 could not continue: ") == (rank == 0)
        assert differing.startswith(f"the ranks do not have the same file {path}; give every host the same files")


def test_what_a_step_sends_is_what_the_readme_counts(answers):
    """The mean takes the gradient (M), a loss, one for each trial, each with a weight; down takes k; up takes 2 M."""
    for each in answers["counters"]:
        assert each["accepted"]
        m = each["n_weights"]
        assert each["sent"] == {"mean": m + 2 * (1 + each["n_trials"]), "project": K, "gather": 2 * m}


@pytest.mark.parametrize("intent", Intent)
def test_a_single_rank_agrees_with_itself(intent):
    assert ALONE.agree(intent) is intent
    assert ALONE.broadcast_bytes("größer".encode()).decode() == "größer"
    assert [ALONE.any(True), ALONE.any(False)] == [True, False]
    ALONE.check_same("configuration", b"x")
    assert ALONE.mean() is None


@given(st.integers(0, 10**12), st.integers(1, 70))
def test_every_column_has_one_owner_and_no_rank_two_more_than_another(n_columns, group_size):
    parts = [columns_of_rank(n_columns, rank, group_size) for rank in range(group_size)]
    assert parts[0].start == 0
    assert parts[-1].stop == n_columns
    assert all(before.stop == after.start for before, after in pairwise(parts))
    widths = [part.stop - part.start for part in parts]
    assert max(widths) - min(widths) <= 1
    assert max(widths) == -(-n_columns // group_size)


def test_every_rank_goes_on_with_the_records_of_rank_0(answers) -> None:
    for found in answers["metrics_without_a_shared_disk"]:
        assert found == {"steps": [1, 2, 3]}
