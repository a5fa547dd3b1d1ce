"""Slow runs alone try all examples."""

import pytest

from tests.examples import examples, first


def test_the_later_examples_are_left_to_the_slow_tests(request: pytest.FixtureRequest) -> None:
    quick = request.config.option.markexpr.startswith("not slow")
    assert examples(3, 300).max_examples == (3 if quick else 300)
    assert examples(3, 300).derandomize
    assert [bool(param.marks) for param in first(1, "ab")] == [False, True]
