"""The models of `model_zoo`: how each is built, small, and called. Imported where `torch` is PyTorch, or ampkit."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch


class Model(NamedTuple):
    """A module, the arguments of its call, and the keywords."""

    module: Any
    inputs: tuple[Any, ...]
    options: dict[str, Any] = {}


def images(*shape: int) -> Any:
    """Random values in [-1, 1), float32."""
    return torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32))


def tokens(*shape: int, below: int = 50) -> Any:
    """Random token numbers from 5, int64."""
    return torch.from_numpy(np.random.default_rng(0).integers(5, below, shape))


# timm: the smallest model of nearly every file of timm.models, on images of 64 pixels where it takes any size.

_TIMM_ANY = """
csatv2 cspresnet50 cspdarknet53 cs3darknet_s densenet121 dla34 dpn68 ese_vovnet19b_dw fasternet_t0 fastvit_t8 ghostnet_100 gernet_s
repvgg_a0 hardcorenas_a hgnet_small hrnet_w18_small inception_next_atto inception_resnet_v2 inception_v3 inception_v4
lcnet_050 mambaout_femto poolformer_s12 caformer_s18 mobilenetv2_100 mobilenetv3_small_100 mnasnet_small
efficientnet_b0 tf_efficientnetv2_b0 mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050 nasnetalarge nextvit_small
nfnet_f0 pnasnet5large pvt_v2_b0 rdnet_tiny regnetx_002 regnety_002 repghostnet_050 repvit_m0_9 res2net50_26w_4s
resnest14d resnet18 resnet50d resnext50_32x4d seresnet18 resnetv2_50 rexnet_100 selecsls42 legacy_seresnet18
skresnet18 starnet_s1 convnext_atto convnextv2_atto convmixer_768_32 edgenext_xx_small efficientvit_b0 focalnet_tiny_srf
vgg11_bn tresnet_m xception xception41 lambda_resnet26t bat_resnext26ts eca_botnext26ts_256 halonet26t
swiftformer_xs shvit_s1 iformer_t lowformer_b0 efficientvim_m1 twins_pcpvt_small twins_svt_small
""".split()  # fmt: skip
_TIMM_SIZED = """
beit_base_patch16_224 cait_xxs24_224 coat_lite_tiny convit_tiny crossvit_tiny_240 davit_tiny deit_tiny_patch16_224
efficientformer_l1 efficientformerv2_s0 efficientvit_m0 eva02_tiny_patch14_224 gcvit_xxtiny hiera_tiny_224 levit_128s mixer_s32_224
gmixer_12_224 resmlp_12_224 gmlp_ti16_224 coatnet_pico_rw_224 maxvit_nano_rw_256 mvitv2_tiny naflexvit_base_patch16_gap nest_tiny pit_ti_224
sequencer2d_s swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224
visformer_tiny vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 vit_relpos_small_patch16_224 samvit_base_patch16_224
vitamin_small_224 volo_d1_224 xcit_nano_12_p16_224 sam2_hiera_tiny
""".split()  # fmt: skip
_TIMM_SIZES = {  # where 64 pixels would leave one or none, so that a batch norm of two values has no gradient, or one size is taken
    "efficientformer_l1": 224, "levit_128s": 224, "tiny_vit_5m_224": 224, "efficientformerv2_s0": 224, "tnt_s_patch16_224": 224, "hiera_tiny_224": 224,
    "visformer_tiny": 224, "swin_tiny_patch4_window7_224": 224, "nest_tiny": 128, "maxvit_nano_rw_256": 256,
    "crossvit_tiny_240": 240, "eva02_tiny_patch14_224": 56, "inception_v3": 96, "inception_v4": 192, "efficientvim_m1": 192, "nasnetalarge": 96, "pnasnet5large": 96,
    "inception_resnet_v2": 96, "coatnet_pico_rw_224": 224, "gcvit_xxtiny": 224, "davit_tiny": 224, "mvitv2_tiny": 224, "swinv2_cr_tiny_224": 224, "swinv2_tiny_window8_256": 256,
    "sam2_hiera_tiny": 224, "samvit_base_patch16_224": 224, "halonet26t": 256, "eca_botnext26ts_256": 256, "bat_resnext26ts": 256, "lambda_resnet26t": 256,
}  # fmt: skip
_TIMM_SMALLER = {  # as their files allow, so that nothing takes minutes
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 96, "num_heads": 4},
    "samvit_base_patch16_224": {"depth": 3, "embed_dim": 96, "num_heads": 4, "global_attn_indexes": (1,)},
    "naflexvit_base_patch16_gap": {"depth": 2, "embed_dim": 96, "num_heads": 4},
}  # fmt: skip


# Their constructors take no img_size.
_TIMM_UNSIZED = (
    "efficientformer_l1 levit_128s efficientvit_m0 efficientformerv2_s0 tiny_vit_5m_224 sam2_hiera_tiny".split()
)


def _timm(name: str) -> Model:
    import timm

    size = _TIMM_SIZES.get(name, 64)
    sized = {"img_size": size} if name in _TIMM_SIZED and name not in _TIMM_UNSIZED else {}
    if name in (
        "maxvit_nano_rw_256",
        "coatnet_pico_rw_224",
        "naflexvit_base_patch16_gap",
        "sequencer2d_s",
        "davit_tiny",
        "gcvit_xxtiny",
    ):
        sized = {}
    module = timm.create_model(name, num_classes=0 if "sam" in name else 7, **sized, **_TIMM_SMALLER.get(name, {}))
    return Model(module, (images(2, 3, size, size),))


# vit-pytorch: its files by their class and arguments, without those that fail on PyTorch (flex attention on a CPU).

_VIT = dict(image_size=32, patch_size=8, num_classes=7, dim=32, depth=2, heads=2, mlp_dim=48, dim_head=16)
_VIT1 = {key: value for key, value in _VIT.items() if key not in ("image_size", "patch_size")}
_STAGES = dict(num_classes=7, dim=16, depth=(1, 1), dim_head=8)
_VIDEO = dict(image_size=32, image_patch_size=8, frames=4, frame_patch_size=2, **_VIT1)
_VIVIT = {k: v for k, v in _VIDEO.items() if k != "depth"} | {"spatial_depth": 1, "temporal_depth": 1}
_IMAGE, _CLIP = (2, 3, 32, 32), (2, 3, 4, 32, 32)
_VIT_FILES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "ats_vit": ("ViT", {**_VIT, "max_tokens_per_depth": (8, 4)}, _IMAGE),
    "attn_residual_with_dca_simple_vit": ("SimpleViT", _VIT, _IMAGE),
    "cait": ("CaiT", {**_VIT, "cls_depth": 1}, _IMAGE),
    "cct": ("CCT", dict(img_size=32, embedding_dim=32, num_layers=2, num_heads=2, mlp_ratio=2, num_classes=7, stochastic_depth_rate=0.0), _IMAGE),
    "cct_3d": ("CCT", dict(img_size=32, num_frames=4, embedding_dim=32, num_layers=2, num_heads=2, mlp_ratio=2, num_classes=7, stochastic_depth_rate=0.0), _CLIP),
    "cross_vit": ("CrossViT", dict(image_size=32, num_classes=7, sm_dim=16, lg_dim=32, sm_patch_size=8, lg_patch_size=16, depth=1, lg_enc_depth=1, cross_attn_depth=1), _IMAGE),
    "crossformer": ("CrossFormer", dict(dim=(32, 32, 64, 64), depth=(1, 1, 1, 1), global_window_size=(4, 2, 2, 1), local_window_size=2, num_classes=7), (2, 3, 64, 64)),
    "cvt": ("CvT", dict(num_classes=7, s1_emb_dim=16, s2_emb_dim=32, s3_emb_dim=32, s3_depth=2), (2, 3, 64, 64)),
    "deepvit": ("DeepViT", _VIT, _IMAGE),
    "jet_vit": ("JetViT", {**_VIT, "window_size": 2}, _IMAGE),
    "jumbo_vit": ("JumboViT", _VIT, _IMAGE),
    "levit": ("LeViT", dict(image_size=64, num_classes=7, dim=(16, 24, 32), depth=1, heads=(2, 2, 4), mlp_mult=2), (2, 3, 64, 64)),
    "look_vit": ("LookViT", dict(dim=32, image_size=32, num_classes=7, depth=1, patch_size=16, highres_patch_size=8, heads=2, dim_head=16, cross_attn_heads=2, cross_attn_dim_head=16), _IMAGE),
    "looped_vit": ("LoopedViT", dict(num_classes=7, dim=32, image_size=32, patch_size=8, pre_loop_depth=1, num_looped_blocks=1, post_loop_depth=1, loop_depth=2, heads=2, dim_head=16, mlp_dim=48), _IMAGE),
    "max_vit": ("MaxViT", {**_STAGES, "window_size": 4}, (2, 3, 64, 64)),
    "max_vit_with_registers": ("MaxViT", {**_STAGES, "window_size": 4}, (2, 3, 64, 64)),
    "mobile_vit": ("MobileViT", dict(image_size=(64, 64), dims=[16, 24, 32], channels=[8, 8, 12, 12, 16, 16, 24, 24, 32, 32, 48], num_classes=7), (2, 3, 64, 64)),
    "nest": ("NesT", dict(image_size=32, patch_size=4, num_classes=7, dim=16, heads=2, num_hierarchies=2, block_repeats=(1, 1)), _IMAGE),
    "normalized_vit": ("nViT", {k: v for k, v in _VIT.items()}, _IMAGE),
    "parallel_vit": ("ViT", _VIT, _IMAGE),
    "pit": ("PiT", {**_VIT, "depth": (1, 1)}, _IMAGE),
    "regionvit": ("RegionViT", dict(dim=(16, 16, 32, 32), depth=(1, 1, 1, 1), window_size=2, num_classes=7), (2, 3, 64, 64)),
    "rvt": ("RvT", _VIT, _IMAGE),
    "scalable_vit": ("ScalableViT", dict(num_classes=7, dim=16, depth=(1, 1), heads=(2, 2), reduction_factor=(2, 1), window_size=(4, None)), (2, 3, 64, 64)),
    "sep_vit": ("SepViT", dict(num_classes=7, dim=16, depth=(1, 1), heads=(2, 2), window_size=7, dim_head=8), (2, 3, 56, 56)),
    "simple_flash_attn_vit": ("SimpleViT", _VIT, _IMAGE),
    "simple_flash_attn_vit_3d": ("SimpleViT", _VIDEO, _CLIP),
    "simple_uvit": ("SimpleUViT", _VIT, _IMAGE),
    "simple_vit": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_1d": ("SimpleViT", {**_VIT1, "seq_len": 32, "patch_size": 4}, (2, 3, 32)),
    "simple_vit_3d": ("SimpleViT", _VIDEO, _CLIP),
    "simple_vit_attn_residual": ("SimpleViTAttnResidual", _VIT, _IMAGE),
    "simple_vit_orthog_residual_update": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_fft": ("SimpleViT", {**_VIT, "freq_patch_size": 8}, _IMAGE),
    "simple_vit_with_hyper_connections": ("SimpleViT", {**_VIT, "num_residual_streams": 2}, _IMAGE),
    "simple_vit_with_patch_dropout": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_qk_norm": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_register_tokens": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_relative_proj_pos_bias": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_sparse_gating": ("SimpleViTWithSparseGating", _VIT, _IMAGE),
    "simple_vit_with_specialized_cls": ("SimpleViT", _VIT, _IMAGE),
    "simple_vit_with_value_residual": ("SimpleViT", _VIT, _IMAGE),
    "t2t": ("T2TViT", dict(image_size=64, num_classes=7, dim=32, depth=1, heads=2, mlp_dim=48), (2, 3, 64, 64)),
    "twins_svt": ("TwinsSVT", dict(num_classes=7, s1_emb_dim=8, s2_emb_dim=16, s3_emb_dim=16, s4_emb_dim=32, s3_depth=1, s4_depth=1, s1_local_patch_size=2, s2_local_patch_size=2, s3_local_patch_size=2, s4_local_patch_size=2, s1_global_k=2, s2_global_k=2, s3_global_k=2, s4_global_k=2), (2, 3, 64, 64)),
    "vit": ("ViT", _VIT, _IMAGE),
    "vit_1d": ("ViT", {**_VIT1, "seq_len": 32, "patch_size": 4}, (2, 3, 32)),
    "vit_3d": ("ViT", _VIDEO, _CLIP),
    "vit_5": ("ViT", _VIT, _IMAGE),
    "vit_detpool": ("ViTDetPool", _VIT, _IMAGE),
    "vit_for_small_dataset": ("ViT", _VIT, _IMAGE),
    "vit_with_decorr": ("ViT", _VIT, _IMAGE),
    "vit_with_keel_post_ln": ("ViT", _VIT, _IMAGE),
    "vit_with_patch_dropout": ("ViT", _VIT, _IMAGE),
    "vit_with_patch_merger": ("ViT", _VIT, _IMAGE),
    "vivit": ("ViViT", _VIVIT, _CLIP),
    "vivit_with_moss": ("ViViT", _VIVIT, _CLIP),
    "wwt": ("WWT", dict(image_size=32, patch_size=8, num_classes=7, dim=32, depth=2, num_slots=4, heads=2, dim_head=16), _IMAGE),
    "xcit": ("XCiT", {**_VIT, "cls_depth": 1, "image_size": 64}, (2, 3, 64, 64)),
}  # fmt: skip
_VIT_WRAPPED = ("accept_video_wrapper distill efficient extractor learnable_memory_vit mp3 na_vit na_vit_nested_tensor "
                "na_vit_nested_tensor_3d recorder dino").split()  # fmt: skip


def _vit(name: str) -> Model:
    module = import_module(f"vit_pytorch.{name}")
    if name in _VIT_WRAPPED:
        return _vit_wrapped(name, module)
    kind, arguments, shape = _VIT_FILES[name]
    return Model(getattr(module, kind)(**arguments), (images(*shape),))


def _vit_wrapped(name: str, file: Any) -> Model:
    from vit_pytorch import ViT

    vit, image = ViT(**(_VIT | {"dim_head": 16})), images(*_IMAGE)
    navit = {**_VIT, "mlp_dim": 48}
    volumes = {k: v for k, v in _VIDEO.items() if k not in ("frames", "image_patch_size")} | {
        "patch_size": 8,
        "max_frames": 4,
    }
    made: dict[str, Callable[[], Model]] = {
        "accept_video_wrapper": lambda: Model(file.AcceptVideoWrapper(vit), (images(*_CLIP),)),
        "distill": lambda: Model(file.DistillWrapper(student=file.DistillableViT(**_VIT), teacher=vit), (image, tokens(2, below=7))),
        "dino": lambda: Model(file.Dino(vit, 32, num_classes_K=16, projection_hidden_size=16, augment_fn=torch.nn.Identity(), augment_fn2=torch.nn.Identity()), (image,)),
        "efficient": lambda: Model(file.ViT(**{k: _VIT[k] for k in ("image_size", "patch_size", "num_classes", "dim")},
                                   transformer=torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 2, 48, 0.0, batch_first=True), 2)), (image,)),
        "extractor": lambda: Model(file.Extractor(vit, detach=False), (image,)),
        "learnable_memory_vit": lambda: Model(file.Adapter(vit=file.ViT(**_VIT), num_classes=3, num_memories_per_layer=2), (image,)),
        "mp3": lambda: Model(file.MP3(file.ViT(**{k: v for k, v in _VIT.items() if k != "mlp_dim"}, mlp_dim=48), 0.75), (image,)),
        "na_vit": lambda: Model(file.NaViT(**navit), ([[images(3, 16, 24), images(3, 32, 8)], [images(3, 24, 24)]],)),
        "na_vit_nested_tensor": lambda: Model(file.NaViT(**navit), ([images(3, 16, 24), images(3, 32, 8)],)),
        "na_vit_nested_tensor_3d": lambda: Model(file.NaViT(**volumes), ([images(3, 2, 16, 24), images(3, 4, 32, 8)],)),
        "recorder": lambda: Model(file.Recorder(vit), (image,)),
    }  # fmt: skip
    return made[name]()


# transformers: a small configuration of each family.

_WIDE = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
_TEXT = dict(_WIDE, vocab_size=50, pad_token_id=0, max_position_embeddings=64)
_DECODER = dict(_TEXT, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, head_dim=8)
_GPT = dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2)
_ATTENTION = dict.fromkeys(
    [
        "DebertaV2ForMaskedLM", "MambaForCausalLM", "BloomForCausalLM", "T5ForConditionalGeneration",
        "Gemma2ForCausalLM", "ConvNextForImageClassification", "ResNetForImageClassification",
    ],
    "eager",
)  # fmt: skip
_MOE = dict(_DECODER, num_local_experts=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
_VISION = dict(_WIDE, image_size=32, patch_size=8, num_labels=7)
_SEQ = dict(vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, pad_token_id=0, bos_token_id=1,
            decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, decoder_start_token_id=2, eos_token_id=2)  # fmt: skip
_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "BertForMaskedLM": ("BertConfig", _TEXT, "text"),
    "BertForSequenceClassification": ("BertConfig", _TEXT, "text"),
    "RobertaForMaskedLM": ("RobertaConfig", dict(_TEXT), "text"),
    "DistilBertForMaskedLM": ("DistilBertConfig", dict(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=48), "text"),
    "AlbertForMaskedLM": ("AlbertConfig", dict(_TEXT, embedding_size=16), "text"),
    "ElectraForPreTraining": ("ElectraConfig", dict(_TEXT, embedding_size=16), "text"),
    "DebertaV2ForMaskedLM": ("DebertaV2Config", dict(_TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"]), "text"),
    "ModernBertForMaskedLM": ("ModernBertConfig", dict(_TEXT, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, reference_compile=False), "text"),
    "GPT2LMHeadModel": ("GPT2Config", _GPT, "text"),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", dict(_TEXT, bos_token_id=1, eos_token_id=2), "text"),
    "OPTForCausalLM": ("OPTConfig", dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, word_embed_proj_dim=32, max_position_embeddings=64), "text"),
    "BloomForCausalLM": ("BloomConfig", dict(vocab_size=50, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2), "text"),
    "LlamaForCausalLM": ("LlamaConfig", _DECODER, "text"),
    "MistralForCausalLM": ("MistralConfig", dict(_DECODER, sliding_window=8), "text"),
    "MixtralForCausalLM": ("MixtralConfig", _MOE, "text"),
    "Qwen2ForCausalLM": ("Qwen2Config", _DECODER, "text"),
    "Qwen3ForCausalLM": ("Qwen3Config", _DECODER, "text"),
    "Gemma2ForCausalLM": ("Gemma2Config", dict(_DECODER, query_pre_attn_scalar=8), "text"),
    "PhiForCausalLM": ("PhiConfig", dict(_TEXT, bos_token_id=1, eos_token_id=2), "text"),
    "FalconForCausalLM": ("FalconConfig", dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=2), "text"),
    "MambaForCausalLM": ("MambaConfig", dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2), "text"),
    "T5ForConditionalGeneration": ("T5Config", dict(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0), "pair"),
    "BartForConditionalGeneration": ("BartConfig", _SEQ, "pair"),
    "MarianMTModel": ("MarianConfig", _SEQ, "pair"),
    "PegasusForConditionalGeneration": ("PegasusConfig", _SEQ, "pair"),
    "ViTForImageClassification": ("ViTConfig", _VISION, "image"),
    "DeiTForImageClassification": ("DeiTConfig", _VISION, "image"),
    "BeitForImageClassification": ("BeitConfig", _VISION, "image"),
    "Dinov2ForImageClassification": ("Dinov2Config", _VISION, "image"),
    "SwinForImageClassification": ("SwinConfig", dict(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=7), "image"),
    "ConvNextForImageClassification": ("ConvNextConfig", dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_labels=7), "image"),
    "ResNetForImageClassification": ("ResNetConfig", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=7), "image"),
    "SegformerForImageClassification": ("SegformerConfig", dict(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], decoder_hidden_size=16, num_labels=7), "image"),
    "CLIPVisionModel": ("CLIPVisionConfig", {k: v for k, v in _VISION.items() if k != "num_labels"}, "image"),
    "CLIPTextModel": ("CLIPTextConfig", dict(_TEXT, bos_token_id=1, eos_token_id=2), "text"),
    "SiglipVisionModel": ("SiglipVisionConfig", {k: v for k, v in _VISION.items() if k != "num_labels"}, "image"),
    "Wav2Vec2ForCTC": ("Wav2Vec2Config", dict(_WIDE, vocab_size=50, apply_spec_augment=False, layerdrop=0.0, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 2), num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4), "sound"),
    "WhisperForConditionalGeneration": ("WhisperConfig", dict(_SEQ, num_mel_bins=8, max_source_positions=16, max_target_positions=64), "speech"),
}  # fmt: skip


def _transformer(name: str) -> Model:
    library = import_module("transformers")
    config, arguments, kind = _TRANSFORMERS[name]
    module = getattr(library, name)(
        getattr(library, config)(**arguments, attn_implementation=_ATTENTION.get(name, "sdpa"))
    )
    ids, other = tokens(2, 12), tokens(2, 12).flip(1)
    calls = {
        "text": lambda: {"input_ids": ids, "attention_mask": torch.ones(2, 12, dtype=torch.int64)},
        "pair": lambda: {"input_ids": ids, "decoder_input_ids": other},
        "image": lambda: {"pixel_values": images(2, 3, 32, 32)},
        "sound": lambda: {"input_values": images(2, 400)},
        "speech": lambda: {"input_features": images(2, 8, 32), "decoder_input_ids": other},
    }
    return Model(module, (), calls[kind]())


# pytorch-cifar: every model that its files name.

_CIFAR = """LeNet VGG DPN26 DPN92 SENet18 PNASNetA PNASNetB DenseNet121 DenseNet169 DenseNet201 DenseNet161 densenet_cifar GoogLeNet
ShuffleNetG2 ShuffleNetG3 ShuffleNetV2 ResNet18 ResNet34 ResNet50 ResNet101 ResNet152 ResNeXt29_2x64d ResNeXt29_4x64d ResNeXt29_8x64d
ResNeXt29_32x4d PreActResNet18 PreActResNet34 PreActResNet50 PreActResNet101 PreActResNet152 MobileNet MobileNetV2 EfficientNetB0
RegNetX_200MF RegNetX_400MF RegNetY_400MF SimpleDLA DLA""".split()  # fmt: skip
_CIFAR_ARGUMENTS: dict[str, Any] = {"VGG": "VGG11", "ShuffleNetV2": 0.5}


def _cifar(name: str) -> Model:
    made = getattr(import_module("models"), name)
    module = made(_CIFAR_ARGUMENTS[name]) if name in _CIFAR_ARGUMENTS else made()
    return Model(module, (images(2, 3, 32, 32),))


BUILDERS: dict[str, tuple[Callable[[str], Model], list[str]]] = {
    "timm": (_timm, [*_TIMM_ANY, *_TIMM_SIZED]),
    "vit": (_vit, [*_VIT_FILES, *_VIT_WRAPPED]),
    "transformers": (_transformer, [*_TRANSFORMERS]),
    "cifar": (_cifar, _CIFAR),
}
