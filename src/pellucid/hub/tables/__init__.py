"""The tables of the families, in the order in which an export tries them."""

from pellucid.hub.tables.bert import BERT, DISTILBERT, ELECTRA, ROBERTA, XLM_ROBERTA
from pellucid.hub.tables.cohere import COHERE, COHERE2, EXAONE4
from pellucid.hub.tables.dense import ARCEE, GLM, GLM4, MINISTRAL, NEMOTRON, PHI3, SEED_OSS, STARCODER2
from pellucid.hub.tables.encoder_decoder import BART, MARIAN, MBART, T5
from pellucid.hub.tables.experts import MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from pellucid.hub.tables.gemma import GEMMA, GEMMA2, GEMMA3
from pellucid.hub.tables.gpt import GPT1, GPT2, GPT_BIGCODE, GPT_NEO, GPT_NEOX
from pellucid.hub.tables.granite import GRANITE, GRANITEMOE
from pellucid.hub.tables.llama import LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3, SMOLLM3, STABLELM
from pellucid.hub.tables.modernbert import MODERNBERT
from pellucid.hub.tables.olmo import OLMO, OLMO3
from pellucid.hub.tables.others import BLOOM, MPT, OPT
from pellucid.hub.tables.parallel import FALCON, GPTJ, PHI
from pellucid.hub.tables.rows import ConfigField, Derived, Family, TensorRow

__all__ = ["FAMILIES", "ConfigField", "Derived", "Family", "TensorRow"]

FAMILIES = {
    family.name: family
    for family in (
        GPT2,
        GPT_NEOX,
        BERT,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GPT1,
        GPT_NEO,
        GPT_BIGCODE,
        OPT,
        BLOOM,
        MPT,
        STABLELM,
        ROBERTA,
        XLM_ROBERTA,
        DISTILBERT,
        ELECTRA,
        MODERNBERT,
        GPTJ,
        PHI,
        FALCON,
        OLMO2,
        GEMMA,
        GEMMA2,
        GEMMA3,
        SMOLLM3,
        QWEN3_MOE,
        OLMOE,
        QWEN2_MOE,
        MIXTRAL,
        PHI3,
        STARCODER2,
        NEMOTRON,
        ARCEE,
        GLM,
        GLM4,
        SEED_OSS,
        MINISTRAL,
        OLMO3,
        OLMO,
        EXAONE4,
        COHERE,
        COHERE2,
        GRANITE,
        GRANITEMOE,
        T5,
        BART,
        MBART,
        MARIAN,
    )
}
