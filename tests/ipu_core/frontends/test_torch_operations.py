"""Every operation of the table in ideal arithmetic: the value and the gradient that torch has in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import from_torch
from ipu_core.frontends.torch.interpret import name_of
from ipu_core.frontends.torch.operations import OPERATIONS
from ipu_core.frontends.torch.operations.noise import TABLE as NOISE
from tests.ipu_core.frontends.torch_peer import as_far_as_torch_goes, by_torch, ours

torch = pytest.importorskip("torch")
F = torch.nn.functional

# Of a, b (2, 3, 4), p (2, 3, 4) above 0, m (4, 4), images i (2, 4, 6, 6), n (2, 3) integers below 4, t truth values
# (2, 3, 4): each gives the operations that it is named by.
ELEMENTS = {
    "neg abs square": lambda v: -v.a + v.b.abs() + v.a.square(),
    "reciprocal sqrt rsqrt": lambda v: v.p.reciprocal() + v.p.sqrt() + v.p.rsqrt(),
    "exp log tanh": lambda v: v.a.exp() + v.p.log() + v.b.tanh(),
    "erf erfc sigmoid": lambda v: v.a.erf() + v.b.sigmoid() + torch.erfc(v.b),
    "sin cos tan": lambda v: v.a.sin() + v.b.cos() + (v.a / 4).tan(),
    "add sub rsub": lambda v: torch.add(v.a, v.b, alpha=2) - torch.sub(v.a, 3, alpha=0.5) + (1 - v.b),
    "mul div pow": lambda v: v.a * v.b / v.p + v.a**3 + v.p**0.5 + v.p**-1 + v.p**1.5 + v.p**2.3 + 2**v.a,
    "maximum minimum": lambda v: torch.maximum(v.a, v.b) * 2 + torch.minimum(v.a, v.p),
    "max.other min.other": lambda v: torch.max(v.a, v.b) * 2 + torch.min(v.a, v.p),
    "addcmul addcdiv lerp": lambda v: (
        torch.addcmul(v.a, v.b, v.p, value=2) + torch.addcdiv(v.a, v.b, v.p) + torch.lerp(v.a, v.b, 0.3)
    ),
    "exp2 expm1 log1p log2 log10": lambda v: v.a.exp2() + v.b.expm1() + v.p.log1p() + v.p.log2() + v.p.log10(),
    "sign": lambda v: v.a.sign() * v.b,
    "floor ceil trunc fix round frac": lambda v: (
        (9 * v.a).floor() * v.b
        + (9 * v.b).ceil() * v.a
        + (9 * v.a).trunc() * v.p
        + torch.fix(9 * v.b)
        + (9 * v.a).frac()
        + (9 * v.b).round() * v.a
        + v.n.floor().unsqueeze(-1) * v.a
    ),
    "round.decimals": lambda v: v.a.round(decimals=1) * v.b + (99 * v.b).round(decimals=-1) * v.a,
    "fmod remainder floor_divide": lambda v: (
        torch.fmod(9 * v.a, v.p)
        + torch.remainder(9 * v.b, -v.p)
        + (9 * v.a) % 2
        + (7 * v.b.detach() // v.p.detach()) * v.a
        + torch.remainder(3, v.p.detach()) * v.a
        + torch.floor_divide(9 * v.a.detach(), -2) * v.b
        + (v.n // 2 + v.n % 2).unsqueeze(-1) * v.b
    ),
    "quotients without fractions": lambda v: (
        torch.div(9 * v.a, v.p, rounding_mode="floor") * v.b
        + torch.div(9 * v.b, 0.7, rounding_mode="trunc") * v.a
        + v.a / v.p
        + torch.div(v.n, 2, rounding_mode="trunc").unsqueeze(-1) * v.a
    ),
    "long int": lambda v: (
        v.m[(v.p[..., 0] * 2).long().clamp(0, 3)].sum(2)
        + F.embedding((v.a[0] * 2).int().abs().clamp(max=3), v.m)[:, :2, 0].sum()
        + F.one_hot((v.p[..., 1] * 2).long().clamp(0, 3), 4).sum(2) * v.a[..., 0]
        + (v.a[..., 0] * 9).long() * v.b[..., 0]
        + v.m[:3][torch.arange(3), (v.p[0, :, 1] * 2).long().clamp(0, 3)]
    ),
    "eq ne gt lt ge le": lambda v: (
        (v.a > v.b) * v.a + (v.a < 0) * v.b + (v.a >= 0.1) * v.p + (v.p <= v.a) * v.p + (v.a == v.b) + (v.a != 0)
    ),
    "logical_and logical_or logical_not": lambda v: (
        v.a * ((v.a > 0) & (v.b > 0))
        + v.b * ~((v.a > 0) | (v.b > 0))
        + torch.logical_and(v.a, v.b)
        + torch.logical_or(v.a, v.b)
        + torch.logical_not(v.a)
    ),
    "isnan where masked_fill": lambda v: (
        torch.where(v.t, v.a, v.b) + v.a.masked_fill(v.t, 2.0) + torch.where(v.a > 0, v.a, 0.0) + v.b.isnan()
    ),
    "clamp clamp_min clamp_max": lambda v: (
        v.a.clamp(-0.5, 0.5) + v.b.clamp_min(0.1) + v.a.clamp_max(0.2) + torch.clip(v.b, 0, 1)
    ),
    "silu gelu softplus log_sigmoid": lambda v: (
        F.silu(v.a) + F.gelu(v.b) + F.gelu(v.a, approximate="tanh") + F.softplus(v.b, 2) + F.logsigmoid(v.a)
    ),
    "relu relu6 hardtanh hardsigmoid hardswish": lambda v: (
        F.relu(v.a) + F.relu6(v.b * 6) + F.hardtanh(v.a) + F.hardsigmoid(v.b * 3) + F.hardswish(v.a * 3)
    ),
    "mish elu selu celu": lambda v: F.mish(v.a) + F.elu(v.b, 0.7) + F.selu(v.a) + F.celu(v.b, 1.3),
    "leaky_relu prelu glu": lambda v: F.glu(F.leaky_relu(v.a, 0.2) + F.prelu(v.b, v.m[0, :3])),
    "threshold hardshrink": lambda v: (
        F.threshold(v.a, 0.1, 2.0) + F.hardshrink(v.b) + F.softshrink(v.a) + F.tanhshrink(v.b) + F.softsign(v.a)
    ),
    "to clone detach": lambda v: (
        v.a.to(torch.float64).float().clone() + v.b.detach() * v.a + v.t.float() * v.b + v.n.float().unsqueeze(-1) * v.a
    ),
    "of integers": lambda v: (v.n - 1) * v.a[..., 0] + v.n.eq(2) * v.b[..., 1] + (v.n + v.n > 3) * v.b[..., 0],
    "in place": lambda v: _in_place(v),
    "of shapes": lambda v: torch.zeros_like(v.a) + torch.full_like(v.a, 2) * v.a + v.b.new_ones(3, 4) + torch.arange(4),
}
SHAPES = {
    "view reshape flatten unflatten": lambda v: v.a.view(6, 4).reshape(2, 12).unflatten(1, (3, 4)).flatten(1),
    "squeeze unsqueeze expand": lambda v: v.a.unsqueeze(1).expand(2, 5, 3, 4) * v.b.unsqueeze(1).squeeze(1)[:, None],
    "permute transpose t mT movedim": lambda v: (
        v.a.permute(2, 0, 1)[..., :3] + v.b.transpose(0, 2).movedim(-1, 1) + v.m.t()[:, :2, None] + v.m.mT[:, None, :3]
    ),
    "select slice narrow": lambda v: (
        v.a[:, 1] + v.a[:, -1, :] + v.b[:, ::2, 1:3].sum(1, keepdim=True).mean() + v.b.narrow(1, 1, 1).squeeze(1)
    ),
    "chunk split unbind": lambda v: (
        v.a.chunk(2, -1)[1] + v.b.split([1, 3], -1)[1][..., :2] + torch.stack(v.a.unbind(2)[:2], 2) + v.b.split(2, 2)[0]
    ),
    "cat stack hstack": lambda v: (
        torch.cat([v.a, v.b[:, :1]], 1).sum(1)
        + torch.stack([v.a, v.b], 1).sum((1, 2))
        + torch.hstack([v.a, v.b]).sum(1)
    ),
    "repeat repeat_interleave tile": lambda v: (
        v.a.repeat(2, 1, 3).sum(0) + v.b.repeat_interleave(3, 2)[0] + v.a.tile(3)[1]
    ),
    "flip roll": lambda v: v.a.flip(0, 2) + v.b.roll(1, 2) + v.b.roll((1, -1), (0, 1)) + v.a.roll(5),
    "pad": lambda v: (
        F.pad(v.a, (1, -1))
        + F.pad(v.b, (0, 0, 1, 1), value=3.0)[:, :3]
        + F.pad(v.a, (2, 0), mode="reflect")[..., :4]
        + F.pad(v.b, (1, 1), mode="replicate")[..., 1:5]
    ),
    "index index_select": lambda v: (
        v.a[:, [0, 2]]
        + v.b[[0, 1], :, [1, 2]][:, :2, None]
        + v.m[v.n][:, :2]
        + v.a.index_select(1, torch.tensor([2, 2]))
    ),
    "index by a constant mask, whose places torch does not count": lambda v: (
        v.a[torch.ones(2, dtype=torch.bool)] + v.b + v.m[torch.tensor([True, False, True, True])] * v.p[0]
    ),
    "index by rows": lambda v: v.m[:3][torch.arange(3), v.n[0]] + v.a[0][torch.arange(3), v.n[1]],
    "gather": lambda v: (
        v.a.gather(2, v.n.unsqueeze(-1)) + v.b.gather(1, torch.tensor([[[0, 1, 2, 0]], [[2, 2, 1, 0]]]))
    ),
    "index_add scatter_add": lambda v: (
        v.m.index_add(0, v.n[0], v.m[:3], alpha=2)[:3, :3]
        + v.a[0].index_add(1, torch.tensor([0, 0, 3]), v.a[1][:, :3])[:, :3]
        + v.a.new_zeros(3, 5).scatter_add(1, v.n[:1].expand(3, 3), v.a[0][:, :3])[:, :3]
        + v.a.new_zeros(5, 3).scatter_reduce(0, v.n[:1].t().expand(3, 3), v.b[0][:, :3], "sum")[:3]
        + v.m.index_put((v.n[1],), v.m[:3], accumulate=True)[:3, :3]
    ),
    "scatter_reduce of the largest": lambda v: (
        v.m.scatter_reduce(0, v.n[0].view(-1, 1).expand(3, 4), v.b[0], "amax")[:3]
        + v.a[0].scatter_reduce(0, v.n[1].clamp(max=1).view(-1, 1).expand(3, 4), v.b[1], "amin", include_self=False)
        + v.m.scatter_reduce(1, v.n[0].expand(4, 3), v.m[:, 1:].detach(), "amax", include_self=False)[:3]
        + v.m[0].scatter_reduce(0, v.n[0], v.p[0, 0, :3], "amin").sum()
    ),
    "scatter": lambda v: (
        v.a[0].scatter(1, torch.tensor([[3, 0], [1, 2]]), v.b[0, :2, :2])
        + v.b[1].scatter(0, torch.tensor([[2, 0, 1, 1]]), 0.5)
        + v.a[1].scatter(1, v.n.t().expand(3, 2), 2.0)
        + v.b[0].scatter(0, torch.tensor([[1], [0]]), v.a[1].detach())
    ),
    "tril triu": lambda v: v.m.tril() + v.m.triu(1) * 2,
    "index_put": lambda v: _written(v),
    "pixel_shuffle": lambda v: F.pixel_shuffle(v.i, 2),
}
REDUCTIONS = {
    "sum mean": lambda v: v.a.sum() + v.a.sum(1) + v.b.mean((0, 2), keepdim=True).sum() + v.a.mean(),
    "amax amin max min": lambda v: (
        v.a.amax(1) + v.b.amin((0, 1)) + v.a.max() + v.b.min() + v.a.max(1)[0] + v.b.min(1).values
    ),
    "sort argsort msort topk": lambda v: (
        v.a.sort(1)[0]
        + v.b.sort(-1, descending=True).values * v.a
        + torch.sort(v.p, stable=True, dim=0)[0] * v.b
        + v.a.msort() * v.p
        + v.b.topk(2, 1)[0].sum(1, keepdim=True) * v.a
        + v.p.topk(3, largest=False)[0].prod(-1, keepdim=True)
    ),
    "places in order": lambda v: (
        v.a.argsort(1) * v.b
        + v.b.argsort(-1, descending=True) * v.a
        + torch.argsort(v.p, stable=True, dim=0) * v.a
        + v.b.topk(2, 1, largest=False)[1].sum(1, keepdim=True) * v.a
        + v.a.gather(2, v.b.sort(2)[1])
        + v.n.sort(1, descending=True)[0].unsqueeze(-1) * v.b
        + v.n.sort(stable=True, dim=1)[1].unsqueeze(-1) * v.p
        + v.t.sort(stable=True, dim=2)[1] * v.a
    ),
    "argmax argmin max.dim min.dim": lambda v: (
        v.a.argmax(2, keepdim=True) * v.b
        + v.b.argmin(1).unsqueeze(1) * v.a
        + v.a.argmax() * v.b
        + v.a.max(2)[1].unsqueeze(2) * v.b
        + v.b.min(0, keepdim=True).indices * v.p
        + v.m[v.a.argmax(2)]
        + v.n.argmax(1)[:, None, None] * v.a
        + v.n.max(1)[1][:, None, None] * v.b
    ),
    "var std": lambda v: v.a.var(1) + v.b.std((0, 1), unbiased=False) + v.a.var() + v.b.std(1, correction=0),
    "norm": lambda v: (
        v.a.norm()
        + torch.linalg.vector_norm(v.b, 1, -1).sum()
        + F.normalize(v.a, dim=-1)
        + v.b.norm(dim=-1, p=float("inf")).mean()
    ),
    "logsumexp softmax log_softmax": lambda v: (
        v.a.logsumexp(1, keepdim=True) + v.b.softmax(-1) + v.a.log_softmax(1) + F.softmin(v.b, 0)
    ),
    "cumsum prod": lambda v: v.a.cumsum(1) + v.b.prod(2, keepdim=True) + v.n.cumsum(1).unsqueeze(-1) * v.a,
    "all any": lambda v: v.a * (v.b > 0).any(1, keepdim=True) + v.b * (v.a > -1).all(),
    "cosine_similarity": lambda v: F.cosine_similarity(v.a, v.b, dim=-1),
}
PRODUCTS = {
    "linear matmul mm bmm mv dot": lambda v: (
        F.linear(v.a, v.m[:3], v.m[0, :3])
        + torch.bmm(v.a, v.b.mT)
        + (v.a @ v.m)[..., :3]
        + v.m.mm(v.m)[:3, :3]
        + v.m.mv(v.m[0])[:3]
        + v.m[0].dot(v.m[1])
    ),
    "addmm baddbmm addmv outer": lambda v: (
        torch.addmm(v.m, v.m, v.m, beta=0.5, alpha=2)[:3]
        + torch.baddbmm(v.a, v.b, v.m.expand(2, 4, 4))
        + torch.outer(v.m[0, :3], v.m[1])
        + torch.addmv(v.m[0], v.m, v.m[1])
    ),
    "bilinear": lambda v: F.bilinear(v.a, v.b, v.m.expand(5, 4, 4), v.m.flatten()[:5]),
    "einsum": lambda v: (
        torch.einsum("bij,bkj->bik", v.a, v.b)
        + torch.einsum("...j,jk->...k", v.a, v.m)[..., :3]
        + torch.einsum("ij,jk,kl->il", v.m, v.m, v.m)[:3, :3]
        + torch.einsum("bij->b", v.a)[:, None, None]
        + torch.einsum("bij,bij->bi", v.a, v.b)[..., None]
    ),
    "scaled_dot_product_attention": lambda v: (
        F.scaled_dot_product_attention(v.a, v.b, v.b)
        + F.scaled_dot_product_attention(v.a, v.b, v.p, is_causal=True)
        + F.scaled_dot_product_attention(v.a, v.b, v.p, attn_mask=v.a[..., :3])
        + F.scaled_dot_product_attention(v.a, v.b, v.p, attn_mask=torch.ones(3, 3).tril().bool(), scale=0.3)
    ),
    "attention in groups": lambda v: F.scaled_dot_product_attention(v.i, v.i[:, :2], v.i[:, 2:], enable_gqa=True),
}
IMAGES = {
    "conv2d": lambda v: (
        F.conv2d(v.i, v.k, v.m[0, :3], padding=1).sum(1)
        + F.conv2d(v.i, v.k, padding="same", dilation=2).sum(1)
        + F.conv2d(v.i, v.k[:2, :2].reshape(4, 1, 3, 3), groups=4, stride=2).mean()
    ),
    "conv1d": lambda v: (
        F.conv1d(v.a, v.k[:, :3, :, 0], v.m[0, :3], padding=1, stride=2)
        + F.conv1d(v.i[:, 0], v.i[:1, 0, :, :2], padding=1)[..., :2]
    ),
    "conv_transpose2d": lambda v: (
        F.conv_transpose2d(v.i[:, :3], v.k, stride=2, padding=1, output_padding=1).mean(1)
        + F.conv_transpose2d(v.i, v.k[0].reshape(4, 1, 3, 3), groups=2, padding=1).repeat(1, 1, 2, 2).mean(1)
    ),
    "conv_transpose1d": lambda v: F.conv_transpose1d(v.a, v.k[:, :2, :, 0], v.m[0, :2], stride=2, dilation=2),
    "max_pool2d max_pool1d": lambda v: (
        F.max_pool2d(v.i, 2)
        + F.max_pool2d(v.i, 3, stride=2, padding=1)
        + F.max_pool2d(v.i, 2, stride=2, dilation=2, padding=1)
        + F.max_pool1d(v.i[:, 0], 2)[:, None, :4, None].mean()
    ),
    "avg_pool2d avg_pool1d": lambda v: (
        F.avg_pool2d(v.i, 2)
        + F.avg_pool2d(v.i, 3, 2, 1)
        + F.avg_pool2d(v.i, 3, 2, 1, count_include_pad=False)
        + F.avg_pool2d(v.i, 2, divisor_override=3)
        + F.avg_pool1d(v.i[:, 0], 2).mean()
    ),
    "max_pool2d and max_pool1d beyond the image": lambda v: (
        F.max_pool2d(v.i, 3, stride=2, ceil_mode=True) * v.i[:, :, :3, 3:]
        + F.max_pool2d(v.i, (2, 3), stride=(3, 2), padding=1, dilation=(2, 1), ceil_mode=True).mean()
        + F.max_pool2d(v.i, 2, stride=7, padding=1, ceil_mode=True).mean()  # a last window in the padding alone: none
        + F.max_pool1d(v.i[:, 0], 4, ceil_mode=True).mean()
    ),
    "avg_pool2d and avg_pool1d beyond the image": lambda v: (
        F.avg_pool2d(v.i, 3, stride=2, ceil_mode=True) * v.i[:, :, :3, 3:]
        + F.avg_pool2d(v.i, 4, stride=3, padding=1, ceil_mode=True) * v.i[:, :, 3:, :3]
        + F.avg_pool2d(v.i, 4, stride=3, padding=1, ceil_mode=True, count_include_pad=False) * v.i[:, :, 3:, 3:]
        + F.avg_pool2d(v.i, 3, stride=2, ceil_mode=True, divisor_override=5) * v.i[:, :, :3, :3]
        + F.avg_pool1d(v.i[:, 0], 4, ceil_mode=True).mean()
    ),
    "adaptive_avg_pool": lambda v: (
        F.adaptive_avg_pool2d(v.i, 1) + F.adaptive_avg_pool2d(v.i, (3, 4)).mean() + F.adaptive_avg_pool1d(v.a, 2).sum()
    ),
    "adaptive_max_pool": lambda v: F.adaptive_max_pool2d(v.i, 2) + F.adaptive_max_pool1d(v.a, 3).mean(),
    "upsample_nearest2d": lambda v: F.interpolate(v.i, scale_factor=2, mode="nearest"),
    "grid_sampler affine_grid_generator": lambda v: sum(
        F.grid_sample(v.i, grid, mode, beyond, align_corners=align).square().mean()
        for align in (False, True)
        for grid in (1.3 * v.a[:, :, :2].unsqueeze(1), F.affine_grid(v.b[:, :2, :3], (2, 4, 5, 1), align_corners=align))
        for mode in ("bilinear", "nearest")
        for beyond in ("zeros", "border")
    ),
    "grid_sampler at the elements": lambda v: sum(  # where slopes jump
        F.grid_sample(
            v.i,
            F.affine_grid(torch.eye(2, 3) + 0 * v.b[:, :2, :3], v.i.shape, align_corners=True),
            padding_mode=beyond,
            align_corners=True,
        )
        for beyond in ("zeros", "border")
    ),
}
NORMS = {
    "layer_norm rms_norm": lambda v: (
        F.layer_norm(v.a, (4,), v.m[0], v.m[1]) + F.layer_norm(v.b, (3, 4)) + F.rms_norm(v.a, (4,), v.m[2], 1e-6)
    ),
    "group_norm instance_norm": lambda v: F.group_norm(v.i, 2, v.m[0], v.m[1]) + F.instance_norm(v.i),
    "batch_norm": lambda v: (
        F.batch_norm(v.i, None, None, v.m[0], v.m[1], training=True)
        + F.batch_norm(v.i, v.m[0].detach(), v.m[1].detach().square() + 1, v.m[2], v.m[3])
    ),
}
LOSSES = {
    "cross_entropy_loss": lambda v: (
        F.cross_entropy(v.a.transpose(1, 2), v.n)
        + F.cross_entropy(v.a.flatten(0, 1), v.n.flatten(), weight=v.p[0, 0].detach(), label_smoothing=0.1)
        + F.cross_entropy(v.a.flatten(0, 1), v.n.flatten(), ignore_index=2, reduction="sum")
        + F.cross_entropy(v.a, v.b.softmax(1), label_smoothing=0.1)
    ),
    "nll_loss": lambda v: (
        F.nll_loss(v.a.flatten(0, 1).log_softmax(1), v.n.flatten())
        + F.nll_loss(v.a.transpose(1, 2).log_softmax(1), v.n, weight=v.p[0, 0].detach())
        + F.cross_entropy(v.a.flatten(0, 1), v.n.flatten(), reduction="none").max()
    ),
    "mse_loss l1_loss smooth_l1_loss huber_loss": lambda v: (
        F.mse_loss(v.a, v.b)
        + F.l1_loss(v.a, v.b, reduction="sum")
        + F.smooth_l1_loss(v.a, v.b, beta=0.7)
        + F.huber_loss(v.a, v.b, delta=0.8)
    ),
    "kl_div": lambda v: (
        F.kl_div(v.a.log_softmax(-1), v.b.softmax(-1), reduction="batchmean") + F.kl_div(v.a, v.b, log_target=True)
    ),
    "binary_cross_entropy": lambda v: (
        F.binary_cross_entropy(v.a.sigmoid(), v.t.to(v.a.dtype))
        + F.binary_cross_entropy_with_logits(v.b, v.t.to(v.a.dtype), pos_weight=v.p[0, 0].detach())
        + F.binary_cross_entropy_with_logits(v.a, v.b.sigmoid(), weight=v.p.detach(), reduction="sum")
    ),
    "soft_margin_loss": lambda v: F.soft_margin_loss(v.a, v.b.sign().detach()),
    "embedding one_hot": lambda v: (
        F.embedding(v.n, v.m, padding_idx=1) + F.one_hot(v.n, 4) * v.a + F.embedding(v.n.masked_fill(v.n == 2, 0), v.m)
    ),
}
RECURRENT = {kind: lambda v, kind=kind: v.layers[kind](v.a)[0] for kind in ("LSTM", "GRU", "RNN")} | {
    f"{kind}Cell": lambda v, kind=kind: v.layers[f"{kind}Cell"](v.a[0])[0] for kind in ("LSTM", "GRU", "RNN")
}
ELSEWHERE = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "bernoulli", *NOISE}
"""Operations that draw, whose tests are of their own."""
MORE = {
    "isfinite isinf nan_to_num logical_xor": lambda v: (
        v.a.isfinite() * v.a
        + torch.isinf(v.b * torch.inf) * v.b
        + torch.where(v.t, v.a, torch.nan).nan_to_num()
        + torch.where(v.t, v.a, torch.inf).nan_to_num(0.5, 2.0, -2.0)
        + torch.logical_xor(v.a > 0, v.b > 0) * v.p
    ),
    "logaddexp sinh cosh xlogy": lambda v: (
        torch.logaddexp(v.a, v.b)
        + torch.logaddexp(v.a, v.a.detach())
        + torch.logaddexp(v.a, torch.tensor(-torch.inf))
        + torch.sinh(v.a)
        + torch.cosh(v.b)
        + torch.xlogy(v.n.unsqueeze(-1), v.p)
        + torch.float_power(v.p, 1.5).to(v.a.dtype)
    ),
    "logit": lambda v: v.a.sigmoid().logit() + (v.b * 0.5).sigmoid().logit(0.4),
    "var_mean std_mean aminmax count_nonzero": lambda v: (
        sum(torch.var_mean(v.a, 1))
        + sum(torch.std_mean(v.b, dim=(0, 1), correction=0))
        + sum(torch.var_mean(v.b))
        + torch.aminmax(v.a, dim=1)[0]
        + torch.aminmax(v.a)[1]
        + torch.count_nonzero(v.n, 1).unsqueeze(-1) * v.a[:, 0]
    ),
    "median kthvalue quantile": lambda v: (
        v.a.median()
        + v.a.median(1)[0]
        + v.b.median(2, keepdim=True)[0].sum(1)
        + v.b.kthvalue(2, 1)[0]
        + torch.quantile(v.a, 0.3, dim=1)
        + torch.quantile(v.b, 0.5)
        + v.a.median(1)[1] * v.b[:, 0]
    ),
    "cumprod norms": lambda v: (
        v.p.cumprod(1)
        + v.a.norm(3, dim=1, keepdim=True)
        + torch.linalg.vector_norm(v.b, 0, dim=2, keepdim=True) * v.b
        + torch.linalg.vector_norm(v.a * torch.zeros(4), 2.5, dim=2, keepdim=True)
    ),
    "diagonal trace diag_embed": lambda v: (
        v.m.diagonal()
        + v.m.diagonal(1).sum()
        + v.a.diagonal(-1, 1, 2).sum()
        + v.m.trace()
        + torch.diag_embed(v.a)[0, 0]
    ),
    "vstack dstack column_stack atleast": lambda v: (
        torch.vstack([v.m[0], v.m[1:3]]).sum(0)
        + torch.dstack([v.m, v.m * 2])[..., 1].sum(1)
        + torch.column_stack([v.m[0], v.m])[:, 1]
        + torch.atleast_3d(v.m)[..., 0].mean(0)
        + torch.atleast_1d(v.m.sum())
        + torch.atleast_2d(v.m[1])[0]
    ),
    "pixel_unshuffle channel_shuffle rot90": lambda v: (
        F.pixel_unshuffle(v.i, 3).flatten() * F.channel_shuffle(v.i, 2).flatten()
        + torch.rot90(v.i, 3, (2, 3)).flatten()
    ),
    "meshgrid take_along_dim": lambda v: (
        sum(x * w for x, w in zip(torch.meshgrid(v.m[0], v.m[1, :3], indexing="xy"), (2.0, v.a[0, :, :]), strict=True))
        + torch.take_along_dim(v.a, v.b.argsort(1), 1)[0]
        + torch.take_along_dim(v.a, torch.tensor([[[2]], [[0]]]), 1)[1]
    ),
    "tensordot multi_dot addbmm": lambda v: (
        torch.tensordot(v.a, v.b, ([0, 2], [0, 2])).sum()
        + torch.linalg.multi_dot([v.m, v.m.T, v.m])
        + torch.addbmm(v.m, v.a.transpose(1, 2), v.b, beta=0.5, alpha=2)
    ),
    "embedding_bag": lambda v: (
        F.embedding_bag(v.n, v.m, mode="sum")
        + F.embedding_bag(v.n, v.m * 2)
        + F.embedding_bag(v.n, v.m, mode="max")
        + F.embedding_bag(v.n.flatten(), v.m, torch.tensor([0, 4]), mode="sum", per_sample_weights=v.a[0].flatten()[:6])
        + F.embedding_bag(v.n.flatten(), v.m, torch.tensor([0, 4, 6]), include_last_offset=True)
    ),
    "unfold im2col": lambda v: (
        v.i.unfold(2, 3, 2).mean() + F.unfold(v.i, (2, 3), dilation=(2, 1), padding=(1, 0), stride=2).square()
    ),
    "upsample of any size": lambda v: (
        F.interpolate(v.i, (9, 5), mode="nearest").mean()
        + F.interpolate(v.i, (9, 5), mode="nearest-exact").square().mean()
        + F.interpolate(v.i[:, 0], 7, mode="nearest").square().mean()
        + F.interpolate(v.i[:, 0], 7, mode="nearest-exact").square().mean()
        + F.interpolate(v.i[:, 0], 9, mode="linear").square().mean()
        + F.interpolate(v.i, scale_factor=1.7, mode="bilinear").square().mean()
        + F.interpolate(v.i, (4, 11), mode="bilinear", align_corners=True)
        + F.interpolate(v.i, (9, 4), mode="bicubic").square().mean()
        + F.interpolate(v.i, scale_factor=2, mode="bicubic", align_corners=True).square().mean()
    ),
    "ctc_loss": lambda v: (
        sum(
            F.ctc_loss(torch.cat([v.a, v.b, v.p]).log_softmax(-1), labels, places, lengths, blank, reduction, zero)
            for labels, places, lengths, blank, reduction, zero in (
                (v.n.repeat(2, 1)[:3], (6, 5, 4), (3, 2, 1), 0, "mean", False),
                (v.n.repeat(2, 1)[:3], torch.tensor([6, 2, 6]), torch.tensor([3, 3, 0]), 2, "sum", True),
                (
                    torch.tensor([[1, 1, -7], [3, 3, 3], [1, 2, 1]]),
                    v.n.new_tensor([6, 6, 6]),
                    v.n.flatten()[:3],
                    0,
                    "mean",
                    True,
                ),
            )
        )
        + F.ctc_loss(v.a.flatten(0, 1), v.n[0, :2] % 3, (6,), (2,), blank=3, reduction="none")
        + F.ctc_loss(v.b.transpose(0, 1), v.n % 2, (3, 3), (1, 1), blank=2, reduction="none").sum()
    ),
    "cdist pairwise_distance": lambda v: (
        torch.cdist(v.a, v.b)
        + torch.cdist(v.a, v.a.detach())
        + torch.cdist(v.a, v.b, p=1)
        + torch.cdist(v.a, v.b, p=torch.inf)
        + F.pairwise_distance(v.a, v.b, keepdim=True)
        + F.pairwise_distance(v.a, v.b, p=3, eps=0.1).unsqueeze(-1)
    ),
    "triplet_margin_loss margin_ranking_loss": lambda v: (
        F.triplet_margin_loss(v.a, v.b, v.p)
        + F.triplet_margin_loss(v.a, v.b, v.p, margin=3.0, p=1, swap=True, reduction="sum")
        + F.margin_ranking_loss(v.a, v.b, v.p.detach().sign() - 2 * v.t, margin=0.3)
    ),
    "hinge_embedding_loss cosine_embedding_loss poisson_nll_loss": lambda v: (
        F.hinge_embedding_loss(v.a, 1.0 - 2 * v.t)
        + F.cosine_embedding_loss(v.a[0], v.b[0], 1.0 - 2 * v.t[0, :, 0], margin=-0.4)
        + F.poisson_nll_loss(v.a, v.n.unsqueeze(-1))
        + F.poisson_nll_loss(v.p, v.n.unsqueeze(-1) * 1.0, log_input=False, full=True, reduction="sum")
    ),
    "_weight_norm": lambda v: torch._weight_norm(v.m, v.m[:, :1].square(), 0) + torch._weight_norm(v.m, v.m[0, 0], -1),
}
OTHER_NAMES = {
    "elements": lambda v: (
        torch.multiply(v.a, torch.absolute(v.b))
        + torch.subtract(v.a, torch.negative(v.b), alpha=2)
        + torch.divide(v.a, v.p) * torch.true_divide(v.b, v.p)
        + v.a.multiply(2) * torch.positive(v.b)
        + torch.greater(v.a, 0) * v.b
        + torch.greater_equal(v.a, v.b) * v.p
        + torch.less(v.a, 0) * v.a
        + torch.less_equal(v.b, v.p) * v.b
        + torch.not_equal(v.a, 0) * v.p
        + torch.divide(9 * v.a, 2, rounding_mode="floor")
    ),
    "special": lambda v: (
        torch.special.expit(v.a)
        + torch.special.erf(v.a) * torch.special.erfc(v.b)
        + torch.special.exp2(v.a)
        + torch.special.expm1(v.b)
        + torch.special.log1p(v.p)
        + torch.special.logit(v.a.sigmoid())
        + torch.special.xlogy(v.n.unsqueeze(-1), v.p)
        + torch.special.softmax(v.a, 1)
        + torch.special.log_softmax(v.b, 2)
        + torch.special.logsumexp(v.a, 1, keepdim=True)
    ),
    "joined and turned": lambda v: (
        torch.concat([v.a, v.b], 1)[:, :3]
        + torch.concatenate([v.a, v.b], 1)[:, 3:]
        + v.m.adjoint()[:3]
        + v.m.mH[1:]
        + v.m.H[:3]
        + torch.moveaxis(v.b, 1, 2).moveaxis(2, 1)
        + torch.vstack([v.m, v.m])[3:6]
        + torch.row_stack([v.m, v.m])[2:5]
    ),
    "bits and masks": lambda v: (
        v.a * ((v.a > 0).bitwise_and(v.b > 0))
        + v.b * torch.bitwise_or(v.t, v.a > 0)
        + torch.where(v.t, 1.0, v.a)
        + v.b.clone().zero_()
        + v.t.type_as(v.a)
        + torch.where(v.t, 1.0, 2.0)
    ),
    "shapes": lambda v: (
        v.a.swapaxes(0, 1).contiguous().swapdims(0, 1)
        + v.b.ravel().view_as(v.a)
        + v.m.T[:3]
        + v.p.reshape_as(v.a)
        + torch.broadcast_to(v.m[0], (2, 3, 4))
        + torch.constant_pad_nd(v.a, (0, 1))[..., 1:]
    ),
    "products": lambda v: torch.ger(v.m[0], v.m[1]) * torch.vdot(v.m[0], v.m[1]) + v.m[0].norm() + torch.norm(v.m, 1),
    "runs": lambda v: v.a.tensor_split((1, 3), -1)[1],
    "nearest": lambda v: F.interpolate(v.a, scale_factor=2),
    "RNN of tanh": lambda v: v.layers["RNN of tanh"](v.a)[0],
    "cell of relu": lambda v: v.layers["cell of relu"](v.a[0]),
}
FAMILIES = ELEMENTS | SHAPES | REDUCTIONS | PRODUCTS | IMAGES | NORMS | LOSSES | RECURRENT | MORE | OTHER_NAMES


def _in_place(v: Any) -> Any:
    x = v.a.clone()
    x[:, 1] = v.b[:, 0]
    x[..., 2] *= 3
    x.add_(v.b, alpha=2).mul_(0.5).clamp_(-1, 1)
    x.transpose(0, 1)[0] = 0.25
    for shown in (x.mT, x.swapaxes(0, 1), x.narrow(2, 1, 2), x.ravel(), x.view_as(v.b), x.reshape_as(v.b)):
        shown.mul_(1.5)
    y = torch.zeros(2, 3, 4)
    view = y[:, 1:]
    y[:, :, :2] = v.b[:, :, :2]  # seen through the view
    return x + y + torch.cat([view, view[:, :1]], 1).relu_()


def _written(v: Any) -> Any:
    x, y = v.a.clone(), v.b.clone()
    x[:, [0, 2]] = v.b[:, :2]
    x[v.a.new_zeros(2, 3).bool()] = 1.0
    y[y > 0] = -1.0
    return x + y


class Case(torch.nn.Module):
    """A function of parameters and inputs, as one number that tells its elements apart."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.function = function
        self.a, self.b = (torch.nn.Parameter(torch.randn(2, 3, 4)) for _ in range(2))
        self.p = torch.nn.Parameter(torch.rand(2, 3, 4) + 0.5)
        self.m, self.k = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(3, 4, 3, 3))
        self.i = torch.nn.Parameter(torch.randn(2, 4, 6, 6))
        self.layers = torch.nn.ModuleDict({
            "LSTM": torch.nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), "GRU": torch.nn.GRU(4, 3),
            "RNN": torch.nn.RNN(4, 3, nonlinearity="relu", bias=False), "LSTMCell": torch.nn.LSTMCell(4, 3),
            "GRUCell": torch.nn.GRUCell(4, 3), "RNNCell": torch.nn.RNNCell(4, 3),
            "RNN of tanh": torch.nn.RNN(4, 3), "cell of relu": torch.nn.RNNCell(4, 3, nonlinearity="relu"),
        })  # fmt: skip

    def forward(self, n: Any, t: Any) -> Any:
        self.n, self.t = n, t
        result = self.function(self)
        del self.n, self.t
        weights = torch.cos(torch.arange(result.numel(), dtype=torch.float64)).to(result.dtype)
        return (result.flatten() * weights).sum()


