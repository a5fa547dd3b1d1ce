"""Operations, layers and initial values: on NumPy arrays at once and on traced values, in any precision.

Arrays are computed with in the arithmetic of their dtype: float64 in ideal arithmetic, narrower ones in float32 with
one rounding to nearest even per operation. Losses, softmax sums and norm statistics are float32 inside.
"""

from ipu_core.initial import (
    glorot_uniform,
    he_normal,
    he_uniform,
    lecun_normal,
    lecun_uniform,
    mlp_parameters,
    normal,
    uniform,
    unit_parameters,
)
from ipu_core.ir.trace.images import avg_pool2d, conv1d, conv2d, flatten, max_pool2d
from ipu_core.ir.trace.values import (
    concatenate,
    convert,
    matmul,
    mean,
    name_scope,
    reduce_max,
    reduce_sum,
    reshape,
    topk,
    where,
)
from ipu_core.ir.trace.whole_numbers import ceil, floor, floor_divide, fmod, remainder, rint, trunc
from ipu_core.nn.attention import (
    additive_mask,
    attention,
    causal_mask,
    multi_head_attention,
    padding_mask,
    rotary_embedding,
    segment_mask,
)
from ipu_core.nn.checkpoint import checkpoint
from ipu_core.nn.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    cross_entropy_rows,
    mse,
    mse_loss,
    softmax_cross_entropy,
)
from ipu_core.nn.norms import batch_norm, group_norm, layer_norm, rms_norm
from ipu_core.nn.operations import (
    cos,
    dropout,
    embedding,
    erf,
    exp,
    gelu,
    leaky_relu,
    linear,
    log,
    log_softmax,
    log_sum_exp,
    logsumexp,
    maximum,
    minimum,
    mlp,
    one_hot,
    relu,
    rsqrt,
    scale,
    sigmoid,
    silu,
    sin,
    softmax,
    softplus,
    sqrt,
    square,
    stop_gradient,
    tanh,
)
from ipu_core.nn.recurrent import gru, gru_cell, lstm, lstm_cell, scan
from ipu_core.nn.reversible import reversible
from ipu_core.nn.rotations import hadamard
from ipu_core.nn.rounding import OwnRounding, quantize, round
from ipu_core.nn.segments import scatter_add, segment_max, segment_mean, segment_sum

__all__ = [
    "OwnRounding", "additive_mask", "attention", "avg_pool2d", "batch_norm", "binary_cross_entropy_with_logits",
    "causal_mask", "ceil", "checkpoint", "concatenate", "conv1d", "conv2d", "convert", "cos", "cross_entropy",
    "cross_entropy_rows", "dropout", "embedding", "erf", "exp", "flatten", "floor", "floor_divide", "fmod", "gelu",
    "glorot_uniform", "group_norm", "gru", "gru_cell", "hadamard", "he_normal", "he_uniform", "layer_norm",
    "leaky_relu", "lecun_normal", "lecun_uniform", "linear", "log", "log_softmax", "log_sum_exp", "logsumexp",
    "lstm", "lstm_cell", "matmul", "max_pool2d", "maximum", "mean", "minimum", "mlp", "mlp_parameters", "mse",
    "mse_loss", "multi_head_attention", "name_scope", "normal", "one_hot", "padding_mask", "quantize", "reduce_max",
    "reduce_sum", "relu", "remainder", "reshape", "reversible", "rint", "rms_norm", "rotary_embedding", "round",
    "rsqrt", "scale", "scan", "scatter_add", "segment_mask", "segment_max", "segment_mean", "segment_sum",
    "sigmoid", "silu", "sin", "softmax", "softmax_cross_entropy", "softplus", "sqrt", "square", "stop_gradient",
    "tanh", "topk", "trunc", "uniform", "unit_parameters", "where",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted(__all__)
