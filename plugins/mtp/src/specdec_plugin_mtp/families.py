"""The families of models with MTP modules, one row each: how a config.json is known, what it becomes, what drafts.

The first row that matches counts. Rows are in the order in which vLLM 0.33 tries its rules, except where one of its
rules would take what belongs to another. The fields of a row are explained at `family.Family`.
"""

from __future__ import annotations

from typing import Final

from specdec_plugin_mtp import fields, speculators
from specdec_plugin_mtp.family import Family

NEXTN: Final = ("num_nextn_predict_layers",)
TEXT_NEXTN: Final = ("text.num_nextn_predict_layers",)
QWEN3_5_COUNTS: Final = ("mtp_num_hidden_layers", "text.mtp_num_hidden_layers")
FROM_ZERO: Final = {"num_hidden_layers": 0}  # only numbers the modules: the first one is then layer 0
ONE_FROM_ZERO: Final = {"num_hidden_layers": 0, "num_nextn_predict_layers": 1}

THROUGH_VLLM: Final = "only its config.json is read here, for hosts with modules of their own such as vLLM"
NO_CLASS: Final = f"transformers has no class for its target: {THROUGH_VLLM}"
NOT_STUDIED: Final = f"the layout of its MTP tensors has not been studied: {THROUGH_VLLM}"
NOT_BUILT: Final = f"its MTP modules are not built yet: {THROUGH_VLLM}"
HYBRID: Final = f"its target has recurrent layers, and its MTP modules are not built yet: {THROUGH_VLLM}"

# A file of a language model in another one, whose text_config takes its place before any row is tried.
WRAPPERS: Final = ("NemotronH_Super_Omni_Reasoning_V3", "NemotronH_Omni_Reasoning_V3")

BEHIND_THE_LAYERS: Final = tuple(f"layers.{{layer}}.{name}" for name in ("enorm", "hnorm", "eh_proj"))
QWEN: Final = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.layers.{i}")