def batch() -> Any:
    torch.manual_seed(4)
    return torch.randint(0, 4, (2, 3)), torch.rand(2, 3, 4) > 0.5


met: dict[str, set[str]] = {}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    module = Case(FAMILIES[name])
    with as_far_as_torch_goes():
        expected = by_torch(module, batch(), double=True)
        model = from_torch(module, batch())
    nodes = [node for node in model.exported.graph.graph.nodes if hasattr(node.target, "_schema")]
    met[name] = {name_met(node) for node in nodes}
    found = ours(model, batch(), exact=True)
    assert found.loss == pytest.approx(expected.loss, rel=3e-7, abs=1e-6)
    size = max(np.abs(gradient).max() for gradient in expected.gradients.values())
    for parameter, gradient in expected.gradients.items():
        np.testing.assert_allclose(found.gradients[parameter], gradient, rtol=2e-6, atol=1e-6 * size, err_msg=parameter)


ORDERS = {
    "ascending": lambda x: torch.sort(x, stable=True, dim=1)[1],
    "descending": lambda x: torch.sort(x, stable=True, dim=1, descending=True)[1],
    "argmax": lambda x: x.argmax(1, keepdim=True) + 10 * x.max(1, keepdim=True)[1],
    "argmin": lambda x: x.argmin(1, keepdim=True) + 10 * x.min(1, keepdim=True)[1],
    "topk": lambda x: (
        x[:, 3:].topk(3)[1] + 10 * x[:, 3:].topk(3, largest=False)[1]
    ),  # torch promises no order of equals
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", ORDERS)
def test_special_values_and_equal_ones_are_in_the_places_of_torch(order: str) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 1.0, -inf, inf, 0.0, nan], [0.0, 2.0, -0.0, inf, 2.0, -inf, 0.5]])

    class Places(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(ORDERS[order](x).shape))

        def forward(self, x: Any) -> Any:
            return (ORDERS[order](x) * self.w).sum()

    module = Places()
    expected, found = by_torch(module, (x,), double=True), ours(from_torch(module, (x,)), (x,), exact=True)
    np.testing.assert_array_equal(found.gradients["w"], expected.gradients["w"])


def name_met(node: Any) -> str:
    """The name of the table that an operation is found by."""
    name = name_of(node)
    base = name.removesuffix("_") if name.endswith("_") and not name.endswith("__") else name
    whole = f"{base}.{node.target._overloadname}"
    return whole if whole in OPERATIONS else base


def test_every_operation_of_the_table_was_met() -> None:
    if met.keys() != FAMILIES.keys():
        pytest.skip("the cases above did not all run")
    left = OPERATIONS.keys() - set().union(*met.values())
    assert sorted(left) == sorted(ELSEWHERE), left
