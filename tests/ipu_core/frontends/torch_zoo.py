"""Models from packages, as they are, small and with random weights, and batches for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

BATCHES, ROWS, WORDS = 3, 4, 64
Made = tuple[Any, list[Any], Any]


def words(*shape: int) -> Any:
    return torch.randint(1, WORDS, shape)


def images(side: int, rows: int = ROWS) -> list[Any]:
    return [(torch.randn(rows, 3, side, side), torch.randint(0, 10, (rows,))) for _ in range(BATCHES)]


def bert(package: Any) -> Made:
    config = package.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    batches = [{"input_ids": words(ROWS, 16), "labels": words(ROWS, 16)} for _ in range(BATCHES)]
    for batch in batches:
        batch["labels"][:, ::2] = -100
    return package.BertForMaskedLM(config), batches, None


def gpt2(package: Any) -> Made:
    config = package.GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    rows = [words(ROWS, 16) for _ in range(BATCHES)]
    return package.GPT2LMHeadModel(config), [{"input_ids": row, "labels": row} for row in rows], None


def vit(package: Any) -> Made:
    config = package.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=4,
        num_labels=5,
    )  # fmt: skip
    batches = [{"pixel_values": torch.randn(ROWS, 3, 16, 16), "labels": words(ROWS) % 5} for _ in range(BATCHES)]
    return package.ViTForImageClassification(config), batches, None


def t5(package: Any) -> Made:
    config = package.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    batches = [{"input_ids": words(ROWS, 12), "labels": words(ROWS, 8)} for _ in range(BATCHES)]
    return package.T5ForConditionalGeneration(config), batches, None


def llama(package: Any) -> Made:
    config = package.LlamaConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    rows = [words(ROWS, 16) for _ in range(BATCHES)]
    return package.LlamaForCausalLM(config), [{"input_ids": row, "labels": row} for row in rows], None


def resnet(package: Any) -> Made:
    return package.models.resnet18(num_classes=10), images(64, 8), F.cross_entropy


def timm_resnet(package: Any) -> Made:
    return package.create_model("resnet18", num_classes=10), images(32), F.cross_entropy


def convnext(package: Any) -> Made:
    model = package.models.convnext.ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32), num_classes=10)
    return model, images(32), F.cross_entropy


def mixer(package: Any) -> Made:
    model = package.MLPMixer(image_size=16, channels=3, patch_size=4, dim=32, depth=2, num_classes=10)
    return model, images(16), F.cross_entropy


def transformer(package: Any) -> Made:
    """nn.Transformer with a causal mask that it makes itself."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.out = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True), nn.Linear(16, 5)

        def forward(self, source: Any, target: Any) -> Any:
            mask = self.layers.generate_square_subsequent_mask(target.size(1))
            return self.out(self.layers(source, target, tgt_mask=mask)).transpose(1, 2)

    rows = [(torch.randn(ROWS, 6, 16), torch.randn(ROWS, 3, 16), words(ROWS, 3) % 5) for _ in range(BATCHES)]
    return Model(), rows, F.cross_entropy


def mnist(package: Any) -> Made:
    """The net of torch's MNIST example, without its dropout, which torch draws otherwise."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
            self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
            return F.log_softmax(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))), dim=1)

    return Net(), [(torch.rand(ROWS, 1, 28, 28), words(ROWS) % 10) for _ in range(BATCHES)], F.nll_loss


def tagger(package: Any) -> Made:
    """The tagger of torch's tutorial: one sentence, without a batch."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word_embeddings, self.lstm, self.hidden2tag = nn.Embedding(9, 6), nn.LSTM(6, 6), nn.Linear(6, 3)

        def forward(self, sentence: Any) -> Any:
            embeds = self.word_embeddings(sentence)
            lstm_out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
            return F.log_softmax(self.hidden2tag(lstm_out.view(len(sentence), -1)), dim=1)

    return Tagger(), [(words(5) % 9, words(5) % 3) for _ in range(BATCHES)], F.nll_loss


MODELS: dict[str, tuple[str, Callable[[Any], Made]]] = {
    "BertForMaskedLM": ("transformers", bert), "GPT2LMHeadModel": ("transformers", gpt2),
    "ViTForImageClassification": ("transformers", vit), "T5ForConditionalGeneration": ("transformers", t5),
    "LlamaForCausalLM": ("transformers", llama), "torchvision's ResNet-18": ("torchvision", resnet),
    "timm's ResNet-18": ("timm", timm_resnet), "timm's ConvNeXt": ("timm", convnext),
    "MLPMixer": ("mlp_mixer_pytorch", mixer), "nn.Transformer": ("torch", transformer),
    "MNIST example": ("torch", mnist), "LSTM tagger": ("torch", tagger),
}  # fmt: skip


def made(name: str) -> Made:
    """A model, batches and its loss; None: the model gives it.

    Raises:
        ImportError: its package is not installed.
    """
    package, make = MODELS[name]
    torch.manual_seed(1)
    return make(importlib.import_module(package))
