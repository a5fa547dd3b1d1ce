"""Refusals name the line of the user's code, in whatever kind of function it stands, or say what is known of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from ipu_core import from_torch
from ipu_core.errors import NotCovered

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.ones(3, 3)


def uncovered(x: Any) -> Any:
    return torch.linalg.svd(x)[1].sum()


def of_class(forward: Callable[..., Any]) -> Any:
    """A layer of a class made by `type`."""
    return type("Made", (nn.Module,), {"forward": forward})()


def with_partial() -> Any:
    layer = nn.Module()
    layer.forward = functools.partial(lambda factor, x: uncovered(factor * x), 2.0)
    return layer


def executed() -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec("def forward(self, x):\n    y = x + 1\n    return torch.linalg.svd(y)[1].sum()\n", names)
    return of_class(names["forward"])


def line(function: Callable[..., Any], more: int = 0) -> str:
    return rf"test_torch_refusals\.py:{inspect.getsourcelines(function)[1] + more}: "


ALONE = of_class(lambda self, x: torch.linalg.svd(x)[1].sum())
SVD = r"aten\.linalg_svd is not covered"


@pytest.mark.skipif(
    not hasattr(torch.fx.proxy.TracerBase, "_filter_traceback_frames"),
    reason="this torch keeps frames of forward alone",
)
@pytest.mark.parametrize(
    "module, loss, words",
    [
        (ALONE, None, rf"by the model itself, .*{line(type(ALONE).forward)}.*lambda self"),
        (nn.Sequential(nn.Linear(3, 3), ALONE), None, rf"by layer 1 \(Made\), .*{line(type(ALONE).forward)}"),
        (with_partial(), None, rf"by the model itself, .*{line(uncovered, 1)}return torch"),
        (executed(), None, "by the model itself, <string>:3: in forward; ipu_core"),
        (nn.Linear(3, 3), lambda y, _: uncovered(y), rf"by the loss, .*{line(uncovered, 1)}return torch"),
        (nn.Linear(3, 3), functools.partial(lambda k, y, _: uncovered(k * y), 2), rf"loss, .*{line(uncovered, 1)}"),
        (nn.Linear(3, 3), torch.linalg.solve, "aten.* is not covered .* asked for by the loss; ipu_core"),
    ],
)  # fmt: skip
def test_the_line_is_the_user_s(module: Any, loss: Any, words: str) -> None:
    with pytest.raises(NotCovered, match=words) as refusal:
        from_torch(module, (X,) if loss is None else (X, X), loss)
    assert "\n" not in str(refusal.value)


def wrong(x: Any) -> Any:
    return x @ x[:2]


def test_an_error_of_the_model_itself_has_its_line() -> None:
    with pytest.raises(ValueError, match=rf"cannot capture Made: .*; .*{line(wrong, 1)}return x @ x") as refusal:
        from_torch(of_class(lambda self, x: wrong(x)), (X,))
    assert "\n" not in str(refusal.value)


class Largest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3))

    def forward(self, index: Any, x: Any) -> Any:
        return self.w.scatter_reduce(0, index, x, "amax", include_self=False).sum()


@pytest.mark.parametrize(
    "index, width, words",
    [
        (torch.tensor([[0, 1, 2], [1, 1, 0]]), 3, "an index that is another along other axes"),
        (torch.tensor([[0], [1]]).expand(2, 3), 3, "an index that is another along other axes"),  # the next may be
        (torch.tensor([[0], [1]]), 3, "an index of another shape"),
        (torch.tensor([[0], [1]]), 1, "an index of another shape"),
    ],
)  # fmt: skip
def test_the_largest_by_an_index_of_a_batch_is_refused_where_it_is_no_vector(
    index: Any, width: int, words: str
) -> None:
    with pytest.raises(NotCovered, match=rf"scatter_reduce is not covered \({words}.*test_torch_refusals\.py:"):
        from_torch(Largest(), (index, torch.randn(2, width)), eager_check=False)


def test_torch_s_own_ways_are_put_back() -> None:
    tracer, name = torch.fx.proxy.TracerBase, "_filter_traceback_frames"
    kept = getattr(tracer, name, None)
    with pytest.raises(ValueError, match="cannot capture"):
        from_torch(of_class(lambda self, x: wrong(x)), (X,))
    assert getattr(tracer, name, None) is kept


IMAGE, PLACES = torch.rand(2, 1, 4, 4), torch.rand(2, 3, 3, 2)
LABELS = torch.tensor([1, 2, 1])


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda w: nn.functional.grid_sample(w * IMAGE, PLACES, "bicubic", align_corners=False), "mode='bicubic'"),
        (
            lambda w: nn.functional.grid_sample(w * IMAGE, PLACES, padding_mode="reflection", align_corners=False),
            "padding_mode='reflection'",
        ),
        (
            lambda w: nn.functional.grid_sample(w * IMAGE[:, None], torch.rand(2, 3, 3, 3, 3), align_corners=False),
            r"volumes \(3d\)",
        ),
        (
            lambda w: nn.functional.affine_grid(w * torch.rand(2, 3, 4), (2, 1, 3, 3, 3), align_corners=False),
            r"volumes \(3d\)",
        ),
        (
            lambda w: nn.functional.ctc_loss((w * torch.rand(5, 2, 3)).log_softmax(-1), LABELS, (5, 5), (2, 1)),
            r"targets of all rows in one array: pad them to \(rows, labels\)",
        ),
    ],
)
def test_parts_of_operations_are_refused_by_name(function: Callable[..., Any], words: str) -> None:
    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x: Any) -> Any:
            return function(self.w * x.mean()).sum()

    with pytest.raises(NotCovered, match=words):
        from_torch(Of(), (X,))