MISTRAL_LARGE_3: Final = Family(
    title="Mistral Large 3",
    architectures=("MistralLarge3ForCausalLM",),
    why_not="as a draft it is an EAGLE head, whatever its model_type: name the method of such heads",
    vllm_drafts=False,
)
DEEPSEEK_V3: Final = Family(
    title="DeepSeek V3, R1, V3.1",
    types=("deepseek_v3",),
    again="type",
    becomes="deepseek_mtp",
    architecture="DeepSeekMTPModel",
    counts=NEXTN,
    modules=BEHIND_THE_LAYERS,
)
DEEPSEEK_V32: Final = Family(
    title="DeepSeek V3.2, GLM-5",
    types=("deepseek_v32", "glm_moe_dsa"),
    again="pair",
    becomes="deepseek_mtp",
    architecture="DeepseekV32MTPModel",
    counts=NEXTN,
    why_not=NOT_BUILT,
    modules=BEHIND_THE_LAYERS,
)
DEEPSEEK_V4: Final = Family(
    title="DeepSeek V4",
    types=("deepseek_v4",),
    again="pair",
    becomes="deepseek_mtp",
    architecture="DeepSeekV4MTPModel",
    counts=NEXTN,
    why_not=f"its modules read all residual streams of the target, which no host delivers yet: {THROUGH_VLLM}",
)
DEEPSEEK_V41: Final = Family(
    title="DeepSeek V4.1",
    types=("deepseek_v41",),
    becomes="deepseek_mtp",
    counts=NEXTN,
    why_not="its DSpark modules read all residual streams of the target, which no host delivers: give another draft",
    vllm_drafts=False,
)
MIMO: Final = Family(
    title="MiMo-7B",
    architectures=("MiMoForCausalLM",),
    becomes="mimo_mtp",
    architecture="MiMoMTPModel",
    counts=NEXTN,
    sets=FROM_ZERO,
    modules=tuple(f"mtp_layers.{{i}}.{name}" for name in ("token_layernorm", "hidden_layernorm", "input_proj")),
    reads="residual",
    loads_as={"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "auto_map": None},
)
GLM4_MOE: Final = Family(
    title="GLM-4.5, 4.6, 4.7",
    architectures=("Glm4MoeForCausalLM",),
    becomes="glm4_moe_mtp",
    architecture="Glm4MoeMTPModel",
    counts=NEXTN,
    modules=BEHIND_THE_LAYERS,
)
ERNIE: Final = Family(
    title="Ernie 4.5 MoE",
    types=("ernie4_5_moe",),
    again="type",
    becomes="ernie_mtp",
    architecture="ErnieMTPModel",
    counts=NEXTN,
    modules=("mtp_emb_norm.{i}", "mtp_hidden_norm.{i}", "mtp_linear_proj.{i}", "mtp_block.{i}"),
)
LONGCAT: Final = Family(
    title="LongCat-Flash",
    types=("longcat_flash",),
    becomes="longcat_flash_mtp",
    architecture="LongCatFlashMTPModel",
    counts=NEXTN,
    default=1,
    modules=("mtp.norm", *(f"mtp.layers.{{i}}.{name}" for name in ("enorm", "hnorm", "eh_proj"))),
)
QWEN3_NEXT: Final = Family(
    title="Qwen3-Next",
    types=("qwen3_next",),
    again="type",
    becomes="qwen3_next_mtp",
    architecture="Qwen3NextMTP",
    counts=NEXTN,
    numbered="mtp.layers.{i}",
    modules=QWEN,
)
QWEN3_5: Final = Family(
    title="Qwen3.5",
    types=("qwen3_5", "qwen3_5_text"),
    becomes="qwen3_5_mtp",
    architecture="Qwen3_5MTP",
    counts=QWEN3_5_COUNTS,
    numbered="mtp.layers.{i}",
    unfit=fields.own_embeddings,
    modules=QWEN,
)
QWEN3_5_MOE: Final = Family(
    title="Qwen3.5 MoE",
    types=("qwen3_5_moe", "qwen3_5_moe_text"),
    becomes="qwen3_5_mtp",
    architecture="Qwen3_5MoeMTP",
    counts=QWEN3_5_COUNTS,
    numbered="mtp.layers.{i}",
    unfit=fields.own_embeddings,
    modules=QWEN,
)

FAMILIES: Final = (
    # Their layers have types of whole models, so they come before those.
    *speculators.FAMILIES,
    MISTRAL_LARGE_3,
    Family(
        title="dots3.note",
        types=("dots3_note",),
        becomes="dots3_note_mtp",
        architecture="Dots3NoteMTPModel",
        counts=NEXTN,
        default=1,
        also=fields.mtp_layer_types,
        why_not=NO_CLASS,
    ),
    # These two are told apart from DeepSeek V3, once converted, by their architectures: so they come first.
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    DEEPSEEK_V3,
    DEEPSEEK_V41,
    Family(
        title="Pangu Ultra MoE",
        types=("pangu_ultra_moe",),
        again="type",
        becomes="pangu_ultra_moe_mtp",
        architecture="OpenPanguMTPModel",
        counts=NEXTN,
        why_not=NO_CLASS,
        modules=BEHIND_THE_LAYERS,
    ),
    Family(
        title="Kimi K3",
        types=("kimi_k3",),
        becomes="kimi_k3_mtp",
        architecture="KimiK3MTPModel",
        counts=("text_config.num_nextn_predict_layers",),
        why_not=NO_CLASS,
    ),
    MIMO,
    Family(
        title="MiMo-V2",
        architectures=("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"),
        becomes="mimo_v2_mtp",
        architecture="MiMoV2MTPModel",
        default=1,
        sets=ONE_FROM_ZERO,
        why_not=NOT_BUILT,
        modules=tuple(f"mtp.layers.{{i}}.{name}" for name in ("enorm", "hnorm", "eh_proj")),
    ),
    Family(
        title="MiMo-V2 Omni",
        architectures=("MiMoV2OmniForCausalLM",),
        becomes="mimo_v2_mtp",
        architecture="MiMoV2OmniMTPModel",
        default=1,
        sets=ONE_FROM_ZERO,
        why_not=NO_CLASS,
        modules=tuple(f"mtp.layers.{{i}}.{name}" for name in ("enorm", "hnorm", "eh_proj")),
    ),
    GLM4_MOE,
    Family(
        title="GLM-4 MoE Lite",
        architectures=("Glm4MoeLiteForCausalLM",),
        becomes="glm4_moe_lite_mtp",
        architecture="Glm4MoeLiteMTPModel",
        counts=NEXTN,
        sets=FROM_ZERO,
        why_not=NOT_BUILT,
        modules=BEHIND_THE_LAYERS,
    ),
    Family(
        title="GLM-OCR",
        architectures=("GlmOcrForConditionalGeneration",),
        becomes="glm_ocr_mtp",
        architecture="GlmOcrMTPModel",
        counts=NEXTN,
        sets=FROM_ZERO,
        why_not=NOT_BUILT,
        modules=BEHIND_THE_LAYERS,
    ),
    ERNIE,
    Family(
        title="Nemotron-H, Nemotron-H Omni",
        types=("nemotron_h", "nemotron_h_puzzle"),
        where=fields.has_modules,
        again="type",
        becomes="nemotron_h_mtp",
        architecture="NemotronHMTPModel",
        counts=NEXTN,
        default=1,
        why_not=HYBRID,
    ),
    QWEN3_NEXT,
    Family(
        title="Qwen4 (experimental)",
        types=("qwen4_exp", "qwen4_exp_text"),
        again="type",
        becomes="qwen4_exp_mtp",
        architecture="Qwen4ExpMTP",
        counts=("text.mtp_num_hidden_layers", *TEXT_NEXTN),
        also=fields.hyper_connections,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Bailing MoE V3",
        architectures=("BailingMoeV3ForCausalLM",),
        again="type",
        becomes="bailing_hybrid_v3_mtp",
        architecture="BailingMoeV3MTPModel",
        counts=NEXTN,
        why_not=NO_CLASS,
    ),
    Family(
        title="Bailing MoE V3 VL",
        architectures=("BailingMoeV3VLForConditionalGeneration",),
        becomes="bailing_hybrid_v3_mtp",
        architecture="BailingMoeV3MTPModel",
        counts=NEXTN,
        promotes=True,
        why_not=NO_CLASS,
    ),
    Family(
        title="Bailing MoE V2.5",
        types=("bailing_hybrid",),
        among="BailingMoeV2_5ForCausalLM",
        again="type",
        becomes="bailing_hybrid_mtp",
        architecture="BailingMoeV25MTPModel",
        counts=NEXTN,
        why_not=NO_CLASS,
    ),
    Family(
        title="EXAONE MoE",
        types=("exaone_moe",),
        again="type",
        becomes="exaone_moe_mtp",
        architecture="ExaoneMoeMTP",
        counts=NEXTN,
        why_not=NOT_BUILT,
        modules=QWEN,
    ),
    Family(
        title="EXAONE 4.5",
        contains="exaone4_5",
        becomes="exaone4_5_mtp",
        architecture="Exaone4_5_MTP",
        counts=NEXTN,
        why_not=NOT_BUILT,
        modules=QWEN,
    ),
    QWEN3_5,
    QWEN3_5_MOE,
    Family(
        title="InternS2 preview",
        types=("intern_s2_preview",),
        becomes="qwen3_5_mtp",
        counts=("text_config.mtp_num_hidden_layers",),
        also=fields.by_text_type,
        why_not=NO_CLASS,
    ),
    Family(
        title="InternS2 Mobius",
        types=("interns2_mobius",),
        becomes="qwen3_5_mtp",
        architecture="InternS2MobiusMTP",
        counts=("text_config.mtp_num_hidden_layers",),
        also=fields.experts_of_modules,
        why_not=NO_CLASS,
    ),
    LONGCAT,
    Family(
        title="Step-3.5, 3.7",
        types=("step3p5", "step3p7"),
        architectures=("Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"),
        becomes="step3p5_mtp",
        architecture="Step3p5MTP",
        counts=NEXTN,
        default=1,
        promotes=True,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Step-5",
        types=("step5", "step5_vl"),
        architectures=("Step5ForCausalLM", "Step5ForConditionalGeneration"),
        becomes="step5_mtp",
        architecture="Step5MTP",
        counts=NEXTN,
        default=1,
        promotes=True,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Hunyuan V3",
        types=("hy_v3",),
        becomes="hy_v3_mtp",
        architecture="HYV3MTPModel",
        counts=NEXTN,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Hunyuan V4",
        types=("hy_v4",),
        becomes="hy_v4_mtp",
        architecture="HYV4MTPModel",
        counts=NEXTN,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Inkling",
        types=("inkling_mm_model", "inkling_model"),
        becomes="inkling_mtp",
        architecture="InklingMTPModel",
        counts=("mtp_config.num_nextn_predict_layers",),
        required=True,
        promotes=True,
        also=fields.from_mtp_config,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="Gemma 4 assistants",
        types=("gemma4_assistant", "gemma4_unified_assistant"),
        becomes="gemma4_mtp",
        architecture="Gemma4MTPModel",
        default=1,
        also=fields.no_shared_layers,
        reads="keys",
        whole=True,
    ),
    Family(
        title="MiniMax M3",
        types=("minimax_m3_vl",),
        architectures=("MiniMaxM3SparseForConditionalGeneration",),
        becomes="minimax_m3_mtp",
        architecture="MiniMaxM3MTP",
        counts=("num_mtp_modules",),
        default=1,
        promotes=True,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="MiniMax M3, modules alone",
        types=("minimax_m3_mtp",),
        architectures=("MiniMaxM3MTP",),
        architecture="MiniMaxM3MTP",
        counts=("num_mtp_modules",),
        default=1,
        why_not=NOT_STUDIED,
    ),
    Family(
        title="GLM-5 next",
        types=("glm5_next",),
        becomes="glm5_next_mtp",
        architecture="Glm5NextMTPModel",
        counts=TEXT_NEXTN,
        required=True,
        also=fields.shared_indices,
        why_not=NOT_STUDIED,
    ),
)
