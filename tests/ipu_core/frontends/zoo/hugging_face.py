"""Models of transformers, by the settings of a small configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from tests.ipu_core.frontends.torch_zoo import BATCHES, ROWS, WORDS, Made, words

SMALL = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "use_cache": False,
}  # fmt: skip
KEYS = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
PAIRS = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32,
    "use_cache": False, "decoder_start_token_id": 2, "pad_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
IMAGES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 16,
    "patch_size": 4, "num_labels": 5,
}  # fmt: skip
STAGES = {"depths": [1, 1, 1, 1], "image_size": 32, "num_labels": 5}


def masked() -> Any:
    batch = {"input_ids": words(ROWS, 16), "labels": words(ROWS, 16)}
    batch["labels"][:, ::2] = -100
    return batch


def causal() -> Any:
    rows = words(ROWS, 16)
    return {"input_ids": rows, "labels": rows}


def paired() -> Any:
    return {"input_ids": words(ROWS, 12), "labels": words(ROWS, 8)}


def classified() -> Any:
    return {"input_ids": words(ROWS, 16), "labels": words(ROWS) % 2}


def pictures(side: int = 16) -> Any:
    return {"pixel_values": torch.randn(ROWS, 3, side, side), "labels": words(ROWS) % 5}


def captioned() -> Any:
    return {"input_ids": words(ROWS, 8), "pixel_values": torch.randn(ROWS, 3, 16, 16), "return_loss": True}


def heard(length: int = 800) -> Any:
    return {"input_values": torch.randn(ROWS, length), "labels": words(ROWS) % 5}


def spectra() -> Any:
    return {"input_features": torch.randn(ROWS, 16, 32), "labels": words(ROWS, 8)}


def series() -> Any:
    return {"past_values": torch.randn(ROWS, 32, 3), "future_values": torch.randn(ROWS, 8, 3)}


def plays() -> Any:
    """Of a decision transformer, whose loss is that of the actions."""
    return (torch.randn(ROWS, 6, 5), torch.randn(ROWS, 6, 3), torch.randn(ROWS, 6, 1), torch.randn(ROWS, 6, 1),
            torch.arange(6).repeat(ROWS, 1), torch.randn(ROWS, 6, 3))  # fmt: skip


def actions(output: Any, target: Any) -> Any:
    return ((output.action_preds - target) ** 2).mean()


class Plays(torch.nn.Module):
    """A decision transformer, whose arguments have names."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, states: Any, actions: Any, rewards: Any, togo: Any, times: Any) -> Any:
        return self.model(states=states, actions=actions, rewards=rewards, returns_to_go=togo, timesteps=times)


