"""Orders of sums that are given by number: what of them decides bits, and what is said of them."""

import pytest

from lowprec import Accumulation
from tests.ipu_core.train.test_loop import batches, bits, loop


def test_the_formats_of_pinned_orders_decide_nothing_and_are_not_in_a_digest() -> None:
    plain = loop("fp16.32")
    number = next(e.number for e, _ in plain.sums().values() if e.op == "dot")
    pins = [{number: Accumulation(group=4, accumulate=fmt, out=out)} for fmt, out in
            (("float32", None), ("float16", None), ("float32", "bfloat16"))]  # fmt: skip
    made = [loop("fp16.32", accumulations=each) for each in pins]
    assert len({one.training.digest() for one in made}) == 1
    assert len({one.training for one in made}) == 1
    assert len({bits(one) for one in made if one.run(batches, 3).size}) == 1
    for one in (*made, plain):
        orders = {equation.number: order for equation, order in one.sums().values()}
        assert dict(one.accumulations) == orders
        assert {order.accumulate.name for order in orders.values()} == {"float32"}
        again = loop("fp16.32", accumulations=one.accumulations)
        assert dict(again.accumulations) == orders
        assert again.run(batches, 3).tobytes() == loop("fp16.32", accumulations=orders).run(batches, 3).tobytes()
    assert made[0].accumulations[number] == Accumulation(group=4, out="float16")
    assert set(made[0].accumulations) == set(plain.accumulations)  # the others have their own, the usual one


def test_an_order_of_what_is_no_sum_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no sum of the step has the numbers \[1, 999\]; there are \[0, "):
        loop("fp16.32", accumulations={0: Accumulation(), 1: Accumulation(), 999: Accumulation()})
