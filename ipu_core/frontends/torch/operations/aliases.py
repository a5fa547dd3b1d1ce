"""Operations of torch under other names, which `torch.export` leaves as they were written."""

from __future__ import annotations

from collections.abc import Mapping

ALIASES: Mapping[str, str] = {
    "absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "positive": "alias", "special_expit": "sigmoid", "special_erf": "erf", "special_erfc": "erfc",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_log1p": "log1p", "special_logit": "logit",
    "special_xlogy": "xlogy", "special_softmax": "softmax", "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "concat": "cat", "concatenate": "cat", "row_stack": "vstack", "moveaxis": "movedim",
    "adjoint": "mT", "mH": "mT", "matrix_H": "mT",
}  # fmt: skip
"""By name that which says the same of the same arguments; numbers here are real, so an adjoint is a transpose."""
