"""Operations of torch below autograd (aten), sorted by what a precision says of them."""

from __future__ import annotations

from collections.abc import Mapping

_FAMILIES = {
    "softmax": "_softmax _safe_softmax _softmax_backward_data",
    "loss": "_log_softmax _log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward "
    "nll_loss2d_backward mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss "
    "huber_loss_backward binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits "
    "logsumexp",
    "norm": "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "native_batch_norm native_batch_norm_backward _native_batch_norm_legit _batch_norm_with_update "
    "batch_norm_backward _fused_rms_norm _fused_rms_norm_backward",
    "reduction": "sum mean var std var_mean norm linalg_vector_norm cumsum",
}
FAMILIES: Mapping[str, str] = {name: family for family, names in _FAMILIES.items() for name in names.split()}
"""The family of the precision's table; all others are elementwise to it."""

_MOVES = (
    "_to_copy arange bernoulli bernoulli_ clone copy_ empty empty_strided eye fill_ full lift_fresh linspace "
    "masked_fill masked_fill_ new_empty new_empty_strided new_full new_ones new_zeros normal normal_ ones rand "
    "randn resize_ scalar_tensor set_ uniform_ where zero_ zeros "
)
MOVES = frozenset(_MOVES.split())
"""Operations that make no new numbers of old ones, or random ones."""

_HIDDEN = (
    "_cdist_backward _cdist_forward _embedding_bag _fft_c2c _fft_c2r _fft_r2c _int_mm _linalg_eigh _linalg_svd "
    "_native_multi_head_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_fused_attention_overrideable "
    "_sparse_mm _transformer_encoder_layer_fwd _trilinear _weight_norm_interface addbmm addr linalg_cholesky_ex "
    "linalg_inv_ex linalg_lu_factor_ex linalg_qr linalg_solve_ex linalg_solve_triangular mkldnn_convolution "
    "mkldnn_linear mkldnn_rnn_layer mkldnn_rnn_layer_backward segment_reduce "
)
HIDDEN = frozenset(_HIDDEN.split())
"""Operations with products, or long sums of them, that nothing here can round."""

MOMENTS: Mapping[str, str] = {
    "exp_avg": "first_moment", "momentum_buffer": "first_moment", "exp_avg_sq": "second_moment",
    "max_exp_avg_sq": "second_moment", "square_avg": "second_moment", "exp_inf": "second_moment",
    "acc_delta": "second_moment", "row_var": "second_moment", "col_var": "second_moment", "variance": "second_moment",
    "prev": "first_moment", "step_size": "second_moment",
}  # fmt: skip
"""What the optimizers of torch call their moments."""

VIEW_NODES = (
    "TBackward", "TransposeBackward", "ViewBackward", "UnsafeViewBackward", "PermuteBackward", "ExpandBackward",
    "UnsqueezeBackward", "SqueezeBackward", "ReshapeAliasBackward", "SliceBackward", "SelectBackward", "SplitBackward",
    "CloneBackward",
)  # fmt: skip
"""Beginnings of the names of autograd's nodes behind which a parameter is still the parameter."""
