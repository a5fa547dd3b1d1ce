"""The processor's own state, as a caller or a thread's birth left it, decides nothing and is left as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lowprec as lp
from lowprec.processor import in_default_state
from tests.lowprec.doors import TINY, bits, doors, numbers
from tests.processor_state import STATES, control, processor_state

ROOT = Path(__file__).parents[2]
USUAL = control()

# Of every loop that has threads one door: what is too small for them is tried in this process.
THREADED = [
    *("matmul", "matmul, stochastic", "reduce_sum", "reduce_max", "scatter_add", "sum", "kahan_sum", "mean", "norm"),
    *("conv2d", "conv2d, depthwise", "conv2d_input_gradient", "conv2d_weight_gradient", "pipeline", "fma", "add exact"),
    *("float32_op exp", "float32_op divide", "float32_op tanh, float16", "encode float64 to float16, nearest_even"),
    *("encode float32 to bfloat16, stochastic", "to_blocks", "to_blocks, nvfp4", "to_scaled, rows", "decode"),
]


@pytest.fixture(scope="module")
def usual() -> dict[str, bytes]:
    return {name: bits(door()) for name, door in doors().items()}


@pytest.mark.parametrize("state", STATES)
def test_no_door_depends_on_it(state: str, usual: dict[str, bytes]) -> None:
    for name, door in doors().items():
        with processor_state(**STATES[state]) as as_set:
            result = door()
            assert control() == as_set, name
        assert bits(result) == usual[name], name
    assert control() == USUAL


def test_the_doors_would_show_it() -> None:
    """NumPy, which computes as the caller's state says, gives other results for these numbers in every state."""
    x, y = numbers(4096), numbers(4096, 1)
    want = (x * y).tobytes()
    for state in STATES.values():
        with processor_state(**state):
            got = x * y
        assert got.tobytes() != want, state


@pytest.mark.parametrize("state", ["ftz and daz", "up"])
def test_nor_does_the_reference(state: str) -> None:
    x, y = numbers(48) * np.float32(TINY), numbers(48, 1)
    calls = {
        "matmul": lambda: lp.matmul(x.reshape(6, 8), y.reshape(8, 6)),
        "exp": lambda: lp.float32_op("exp", x, fmt="float32"),
        "divide": lambda: lp.float32_op("divide", x, y, fmt="float32"),
        "add": lambda: lp.add(x, x[::-1], "float32"),
        "sum": lambda: lp.sum(x),
        "to_scaled": lambda: lp.to_scaled(x, "float8_e4m3fn", scale=0.3).dequantize(),
        "conv2d": lambda: lp.conv2d(x.reshape(1, 4, 4, 3), y[:9].reshape(1, 1, 3, 3)),
    }
    with lp.testing.backend("reference"):
        for name, call in calls.items():
            want = bits(call())
            with processor_state(**STATES[state]):
                got = call()
            assert bits(got) == want, name


@pytest.mark.parametrize("e, m, bias", [(11, 52, 1023), (8, 10, 1060)])
def test_what_is_kept_of_a_format_is_right_for_ever(e: int, m: int, bias: int) -> None:
    """Properties are computed once: also those of a format first met while subnormal numbers count as zeros."""
    with processor_state(**STATES["ftz and daz"]):
        fmt = lp.FloatFormat(f"first met e{e}m{m}", e, m, bias)
        kept = [fmt.smallest_normal, fmt.smallest_subnormal, fmt.value_of(1), float(lp.finfo(fmt).smallest_subnormal)]
        holds = lp.float64.contains(fmt), fmt.contains(lp.float64)
    normal = 2.0 ** (1 - bias)
    assert kept == [normal, normal / 2**m, normal / 2**m, normal / 2**m]
    assert holds == (True, m == 52)


@pytest.mark.parametrize("state", STATES)
def test_nor_does_what_an_assertion_says(state: str) -> None:
    faint = np.array([1e-40, 3e-39], np.float32)
    with processor_state(**STATES[state]):
        with pytest.raises(AssertionError, match="2 of 2 values are not on bfloat16's grid"):
            lp.testing.assert_on_grid(faint, "bfloat16")
        lp.testing.assert_unbiased(
            lambda x, key: lp.round(x, "float16", "stochastic", key=key), np.array([0.1], np.float32), "float16"
        )


@in_default_state
def _fails() -> None:
    raise ZeroDivisionError


def test_an_error_leaves_it_too() -> None:
    with processor_state(rounding="up", flush=True) as as_set:
        with pytest.raises(ValueError, match="inner"):
            lp.matmul(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
        with pytest.raises(ZeroDivisionError):
            _fails()
        with pytest.raises(ValueError, match="NaN"):
            lp.encode(np.array([np.nan], np.float32), "float4_e2m1fn")
        assert control() == as_set


PROGRAM = """
import contextlib, hashlib, sys
import lowprec as lp
from tests.lowprec.doors import bits, doors
from tests.processor_state import STATES, processor_state

state, pool, names = STATES[sys.argv[1]], sys.argv[2], sys.argv[3:]
some = {name: door for name, door in doors(16).items() if name in names}
assert len(some) == len(names)

def digests(threads):
    with lp.num_threads(threads):
        for name, door in some.items():
            print(name, hashlib.sha256(bits(door())).hexdigest())

if pool == "before":
    digests(3)
with processor_state(**state):
    for threads in (1, 2, 3) if pool != "after" else (1,):
        digests(threads)
digests(3)
digests(1)
"""


@pytest.mark.parametrize("pool", ["before", "during", "after"])
@pytest.mark.parametrize("state", STATES)
def test_threads_keep_none_of_it(state: str, pool: str) -> None:
    """Threads made before the state was set, in it, and after it: they compute alike, then and ever after."""
    command = [sys.executable, "-c", PROGRAM, state, pool, *THREADED]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(set(lines)) == len(THREADED), sorted(set(lines))
    assert len(lines) == len(THREADED) * {"before": 6, "during": 5, "after": 3}[pool]
