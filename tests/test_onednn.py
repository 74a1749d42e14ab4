import os
import subprocess
import sys

import pytest

from dimred import ISA_VARIABLE, cap_instruction_set, has_avx512

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


@pytest.mark.parametrize(
    ("environ", "avx512", "expected", "was_set"),
    [
        ({}, True, {ISA_VARIABLE: "AVX2"}, True),
        ({}, False, {}, False),
        ({ISA_VARIABLE: ""}, True, {ISA_VARIABLE: ""}, False),
        ({ISA_VARIABLE: "SSE41"}, True, {ISA_VARIABLE: "SSE41"}, False),
        ({"DNNL_MAX_CPU_ISA": "ALL"}, True, {"DNNL_MAX_CPU_ISA": "ALL"}, False),
    ],
)
def test_when_the_cap_is_set(environ, avx512, expected, was_set):
    assert cap_instruction_set(environ, avx512) is was_set
    assert environ == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512dq\n", True),
        ("flags\t\t: fpu avx2 avx512_vnni\n", False),
        ("model name: avx512f\nflags : avx2\n", False),
        ("Features: fp asimd\n", False),
    ],
)
def test_the_processor_is_asked(tmp_path, text, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text)
    assert has_avx512(cpuinfo) is expected
    assert has_avx512(tmp_path / "missing") is False
