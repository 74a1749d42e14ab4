import os
import subprocess
import sys

import pytest

from dimred import ISA_VARIABLE, has_avx512

CODE = f"import os, sys, dimred; print(os.environ.get('{ISA_VARIABLE}'), 'mindspore' in sys.modules)"


def imported(**environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.endswith("MAX_CPU_ISA")}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=clean | environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_dimred_sets_the_cap_where_it_is_needed_and_does_not_load_mindspore():
    assert imported() == f"{'AVX2' if has_avx512() else None} False"


@pytest.mark.parametrize("variable", [ISA_VARIABLE, "DNNL_MAX_CPU_ISA"])
def test_a_value_of_the_user_stands(variable):
    kept = "AVX512_CORE" if variable == ISA_VARIABLE else "None"
    assert imported(**{variable: "AVX512_CORE"}) == f"{kept} False"