TEXTS: Mapping[str, Mapping[str, Any]] = {
    "BertForMaskedLM": SMALL, "RobertaForMaskedLM": {**SMALL, "pad_token_id": 0}, "DistilBertForMaskedLM": {
        "vocab_size": WORDS, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "AlbertForMaskedLM": {**SMALL, "embedding_size": 16}, "ElectraForMaskedLM": {**SMALL, "embedding_size": 16},
    "DebertaForMaskedLM": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                           "max_relative_positions": 16},
    "DebertaV2ForMaskedLM": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                             "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "MPNetForMaskedLM": {**SMALL, "pad_token_id": 0},
    "MobileBertForMaskedLM": {**SMALL, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "ConvBertForMaskedLM": {**SMALL, "embedding_size": 16, "conv_kernel_size": 3},
    "RoFormerForMaskedLM": {**SMALL, "embedding_size": 16},
    "XLNetLMHeadModel": {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "ModernBertForMaskedLM": {**SMALL, "pad_token_id": 0, "local_attention": 8},
    "FNetForMaskedLM": SMALL, "SqueezeBertForMaskedLM": {**SMALL, "embedding_size": 32},
    "NystromformerForMaskedLM": {**SMALL, "num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 3},
    "FunnelForMaskedLM": {"vocab_size": WORDS, "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64,
                          "block_sizes": [1, 1], "num_decoder_layers": 1},
    "LongformerForMaskedLM": {**SMALL, "attention_window": 8, "pad_token_id": 0},
    "BigBirdForMaskedLM": {**SMALL, "attention_type": "original_full", "pad_token_id": 0},
}  # fmt: skip
STREAMS: Mapping[str, Mapping[str, Any]] = {
    "GPT2LMHeadModel": SMALL, "GPTNeoForCausalLM": {**SMALL, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "GPTNeoXForCausalLM": SMALL, "GPTJForCausalLM": {**SMALL, "rotary_dim": 4},
    "OPTForCausalLM": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
    "BloomForCausalLM": {**SMALL, "n_layer": 2, "n_head": 4},
    "LlamaForCausalLM": KEYS, "MistralForCausalLM": {**KEYS, "sliding_window": 8},
    "MixtralForCausalLM(experts_implementation='batched_mm')": {
        **KEYS, "num_local_experts": 4, "experts_implementation": "batched_mm"},
    "Qwen2ForCausalLM": KEYS, "Qwen3ForCausalLM": KEYS,
    "GemmaForCausalLM": KEYS, "Gemma2ForCausalLM": {**KEYS, "sliding_window": 8}, "PhiForCausalLM": {**SMALL},
    "Phi3ForCausalLM": {**SMALL, "num_key_value_heads": 2, "pad_token_id": 0}, "FalconForCausalLM": SMALL,
    "MptForCausalLM": {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
    "StableLmForCausalLM": KEYS, "Olmo2ForCausalLM": {**KEYS, "pad_token_id": 0},
    "MambaForCausalLM": {**SMALL, "state_size": 4},
    "RwkvForCausalLM": {**SMALL, "context_length": 16, "attention_hidden_size": 32},
}  # fmt: skip
SEEN: Mapping[str, Mapping[str, Any]] = {
    "ViTForImageClassification": IMAGES, "DeiTForImageClassification": IMAGES,
    "BeitForImageClassification": {**IMAGES, "use_relative_position_bias": True, "layer_scale_init_value": 0.1},
    "Dinov2ForImageClassification": IMAGES,
}  # fmt: skip
STAGED: Mapping[str, Mapping[str, Any]] = {
    "SwinForImageClassification": {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2],
                                   "num_heads": [2, 4], "window_size": 4, "num_labels": 5},
    "ConvNextForImageClassification": {**STAGES, "hidden_sizes": [8, 16, 24, 32]},
    "PoolFormerForImageClassification": {**STAGES, "hidden_sizes": [8, 16, 24, 32]},
    "PvtForImageClassification": {**STAGES, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4]},
    "SegformerForImageClassification": {**STAGES, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4]},
    "MobileViTForImageClassification": {"image_size": 32, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [
        8, 8, 12, 12, 16, 16, 32], "num_attention_heads": 4, "num_labels": 5},
    "ResNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
                                     "num_labels": 5, "layer_type": "basic"},
}  # fmt: skip
TOWERS = {
    "text_config": {**SMALL, "max_position_embeddings": 16, "projection_dim": 16, "eos_token_id": 2},
    "vision_config": {**IMAGES, "projection_dim": 16}, "projection_dim": 16,
}  # fmt: skip
OTHERS: Mapping[str, tuple[Mapping[str, Any], Callable[[], Any]]] = {
    "BertForSequenceClassification": (SMALL, classified),
    "T5ForConditionalGeneration": ({"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
                                    "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0,
                                    "pad_token_id": 0}, paired),
    "BartForConditionalGeneration": (PAIRS, paired), "PegasusForConditionalGeneration": (PAIRS, paired),
    "MarianMTModel": (PAIRS, paired),
    "WhisperForConditionalGeneration": ({**PAIRS, "num_mel_bins": 16, "max_source_positions": 16,
                                         "max_target_positions": 16, "decoder_start_token_id": 1,
                                         "begin_suppress_tokens": None}, spectra),
    "Wav2Vec2ForSequenceClassification": ({**SMALL, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
                                           "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2,
                                           "num_labels": 5, "apply_spec_augment": False,
                                           "classifier_proj_size": 16}, heard),
    "CLIPModel": (TOWERS, captioned), "SiglipModel": (TOWERS, captioned),
    "PatchTSTForPrediction": ({"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8,
                               "prediction_length": 8, "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
                               "ffn_dim": 32, "loss": "mse"}, series),
    "DecisionTransformerModel": ({"state_dim": 5, "act_dim": 3, "hidden_size": 32, "n_layer": 2, "n_head": 4,
                                  "max_ep_len": 16}, plays),
}  # fmt: skip


def still(config: Any) -> Any:
    """A configuration, and those in it, without what torch would draw otherwise than a captured module does."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            still(value)
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def model(name: str, settings: Mapping[str, Any], batch: Callable[[], Any], package: Any) -> Made:
    """One of the package's classes, named with what of its settings matters, of a small configuration."""
    kind = getattr(package, name.partition("(")[0])
    made = kind(still(kind.config_class(**settings)))
    batches = [batch() for _ in range(BATCHES)]
    return (Plays(made), batches, actions) if batch is plays else (made, batches, None)


MODELS: dict[str, Callable[[Any], Made]] = {
    name: partial(model, name, settings, batch)
    for batch, table in ((masked, TEXTS), (causal, STREAMS), (pictures, SEEN), (partial(pictures, 32), STAGED))
    for name, settings in table.items()
} | {name: partial(model, name, settings, batch) for name, (settings, batch) in OTHERS.items()}
