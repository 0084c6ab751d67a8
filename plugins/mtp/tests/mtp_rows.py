"""What vLLM 0.32 makes of a config.json of each family: inputs, and keys of the result, typed from its documentation.

A row is (number of the rule and what is special, config, keys that the result has). All other keys of the
result are those of the config. None as a result: the config stays as it is.
"""

from __future__ import annotations

from typing import Any

Row = tuple[str, dict[str, Any], dict[str, Any] | None]


def of_type(kind: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": kind, "architectures": ["SomethingForCausalLM"], "num_hidden_layers": 4, **keys}


def of_class(name: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": "some", "architectures": [name], "num_hidden_layers": 4, **keys}


def made(kind: str, n: int | None, name: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": kind, "n_predict": n, "architectures": [name], **keys}


TWO = {"num_nextn_predict_layers": 2}
QUANT = {"quant_method": "fp8"}
TEXT = {"model_type": "inner", "num_hidden_layers": 6, "hidden_size": 8}
SLIDING, FULL = "sliding_attention", "full_attention"
MOBIUS = {**TEXT, "mtp_num_hidden_layers": 1, "num_experts": 9, "mtp_num_experts": 4, "mtp_num_experts_per_tok": 2}

ROWS: list[Row] = [
    (
        "1",
        of_type("dots3_note", layer_types=[FULL], **TWO),
        made("dots3_note_mtp", 2, "Dots3NoteMTPModel", layer_types=[FULL, SLIDING, SLIDING]),
    ),
    (
        "1 default",
        of_type("dots3_note", layer_types=[FULL], mtp_layer_types=[FULL]),
        made("dots3_note_mtp", 1, "Dots3NoteMTPModel", layer_types=[FULL, FULL]),
    ),
    ("2", of_type("deepseek_v3", **TWO), made("deepseek_mtp", 2, "DeepSeekMTPModel")),
    ("2 none", of_type("deepseek_v3"), made("deepseek_mtp", None, "DeepSeekMTPModel")),
    ("2 again", of_type("deepseek_mtp", **TWO), made("deepseek_mtp", 2, "DeepSeekMTPModel")),
    ("3", of_type("deepseek_v32", **TWO), made("deepseek_mtp", 2, "DeepseekV32MTPModel")),
    ("3 dsa", of_type("glm_moe_dsa", **TWO), made("deepseek_mtp", 2, "DeepseekV32MTPModel")),
    ("4", of_type("deepseek_v4", **TWO), made("deepseek_mtp", 2, "DeepSeekV4MTPModel")),
    ("5", of_type("deepseek_v41", **TWO), made("deepseek_mtp", 2, "SomethingForCausalLM")),
    ("6", of_type("pangu_ultra_moe", **TWO), made("pangu_ultra_moe_mtp", 2, "OpenPanguMTPModel")),
    ("6 again", of_type("pangu_ultra_moe_mtp", **TWO), made("pangu_ultra_moe_mtp", 2, "OpenPanguMTPModel")),
    ("7", of_type("kimi_k3", text_config={**TEXT, **TWO}), made("kimi_k3_mtp", 2, "KimiK3MTPModel")),
    ("7 not at the top", of_type("kimi_k3", text_config=TEXT, **TWO), made("kimi_k3_mtp", None, "KimiK3MTPModel")),
    ("8", of_class("MiMoForCausalLM", **TWO), made("mimo_mtp", 2, "MiMoMTPModel", num_hidden_layers=0)),
    (
        "9",
        of_class("MiMoV2ForCausalLM", num_nextn_predict_layers=3),
        made("mimo_v2_mtp", 1, "MiMoV2MTPModel", num_hidden_layers=0, num_nextn_predict_layers=1),
    ),
    (
        "10",
        of_class("MiMoV2OmniForCausalLM"),
        made("mimo_v2_mtp", 1, "MiMoV2OmniMTPModel", num_hidden_layers=0, num_nextn_predict_layers=1),
    ),
    (
        "11",
        of_class("MiMoV2FlashForCausalLM"),
        made("mimo_v2_mtp", 1, "MiMoV2MTPModel", num_hidden_layers=0, num_nextn_predict_layers=1),
    ),
    ("12", of_class("Glm4MoeForCausalLM", **TWO), made("glm4_moe_mtp", 2, "Glm4MoeMTPModel", num_hidden_layers=4)),
    (
        "13",
        of_class("Glm4MoeLiteForCausalLM", **TWO),
        made("glm4_moe_lite_mtp", 2, "Glm4MoeLiteMTPModel", num_hidden_layers=0),
    ),
    (
        "14",
        of_class("GlmOcrForConditionalGeneration", **TWO),
        made("glm_ocr_mtp", 2, "GlmOcrMTPModel", num_hidden_layers=0),
    ),
    ("15", of_type("ernie4_5_moe", **TWO), made("ernie_mtp", 2, "ErnieMTPModel")),
    ("15 again", of_type("ernie_mtp", **TWO), made("ernie_mtp", 2, "ErnieMTPModel")),
    (
        "16 then 17",
        of_class("NemotronH_Omni_Reasoning_V3", text_config={**TEXT, "model_type": "nemotron_h", **TWO}),
        {**made("nemotron_h_mtp", 2, "NemotronHMTPModel"), **TWO, "num_hidden_layers": 6, "hidden_size": 8},
    ),
    (
        "16 alone",
        of_class("NemotronH_Super_Omni_Reasoning_V3", text_config={**TEXT, "model_type": "nemotron_h"}),
        {"model_type": "nemotron_h", "num_hidden_layers": 6, "hidden_size": 8},
    ),
    ("17", of_type("nemotron_h", **TWO), made("nemotron_h_mtp", 2, "NemotronHMTPModel")),
    ("17 puzzle", of_type("nemotron_h_puzzle", **TWO), made("nemotron_h_mtp", 2, "NemotronHMTPModel")),
    ("17 no field", of_type("nemotron_h"), None),
    ("17 zero", of_type("nemotron_h", num_nextn_predict_layers=0), None),
    ("17 again", of_type("nemotron_h_mtp"), made("nemotron_h_mtp", 1, "NemotronHMTPModel")),
    ("18", of_type("qwen3_next", **TWO), made("qwen3_next_mtp", 2, "Qwen3NextMTP")),
    ("18 again", of_type("qwen3_next_mtp"), made("qwen3_next_mtp", None, "Qwen3NextMTP")),
    (
        "19",
        of_type("qwen4_exp", text_config={**TEXT, "mtp_num_hidden_layers": 3, "hc_count": "4", **TWO}),
        made("qwen4_exp_mtp", 3, "Qwen4ExpMTP", hc_mult=4, index_share_for_mtp_iteration=False),
    ),
    (
        "19 text",
        of_type("qwen4_exp_text", hc_count=2, index_share_for_mtp_iteration=True, **TWO),
        made("qwen4_exp_mtp", 2, "Qwen4ExpMTP", hc_mult=2, index_share_for_mtp_iteration=True),
    ),
    (
        "19 again",
        of_type("qwen4_exp_mtp", hc_count=2),
        made("qwen4_exp_mtp", None, "Qwen4ExpMTP", hc_mult=2, index_share_for_mtp_iteration=False),
    ),
    ("20", of_class("BailingMoeV3ForCausalLM", **TWO), made("bailing_hybrid_v3_mtp", 2, "BailingMoeV3MTPModel")),
    ("20 again", of_type("bailing_hybrid_v3_mtp", **TWO), made("bailing_hybrid_v3_mtp", 2, "BailingMoeV3MTPModel")),
    (
        "21",
        of_class(
            "BailingMoeV3VLForConditionalGeneration", text_config={**TEXT, **TWO}, quantization_config=QUANT, vision={}
        ),
        {
            **made("bailing_hybrid_v3_mtp", 2, "BailingMoeV3MTPModel", num_hidden_layers=6, hidden_size=8, **TWO),
            "quantization_config": QUANT,
        },
    ),
    (
        "21 own",
        of_class(
            "BailingMoeV3VLForConditionalGeneration",
            text_config={**TEXT, "quantization_config": {"quant_method": "own"}},
            quantization_config=QUANT,
        ),
        {
            **made("bailing_hybrid_v3_mtp", None, "BailingMoeV3MTPModel", num_hidden_layers=6, hidden_size=8),
            "quantization_config": {"quant_method": "own"},
        },
    ),
    (
        "21 null",
        of_class(
            "BailingMoeV3VLForConditionalGeneration",
            text_config={**TEXT, "quantization_config": None},
            quantization_config=QUANT,
        ),
        {
            **made("bailing_hybrid_v3_mtp", None, "BailingMoeV3MTPModel", num_hidden_layers=6, hidden_size=8),
            "quantization_config": QUANT,
        },
    ),
    ("22", of_type("bailing_hybrid", **TWO), made("bailing_hybrid_mtp", 2, "BailingMoeV25MTPModel")),
    (
        "22 among",
        {"model_type": "x", "architectures": ["A", "BailingMoeV2_5ForCausalLM"], **TWO},
        made("bailing_hybrid_mtp", 2, "BailingMoeV25MTPModel"),
    ),
    (
        "22 but 20",
        {"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"], **TWO},
        made("bailing_hybrid_v3_mtp", 2, "BailingMoeV3MTPModel"),
    ),
    ("22 again", of_type("bailing_hybrid_mtp", **TWO), made("bailing_hybrid_mtp", 2, "BailingMoeV25MTPModel")),
    ("23", of_type("exaone_moe", **TWO), made("exaone_moe_mtp", 2, "ExaoneMoeMTP")),
    ("23 again", of_type("exaone_moe_mtp", **TWO), made("exaone_moe_mtp", 2, "ExaoneMoeMTP")),
    ("24", of_type("exaone4_5", **TWO), made("exaone4_5_mtp", 2, "Exaone4_5_MTP")),
    ("24 contains", of_type("vl_exaone4_5_text", **TWO), made("exaone4_5_mtp", 2, "Exaone4_5_MTP")),
    ("24 again", of_type("exaone4_5_mtp", **TWO), made("exaone4_5_mtp", 2, "Exaone4_5_MTP")),
    ("25", of_type("qwen3_5_text", mtp_num_hidden_layers=2), made("qwen3_5_mtp", 2, "Qwen3_5MTP")),
    (
        "25 nested",
        of_type("qwen3_5", text_config={**TEXT, "mtp_num_hidden_layers": 1}),
        made("qwen3_5_mtp", 1, "Qwen3_5MTP"),
    ),
    (
        "25 both",
        of_type("qwen3_5", mtp_num_hidden_layers=2, text_config={**TEXT, "mtp_num_hidden_layers": 1}),
        made("qwen3_5_mtp", 2, "Qwen3_5MTP"),
    ),
    ("25 other key", of_type("qwen3_5", **TWO), made("qwen3_5_mtp", None, "Qwen3_5MTP")),
    ("26", of_type("qwen3_5_moe_text", mtp_num_hidden_layers=2), made("qwen3_5_mtp", 2, "Qwen3_5MoeMTP")),
    (
        "26 nested",
        of_type("qwen3_5_moe", text_config={**TEXT, "mtp_num_hidden_layers": 1}),
        made("qwen3_5_mtp", 1, "Qwen3_5MoeMTP"),
    ),
    (
        "27 dense",
        of_type("intern_s2_preview", text_config={**TEXT, "mtp_num_hidden_layers": 1}),
        made("qwen3_5_mtp", 1, "Qwen3_5MTP"),
    ),
    (
        "27 experts",
        of_type("intern_s2_preview", text_config={"model_type": "qwen3_5_moe_text", "mtp_num_hidden_layers": 1}),
        made("qwen3_5_mtp", 1, "Qwen3_5MoeMTP"),
    ),
    (
        "28",
        of_type("interns2_mobius", text_config=MOBIUS),
        made(
            "qwen3_5_mtp",
            1,
            "InternS2MobiusMTP",
            text_config={**MOBIUS, "model_type": "qwen3_5_moe_text", "num_experts": 4, "num_experts_per_tok": 2},
        ),
    ),
    ("29", of_type("longcat_flash", **TWO), made("longcat_flash_mtp", 2, "LongCatFlashMTPModel")),
    ("29 default", of_type("longcat_flash"), made("longcat_flash_mtp", 1, "LongCatFlashMTPModel")),
    ("30", of_type("step3p5", **TWO), made("step3p5_mtp", 2, "Step3p5MTP")),
    (
        "30 nested",
        of_type("step3p7", text_config={**TEXT, "num_nextn_predict_layers": 3}, quantization_config=QUANT),
        {
            **made("step3p5_mtp", 3, "Step3p5MTP", num_hidden_layers=6, hidden_size=8, num_nextn_predict_layers=3),
            "quantization_config": QUANT,
        },
    ),
    ("30 class", of_class("Step3p5ForCausalLM"), made("step3p5_mtp", 1, "Step3p5MTP")),
    ("30 other class", of_class("Step3p7ForConditionalGeneration"), made("step3p5_mtp", 1, "Step3p5MTP")),
    ("39", of_type("step5", **TWO), made("step5_mtp", 2, "Step5MTP")),
    (
        "39 nested",
        of_type("step5_vl", text_config={**TEXT, "num_nextn_predict_layers": 3}, quantization_config=QUANT),
        {
            **made("step5_mtp", 3, "Step5MTP", num_hidden_layers=6, hidden_size=8, num_nextn_predict_layers=3),
            "quantization_config": QUANT,
        },
    ),
    ("39 class", of_class("Step5ForCausalLM"), made("step5_mtp", 1, "Step5MTP")),
    ("39 other class", of_class("Step5ForConditionalGeneration"), made("step5_mtp", 1, "Step5MTP")),
    ("31 is no MTP", of_class("MistralLarge3ForCausalLM", **TWO), None),
    ("31 of a type", {"model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"], **TWO}, None),
    ("32", of_type("hy_v3", **TWO), made("hy_v3_mtp", 2, "HYV3MTPModel")),
    ("33", of_type("hy_v4", **TWO), made("hy_v4_mtp", 2, "HYV4MTPModel")),
    (
        "34",
        of_type(
            "inkling_mm_model",
            text_config={**TEXT, "local_layer_ids": [0, 1, 2]},
            mtp_config={**TWO, "chain_hidden_post_norm": True, "local_layer_ids": [1]},
        ),
        made(
            "inkling_mtp",
            2,
            "InklingMTPModel",
            num_hidden_layers=6,
            hidden_size=8,
            num_nextn_predict_layers=2,
            chain_hidden_post_norm=True,
            local_layer_ids=[1],
        ),
    ),
    (
        "34 defaults",
        of_type("inkling_model", mtp_config=TWO),
        made(
            "inkling_mtp",
            2,
            "InklingMTPModel",
            num_nextn_predict_layers=2,
            chain_hidden_post_norm=False,
            local_layer_ids=[],
        ),
    ),
    (
        "35",
        of_type("gemma4_assistant", text_config={**TEXT, "num_kv_shared_layers": 3}),
        made("gemma4_mtp", 1, "Gemma4MTPModel", text_config={**TEXT, "num_kv_shared_layers": 0}),
    ),
    (
        "35 without",
        of_type("gemma4_unified_assistant", text_config=TEXT),
        made("gemma4_mtp", 1, "Gemma4MTPModel", text_config=TEXT),
    ),
    (
        "36",
        of_type("minimax_m3_vl", text_config={**TEXT, "num_mtp_modules": 2}, quantization_config=QUANT),
        {
            **made("minimax_m3_mtp", 2, "MiniMaxM3MTP", num_hidden_layers=6, hidden_size=8, num_mtp_modules=2),
            "quantization_config": QUANT,
        },
    ),
    ("36 class", of_class("MiniMaxM3SparseForConditionalGeneration"), made("minimax_m3_mtp", 1, "MiniMaxM3MTP")),
    ("37", of_type("minimax_m3_mtp", num_mtp_modules=2), made("minimax_m3_mtp", 2, "MiniMaxM3MTP")),
    ("37 class", of_class("MiniMaxM3MTP"), made("some", 1, "MiniMaxM3MTP")),
    (
        "38",
        of_type("glm5_next", text_config={**TEXT, **TWO, "index_share_for_mtp_iteration": True}),
        made("glm5_next_mtp", 2, "Glm5NextMTPModel", index_share_for_mtp_iteration=True),
    ),
    (
        "38 flat",
        of_type("glm5_next", **TWO),
        made("glm5_next_mtp", 2, "Glm5NextMTPModel", index_share_for_mtp_iteration=False),
    ),
]

# Rows whose text_config takes the place of the config around it, and so is not to be seen any longer.
PROMOTED = {"16 then 17", "16 alone", "21", "21 own", "21 null", "30 nested", "39 nested", "34", "36"}
