"""Nets that find noise again, and autoencoders of images, of diffusers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.ipu_core.frontends.torch_zoo import BATCHES, Made

ROWS = 2


class Sample(nn.Module):
    """A net of diffusers whose output is one tensor."""

    def __init__(self, model: Any, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Any) -> Any:
        return self.model(**dict(zip(self.names, given, strict=True)), return_dict=False)[0]


def noise(side: int, channels: int = 3) -> Any:
    return torch.randn(ROWS, channels, side, side)


def times() -> Any:
    return torch.randint(0, 1000, (ROWS,))


def rows(*make: Callable[[], Any]) -> list[Any]:
    return [tuple(each() for each in make) for _ in range(BATCHES)]


def unet(package: Any) -> Made:
    model = package.UNet2DModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
    )  # fmt: skip
    return Sample(model, ("sample", "timestep")), rows(partial(noise, 16), times, partial(noise, 16)), F.mse_loss


def told_unet(package: Any) -> Made:
    model = package.UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4, cross_attention_dim=12,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
    )  # fmt: skip
    names = ("sample", "timestep", "encoder_hidden_states")
    texts = partial(torch.randn, ROWS, 5, 12)
    return Sample(model, names), rows(partial(noise, 8, 4), times, texts, partial(noise, 8, 4)), F.mse_loss


def along(package: Any) -> Made:
    """A net along a line, as planners have."""
    model = package.UNet1DModel(
        sample_size=16, in_channels=2, out_channels=2, block_out_channels=(32, 64), extra_in_channels=64,
        layers_per_block=1,
        down_block_types=("DownBlock1DNoSkip", "DownBlock1D"), up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
    )  # fmt: skip
    line = partial(torch.randn, ROWS, 2, 16)
    return Sample(model, ("sample", "timestep")), rows(line, times, line), F.mse_loss


class Autoencoder(nn.Module):
    """An autoencoder with the mean of its code."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model.decode(self.model.encode(x).latent_dist.mode()).sample


BLOCKS = {
    "block_out_channels": (8, 16), "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2, "norm_num_groups": 4, "sample_size": 16,
}  # fmt: skip


def autoencoder(package: Any) -> Made:
    return Autoencoder(package.AutoencoderKL(**BLOCKS)), rows(partial(noise, 16), partial(noise, 16)), F.mse_loss


def quantized(package: Any) -> Made:
    """VQ: the code is the nearest of a book."""
    model = package.VQModel(num_vq_embeddings=16, latent_channels=4, **BLOCKS)
    return Sample(model, ("sample",)), rows(partial(noise, 16), partial(noise, 16)), F.mse_loss


def dit(package: Any) -> Made:
    model = package.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, norm_num_groups=4,
        sample_size=8, patch_size=2, num_embeds_ada_norm=1000,
    )  # fmt: skip
    for part in model.modules():
        if type(part).__name__ == "LabelEmbedding":
            part.dropout_prob = 0.0
    names = ("hidden_states", "timestep", "class_labels")
    kinds = partial(torch.randint, 0, 10, (ROWS,))
    return Sample(model, names), rows(partial(noise, 8, 4), times, kinds, partial(noise, 8, 4)), F.mse_loss


def sd3(package: Any) -> Made:
    model = package.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=2, joint_attention_dim=12, caption_projection_dim=16, pooled_projection_dim=6,
        pos_embed_max_size=8,
    )  # fmt: skip
    names = ("hidden_states", "timestep", "encoder_hidden_states", "pooled_projections")
    texts, pooled = partial(torch.randn, ROWS, 5, 12), partial(torch.randn, ROWS, 6)
    return Sample(model, names), rows(partial(noise, 8, 4), times, texts, pooled, partial(noise, 8, 4)), F.mse_loss


def flux(package: Any) -> Made:
    model = package.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=12, pooled_projection_dim=6, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    names = ("hidden_states", "timestep", "encoder_hidden_states", "pooled_projections", "img_ids", "txt_ids")
    line = partial(torch.randn, ROWS, 16, 4)
    places = [partial(torch.rand, 16, 3), partial(torch.zeros, 5, 3)]
    texts, pooled = partial(torch.randn, ROWS, 5, 12), partial(torch.randn, ROWS, 6)
    return Sample(model, names), rows(line, partial(torch.rand, ROWS), texts, pooled, *places, line), F.mse_loss


def prior(package: Any) -> Made:
    model = package.PriorTransformer(num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=12,
                                     num_embeddings=5, additional_embeddings=4)  # fmt: skip
    names = ("hidden_states", "timestep", "proj_embedding", "encoder_hidden_states")
    row = partial(torch.randn, ROWS, 12)
    return Sample(model, names), rows(row, times, row, partial(torch.randn, ROWS, 5, 12), row), F.mse_loss


MODELS: dict[str, Callable[[Any], Made]] = {
    "UNet2DModel": unet, "UNet2DConditionModel": told_unet, "UNet1DModel": along, "AutoencoderKL": autoencoder,
    "VQModel": quantized, "DiTTransformer2DModel": dit, "SD3Transformer2DModel": sd3, "FluxTransformer2DModel": flux,
    "PriorTransformer": prior,
}  # fmt: skip
