"""Nets for images of timm and torchvision, small or for small images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tests.ipu_core.frontends.torch_zoo import BATCHES, Made, images, words

Make = Callable[[Any], Any]
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
MIXER = {"num_classes": 10, "img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2}


def classes(make: Make, side: int, rows: int, package: Any) -> Made:
    """Of so many images with so many pixels a side, into ten classes."""
    return without_dropout(make(package)), images(side, rows), F.cross_entropy


def without_dropout(model: Any) -> Any:
    """A model whose dropout keeps all: torch draws its masks otherwise than a captured module."""
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def created(name: str, **settings: Any) -> Make:
    return lambda timm: timm.create_model(name, num_classes=10, **settings)


def resmlp(timm: Any) -> Any:
    file = timm.models.mlp_mixer
    return file.MlpMixer(block_layer=file.ResBlock, norm_layer=file.Affine, mlp_ratio=4, **MIXER)


def gmlp(timm: Any) -> Any:
    file = timm.models.mlp_mixer
    return file.MlpMixer(block_layer=file.SpatialGatingBlock, mlp_layer=timm.layers.GatedMlp, mlp_ratio=4, **MIXER)


def poolformer(timm: Any) -> Any:
    file = timm.models.metaformer
    return file.MetaFormer(num_classes=10, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), token_mixers=file.Pooling,
                           norm_layers=timm.layers.GroupNorm1, use_mlp_head=False)  # fmt: skip


FLAT: Mapping[str, Make] = {
    "vit_tiny_patch16_224": created("vit_tiny_patch16_224", **VIT),
    "deit_tiny_distilled_patch16_224": created("deit_tiny_distilled_patch16_224", **VIT),
    "beit_base_patch16_224": created("beit_base_patch16_224", **VIT),
    "cait_xxs24_224": created("cait_xxs24_224", **VIT, depth_token_only=1),
    "eva02_tiny_patch14_224": created("eva02_tiny_patch14_224", **VIT),
    "xcit_nano_12_p16_224": created("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=2),
    "MlpMixer": lambda timm: timm.models.mlp_mixer.MlpMixer(**MIXER), "ResMLP": resmlp, "gMLP": gmlp,
    "PoolFormer": poolformer,
    "swin_tiny_patch4_window7_224": created("swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4,
                                            embed_dim=8, depths=(2, 2), num_heads=(2, 4)),
    "pvt_v2_b0": created("pvt_v2_b0", depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4)),
    "convnext_atto": created("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)),
}  # fmt: skip
DEEP: Mapping[str, Make] = {
    "efficientnet_lite0": created("efficientnet_lite0"), "mobilenetv3_small_050": created("mobilenetv3_small_050"),
    "regnety_002": created("regnety_002"), "ghostnet_050": created("ghostnet_050"), "repvgg_a0": created("repvgg_a0"),
    "densenet121": created("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)),
    "hardcorenas_a": created("hardcorenas_a"),
}  # fmt: skip
TIMM: dict[str, Callable[[Any], Made]] = {
    **{name: partial(classes, make, 32, 4) for name, make in FLAT.items()},
    **{name: partial(classes, make, 64, 8) for name, make in DEEP.items()},
}


def resnext(package: Any) -> Any:
    models = package.models
    return models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], num_classes=10, groups=4, width_per_group=8)


def convnext(package: Any) -> Any:
    block = package.models.convnext.CNBlockConfig
    return package.models.ConvNeXt([block(8, 16, 1), block(16, None, 2)], num_classes=10)


def swin(package: Any) -> Any:
    return package.models.SwinTransformer([2, 2], 8, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=10)


def efficient(package: Any) -> Any:
    block = package.models.efficientnet.MBConvConfig
    blocks = [block(1, 3, 1, 16, 8, 1, 1.0, 1.0), block(4, 3, 2, 8, 12, 2, 1.0, 1.0)]
    return package.models.EfficientNet(blocks, 0.0, stochastic_depth_prob=0.0, num_classes=10)


def maxvit(package: Any) -> Any:
    return package.models.MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=10)


def auxiliary(output: Any, target: Any) -> Any:
    """The loss of nets that give auxiliary outputs beside their own."""
    return F.cross_entropy(output[0], target) + 0.3 * sum(F.cross_entropy(x, target) for x in output[1:])


def googlenet(package: Any) -> Made:
    model = package.models.googlenet(num_classes=10, init_weights=False)
    return without_dropout(model), images(64), auxiliary


def of_places(output: Any, target: Any) -> Any:
    return F.cross_entropy(output["out"], target)


def segmented(name: str, package: Any) -> Made:
    """Classes of pixels."""
    model = getattr(package.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=4)
    given = [(torch.randn(2, 3, 64, 64), words(2, 64, 64) % 4) for _ in range(BATCHES)]
    return without_dropout(model), given, of_places


def videos(package: Any) -> Made:
    kind = package.models.video.resnet
    model = kind.VideoResNet(kind.BasicBlock, [kind.Conv3DSimple] * 4, [1, 1, 1, 1], kind.BasicStem, num_classes=10)
    return model, [(torch.randn(2, 3, 4, 16, 16), words(2) % 10) for _ in range(BATCHES)], F.cross_entropy


def found(package: Any) -> Made:
    """Boxes in images: the loss is a sum over those that are found."""

    class Found(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = package.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None,
                                                                                num_classes=4)  # fmt: skip

        def forward(self, images: Any, boxes: Any, labels: Any) -> Any:
            targets = [{"boxes": box, "labels": label} for box, label in zip(boxes, labels, strict=True)]
            return sum(self.model(list(images), targets).values())

    corners = torch.tensor([[[4.0, 4.0, 40.0, 40.0]], [[8.0, 16.0, 50.0, 60.0]]])
    return Found(), [(torch.rand(2, 3, 64, 64), corners, words(2, 1) % 4) for _ in range(BATCHES)], None


TORCHVISION: dict[str, Callable[[Any], Made]] = {
    **{
        name: partial(classes, make, side, rows)
        for name, (make, side, rows) in {
            "SqueezeNet": (lambda p: p.models.squeezenet1_1(num_classes=10), 64, 4),
            "MobileNetV2": (lambda p: p.models.mobilenet_v2(width_mult=0.25, num_classes=10), 64, 8),
            "MobileNetV3": (lambda p: p.models.mobilenet_v3_small(num_classes=10), 64, 8),
            "ShuffleNetV2": (lambda p: p.models.shufflenet_v2_x0_5(num_classes=10), 64, 8),
            "MNASNet": (lambda p: p.models.MNASNet(0.5, num_classes=10), 64, 8), "ResNeXt": (resnext, 64, 8),
            "EfficientNet": (efficient, 32, 8), "ConvNeXt": (convnext, 32, 4), "SwinTransformer": (swin, 32, 4),
            "VisionTransformer": (lambda p: p.models.VisionTransformer(32, 8, 2, 2, 32, 64, num_classes=10), 32, 4),
            "MaxVit": (maxvit, 32, 4),
        }.items()
    },
    "GoogLeNet": googlenet, "LRASPP": partial(segmented, "lraspp_mobilenet_v3_large"), "VideoResNet": videos,
    "SSDLite": found,
}  # fmt: skip
