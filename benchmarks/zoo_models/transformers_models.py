"""Architectures of transformers, each from a config of a few layers: the class it names decides what it is trained for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.zoo_models.subject import Subject, hub

WIDE, TALL, HEADS, WORDS, LENGTH = 64, 160, 4, 500, 32

DECODER = {
    "hidden_size": WIDE, "intermediate_size": TALL, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": WORDS, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Fields that most decoders share."""

BARE = {name: value for name, value in DECODER.items() if name != "head_dim"}

ENCODER = {
    "hidden_size": WIDE, "intermediate_size": TALL, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "vocab_size": WORDS, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
"""Fields that most encoders share."""

PAIR = {
    "d_model": WIDE, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": TALL, "decoder_ffn_dim": TALL, "vocab_size": WORDS,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
"""Fields that most encoder-decoders share."""

T5 = {
    "d_model": WIDE, "d_kv": 16, "d_ff": TALL, "num_layers": 2, "num_decoder_layers": 2, "num_heads": HEADS,
    "vocab_size": WORDS, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip

VISION = {
    "hidden_size": WIDE, "intermediate_size": TALL, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
"""Fields that most vision transformers share."""

STAGES = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1]}

SOUND = {
    **ENCODER, "conv_dim": [32, 32, 32], "conv_stride": [10, 8, 4], "conv_kernel": [20, 16, 8],
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0, "vocab_size": 32,
}  # fmt: skip

TEXT_PART = {**ENCODER, "projection_dim": 32, "max_position_embeddings": 16}

GPT2 = {"n_embd": WIDE, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "vocab_size": WORDS}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 96}

CONFIGS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    # name: kind, class, fields, shape
    "llama": ("llama", "LlamaForCausalLM", DECODER, {"seq_len": LENGTH}),
    "llama, classes": ("llama", "LlamaForSequenceClassification", DECODER, {"seq_len": LENGTH}),
    "mistral": ("mistral", "MistralForCausalLM", {**DECODER, "sliding_window": 16}, {"seq_len": LENGTH}),
    "mixtral": ("mixtral", "MixtralForCausalLM", {**DECODER, "num_local_experts": 4}, {"seq_len": LENGTH}),
    "qwen2": ("qwen2", "Qwen2ForCausalLM", DECODER, {"seq_len": LENGTH}),
    "qwen2_moe": (
        "qwen2_moe", "Qwen2MoeForCausalLM",
        {**DECODER, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 96}, {"seq_len": LENGTH},
    ),
    "qwen3": ("qwen3", "Qwen3ForCausalLM", DECODER, {"seq_len": LENGTH}),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM", {**DECODER, **EXPERTS, "num_experts": 4}, {"seq_len": LENGTH}),
    "gemma": ("gemma", "GemmaForCausalLM", DECODER, {"seq_len": LENGTH}),
    "gemma2": ("gemma2", "Gemma2ForCausalLM", {**DECODER, "query_pre_attn_scalar": 16}, {"seq_len": LENGTH}),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM", {**DECODER, "query_pre_attn_scalar": 16}, {"seq_len": LENGTH}),
    "phi": ("phi", "PhiForCausalLM", DECODER, {"seq_len": LENGTH}),
    "phi3": ("phi3", "Phi3ForCausalLM", DECODER, {"seq_len": LENGTH}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", GPT2, {"seq_len": LENGTH}),
    "gpt_neo": (
        "gpt_neo", "GPTNeoForCausalLM",
        {"hidden_size": WIDE, "num_layers": 2, "num_heads": HEADS, "attention_types": [[["global", "local"], 1]],
         "vocab_size": WORDS, "max_position_embeddings": 64, "window_size": 16}, {"seq_len": LENGTH},
    ),
    "gpt_neox": ("gpt_neox", "GPTNeoXForCausalLM", DECODER, {"seq_len": LENGTH}),
    "gptj": ("gptj", "GPTJForCausalLM", {**GPT2, "rotary_dim": 8}, {"seq_len": LENGTH}),
    "opt": (
        "opt", "OPTForCausalLM", {**DECODER, "ffn_dim": TALL, "word_embed_proj_dim": WIDE, "do_layer_norm_before": True},
        {"seq_len": LENGTH},
    ),
    "bloom": (
        "bloom", "BloomForCausalLM", {"hidden_size": WIDE, "n_layer": 2, "n_head": HEADS, "vocab_size": WORDS},
        {"seq_len": LENGTH},
    ),
    "falcon": ("falcon", "FalconForCausalLM", {**BARE, "alibi": False, "num_kv_heads": HEADS}, {"seq_len": LENGTH}),
    "mpt": (
        "mpt", "MptForCausalLM",
        {"d_model": WIDE, "n_heads": HEADS, "n_layers": 2, "vocab_size": WORDS, "max_seq_len": 64}, {"seq_len": LENGTH},
    ),
    "stablelm": ("stablelm", "StableLmForCausalLM", DECODER, {"seq_len": LENGTH}),
    "olmo2": ("olmo2", "Olmo2ForCausalLM", DECODER, {"seq_len": LENGTH}),
    "olmoe": (
        "olmoe", "OlmoeForCausalLM", {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}, {"seq_len": LENGTH},
    ),
    "starcoder2": ("starcoder2", "Starcoder2ForCausalLM", DECODER, {"seq_len": LENGTH}),
    "granite": ("granite", "GraniteForCausalLM", DECODER, {"seq_len": LENGTH}),
    "cohere": ("cohere", "CohereForCausalLM", DECODER, {"seq_len": LENGTH}),
    "deepseek_v3": (
        "deepseek_v3", "DeepseekV3ForCausalLM",
        {**BARE, **EXPERTS, "num_key_value_heads": HEADS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
         "first_k_dense_replace": 1, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "v_head_dim": 16,
         "qk_nope_head_dim": 16}, {"seq_len": LENGTH},
    ),
    "gpt_oss": (
        "gpt_oss", "GptOssForCausalLM",
        {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}, {"seq_len": LENGTH},
    ),
    "codegen": ("codegen", "CodeGenForCausalLM", {**GPT2, "n_ctx": 64, "rotary_dim": 8}, {"seq_len": LENGTH}),
    "xlnet": (
        "xlnet", "XLNetLMHeadModel",
        {"d_model": WIDE, "n_layer": 2, "n_head": HEADS, "d_inner": TALL, "vocab_size": WORDS}, {"seq_len": LENGTH},
    ),
    "mamba": (
        "mamba", "MambaForCausalLM",
        {"hidden_size": WIDE, "num_hidden_layers": 2, "state_size": 8, "vocab_size": WORDS}, {"seq_len": 16},
    ),
    "bert": ("bert", "BertForMaskedLM", ENCODER, {"seq_len": LENGTH}),
    "bert, classes": ("bert", "BertForSequenceClassification", ENCODER, {"seq_len": LENGTH}),
    "bert, answers": ("bert", "BertForQuestionAnswering", ENCODER, {"seq_len": LENGTH}),
    "roberta": ("roberta", "RobertaForMaskedLM", {**ENCODER, "pad_token_id": 1}, {"seq_len": LENGTH}),
    "xlm-roberta, tokens": (
        "xlm-roberta", "XLMRobertaForTokenClassification", {**ENCODER, "pad_token_id": 1}, {"seq_len": LENGTH},
    ),
    "distilbert": (
        "distilbert", "DistilBertForMaskedLM",
        {"dim": WIDE, "hidden_dim": TALL, "n_layers": 2, "n_heads": HEADS, "vocab_size": WORDS,
         "max_position_embeddings": 64}, {"seq_len": LENGTH},
    ),
    "albert": ("albert", "AlbertForMaskedLM", {**ENCODER, "embedding_size": 32}, {"seq_len": LENGTH}),
    "electra": ("electra", "ElectraForMaskedLM", {**ENCODER, "embedding_size": 32}, {"seq_len": LENGTH}),
    "deberta-v2": (
        "deberta-v2", "DebertaV2ForTokenClassification",
        {**ENCODER, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16},
        {"seq_len": LENGTH},
    ),
    "mpnet": ("mpnet", "MPNetForMaskedLM", {**ENCODER, "pad_token_id": 1}, {"seq_len": LENGTH}),
    "modernbert": (
        "modernbert", "ModernBertForMaskedLM",
        {**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 16},
        {"seq_len": LENGTH},
    ),
    "convbert": ("convbert", "ConvBertForMaskedLM", {**ENCODER, "embedding_size": WIDE}, {"seq_len": LENGTH}),
    "fnet": ("fnet", "FNetForMaskedLM", {**ENCODER, "tpu_short_seq_length": LENGTH}, {"seq_len": LENGTH}),
    "squeezebert": (
        "squeezebert", "SqueezeBertForMaskedLM", {**ENCODER, "embedding_size": WIDE}, {"seq_len": LENGTH},
    ),
    "longformer": ("longformer", "LongformerForMaskedLM", {**ENCODER, "attention_window": 8}, {"seq_len": LENGTH}),
    "t5": ("t5", "T5ForConditionalGeneration", T5, {"seq_len": LENGTH}),
    "mt5": ("mt5", "MT5ForConditionalGeneration", T5, {"seq_len": LENGTH}),
    "bart": ("bart", "BartForConditionalGeneration", PAIR, {"seq_len": LENGTH}),
    "mbart": ("mbart", "MBartForConditionalGeneration", PAIR, {"seq_len": LENGTH}),
    "pegasus": ("pegasus", "PegasusForConditionalGeneration", PAIR, {"seq_len": LENGTH}),
    "marian": ("marian", "MarianMTModel", {**PAIR, "decoder_vocab_size": WORDS}, {"seq_len": LENGTH}),
    "m2m_100": ("m2m_100", "M2M100ForConditionalGeneration", PAIR, {"seq_len": LENGTH}),
    "blenderbot": ("blenderbot", "BlenderbotForConditionalGeneration", PAIR, {"seq_len": LENGTH}),
    "led": (
        "led", "LEDForConditionalGeneration",
        {**PAIR, "attention_window": [8, 8], "max_encoder_position_embeddings": 64,
         "max_decoder_position_embeddings": 64}, {"seq_len": LENGTH},
    ),
    "whisper": (
        "whisper", "WhisperForConditionalGeneration",
        {**PAIR, "num_mel_bins": 16, "max_source_positions": 50, "max_target_positions": 32}, {"seq_len": 16},
    ),
    "speech_to_text": (
        "speech_to_text", "Speech2TextForConditionalGeneration",
        {**PAIR, "input_feat_per_channel": 16, "max_source_positions": 50, "max_target_positions": 32,
         "conv_channels": 32}, {"seq_len": 16},
    ),
    "wav2vec2, ctc": ("wav2vec2", "Wav2Vec2ForCTC", SOUND, {"seq_len": 12}),
    "wav2vec2, classes": ("wav2vec2", "Wav2Vec2ForSequenceClassification", SOUND, {"seq_len": 8000}),
    "hubert, classes": ("hubert", "HubertForSequenceClassification", SOUND, {"seq_len": 8000}),
    "audio spectrogram": (
        "audio-spectrogram-transformer", "ASTForAudioClassification",
        {**VISION, "num_mel_bins": 16, "max_length": 64}, {},
    ),
    "clip": (
        "clip", "CLIPModel",
        {"text_config": TEXT_PART, "vision_config": {**VISION, "projection_dim": 32}, "projection_dim": 32}, {},
    ),
    "siglip": ("siglip", "SiglipModel", {"text_config": TEXT_PART, "vision_config": VISION}, {}),
    "chinese_clip": (
        "chinese_clip", "ChineseCLIPModel",
        {"text_config": TEXT_PART, "vision_config": VISION, "projection_dim": 32}, {},
    ),
    "vit": ("vit", "ViTForImageClassification", VISION, {}),
    "deit": ("deit", "DeiTForImageClassification", VISION, {}),
    "beit": ("beit", "BeitForImageClassification", VISION, {}),
    "dinov2": ("dinov2", "Dinov2ForImageClassification", VISION, {}),
    "siglip, classes": ("siglip", "SiglipForImageClassification", {"vision_config": VISION}, {}),
    "swin": (
        "swin", "SwinForImageClassification",
        {"embed_dim": 24, "depths": [1, 1, 2], "num_heads": [2, 2, 4], "window_size": 4, "image_size": 64,
         "patch_size": 4}, {},
    ),
    "convnext": ("convnext", "ConvNextForImageClassification", {**STAGES, "image_size": 64}, {}),
    "resnet": (
        "resnet", "ResNetForImageClassification", {**STAGES, "embedding_size": 16, "layer_type": "basic"},
        {"image_size": 64},
    ),
    "regnet": (
        "regnet", "RegNetForImageClassification", {**STAGES, "embedding_size": 16, "groups_width": 8},
        {"image_size": 64},
    ),
    "poolformer": ("poolformer", "PoolFormerForImageClassification", STAGES, {"image_size": 64}),
    "mobilevit": (
        "mobilevit", "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64]}, {},
    ),
    "segformer, classes": (
        "segformer", "SegformerForImageClassification",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
        {"image_size": 64},
    ),
    "segformer": (
        "segformer", "SegformerForSemanticSegmentation",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
         "decoder_hidden_size": 32}, {"image_size": 64},
    ),
    "mobilevit, segments": (
        "mobilevit", "MobileViTForSemanticSegmentation",
        {"image_size": 64, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64],
         "aspp_out_channels": 32}, {},
    ),
    "detr": (
        "detr", "DetrForObjectDetection",
        {**PAIR, "num_queries": 10, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None,
         "backbone_config": {"model_type": "resnet", **STAGES, "embedding_size": 16, "layer_type": "basic",
                             "out_features": ["stage4"]}}, {"image_size": 64},
    ),
    "yolos": (
        "yolos", "YolosForObjectDetection",
        {**VISION, "image_size": [32, 48], "num_detection_tokens": 10, "use_mid_position_embeddings": False}, {},
    ),
    "videomae": (
        "videomae", "VideoMAEForVideoClassification", {**VISION, "num_frames": 4, "tubelet_size": 2}, {},
    ),
    "timesformer": ("timesformer", "TimesformerForVideoClassification", {**VISION, "num_frames": 4}, {}),
    "llava": (
        "llava", "LlavaForConditionalGeneration",
        {"text_config": {"model_type": "llama", **DECODER},
         "vision_config": {"model_type": "clip_vision_model", **VISION, "projection_dim": 32},
         "image_token_index": 499, "vision_feature_layer": -1}, {"seq_len": LENGTH},
    ),
    "git": (
        "git", "GitForCausalLM", {**ENCODER, "vision_config": VISION}, {"seq_len": LENGTH},
    ),
}  # fmt: skip

BATCH = 4


def _make(name: str) -> Subject:
    kind, architecture, fields, shape = CONFIGS[name]
    return hub(kind, {**fields, "architectures": [architecture]}, name=f"hf:{name}", batch_size=BATCH, **shape)


SUBJECTS: dict[str, Callable[[], Subject]] = {f"hf:{name}": partial(_make, name) for name in CONFIGS}
"""Name -> makes the model."""
