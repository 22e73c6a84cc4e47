"""Read the entries of a config.json with their types, and list those that do not change the logits.

A path leads through nested objects (`attn_config.alibi`); alternative names of the same entry follow after `|`.
"""

from collections.abc import Collection, Mapping
from typing import Any


class FamilyError(ValueError):
    """One project cannot represent a model of the other. `entry` is that of a config.json which is refused, if any."""

    def __init__(self, message: str, entry: str = ""):
        super().__init__(message)
        self.entry = entry


#: the default for entries that must not be missing, or null
REFUSED = object()
_ABSENT = object()
#: upper limit for integers; a config.json with larger ones is damaged or malicious
BOUNDS = {"n_vocab": 1 << 24, "n_ctx": 1 << 21, "d_model": 1 << 17, "n_layers": 1 << 10, "n_segments": 1 << 10}
BOUNDS |= {"attention.n_heads": 1 << 12, "attention.n_kv_heads": 1 << 12, "attention.d_head": 1 << 14}
BOUNDS |= {
    "mlp.d_ff": 1 << 20,
    "mlp.n_hidden": 1 << 10,
    "mlp.experts": 1 << 12,
    "mlp.experts_per_token": 1 << 12,
    "mlp.shared_d_ff": 1 << 20,
    "positions.n_buckets": 1 << 16,
    "positions.max_distance": 1 << 21,
}
LARGEST_INTEGER = 1 << 40


class Entries:
    """A config.json, or what else `source` names, and the set `read_paths` of all entries that were read so far.

    Each method takes the value for a missing entry, and with `null` that for a null entry; what is REFUSED may not be
    missing, or null.
    Raises FamilyError with the entry, its value and what was expected.
    """

    def __init__(self, values: Mapping[str, Any], source: str = "config.json"):
        self.values, self.source = values, source
        self.read_paths: set[str] = set()

    def integer(
        self, path: str, default: Any, null: Any = REFUSED, *, least: int = 1, most: int = LARGEST_INTEGER
    ) -> Any:
        """An integer from `least` to `most`."""

        def sound(value: Any) -> bool:
            return type(value) is int and least <= value <= most

        return self._ask(path, default, null, sound, f"expected a whole number from {least:,} to {most:,}")

    def number(self, path: str, default: Any, null: Any = REFUSED, *, above: float | None = None) -> Any:
        """A number, greater than `above` if that is set."""

        def sound(value: Any) -> bool:
            return type(value) in (int, float) and (above is None or value > above)

        expected = "expected a number" if above is None else f"expected a number above {above:g}"
        return self._ask(path, default, null, sound, expected)

    def flag(self, path: str, default: Any, null: Any = REFUSED) -> Any:
        """true or false."""
        return self._ask(path, default, null, lambda value: type(value) is bool, "expected true or false")

    def choice(self, path: str, default: Any, known: Collection[str], null: Any = REFUSED) -> Any:
        """One of these strings."""
        said = f"only {', '.join(map(repr, known))} can be represented"
        return self._ask(path, default, null, lambda value: isinstance(value, str) and value in known, said)

    def choices(self, path: str, known: Collection[str]) -> list[str] | None:
        """A list of these strings, None if it is missing or null."""
        said = f"expected a list of {', '.join(map(repr, known))}"

        def sound(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(one, str) and one in known for one in value)

        return self._ask(path, None, None, sound, said)

    def numbers(self, path: str) -> tuple[float, ...]:
        """A list of numbers, which must be there."""

        def sound(value: Any) -> bool:
            return isinstance(value, list) and all(type(one) in (int, float) for one in value)

        return tuple(map(float, self._ask(path, REFUSED, REFUSED, sound, "expected a list of numbers")))

    def raw(self, path: str, default: Any = None) -> Any:
        """The value itself, for a caller that checks its type."""
        return self._ask(path, default, None, lambda value: True, "")

    def has(self, path: str) -> bool:
        """Whether the entry exists, null or not."""
        self.read_paths.update(path.split("|"))
        return any(self._look_up(one) is not _ABSENT for one in path.split("|"))

    def _ask(self, path: str, default: Any, null: Any, sound: Any, expected: str) -> Any:
        spellings = path.split("|")
        self.read_paths.update(spellings)
        values = {one: value for one in spellings if (value := self._look_up(one)) is not _ABSENT}
        if not values:
            if default is REFUSED:
                raise FamilyError(f"{path} is missing in {self.source}: {expected}", path)
            return default
        held = {one: value for one, value in values.items() if value is not None}
        if not held:
            if null is REFUSED:
                raise FamilyError(f"{next(iter(values))} = null in {self.source}: {expected}", path)
            return null
        for one, value in held.items():
            if not sound(value):
                raise FamilyError(f"{one} = {format_value(value)} in {self.source}: {expected}", path)
        (first, value), *others = held.items()
        for other, second in others:
            if second != value:
                raise FamilyError(
                    f"{first} = {format_value(value)} and {other} = {format_value(second)} "
                    f"in {self.source} are one entry: keep one"
                )
        return value

    def _look_up(self, path: str) -> Any:
        value: Any = self.values
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return _ABSENT
            value = value[step]
        return value


def format_value(value: Any) -> str:
    """A value of a config.json, shortened for a message."""
    said = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else None
    return said or (repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "...")


# What no logit depends on -------------------------------------------------------------------------

#: entries of any family -> why none of its logits depends on them
WITHOUT_EFFECT = {
    name: why
    for why, names in {
        "says what the files are": "model_type architectures transformers_version _name_or_path name_or_path "
        "_commit_hash tokenizer_class processor_class license language tags auto_map unsloth_version unsloth_fixed "
        "model_name _diffusers_version transformers.js_config",
        "the precision in which weights are kept": "dtype torch_dtype use_bfloat16",
        "how the computation is carried out, not what is computed": "use_cache chunk_size_feed_forward torchscript "
        "attn_implementation _attn_implementation _attn_implementation_autoset _experts_implementation "
        "experts_implementation _flash_attn_2_enabled use_flash_attention use_flash_attention_2 gradient_checkpointing "
        "xla_device tf_legacy_loss pretraining_tp flash_attn_recompute",
        "what is returned beside the logits": "output_attentions output_hidden_states output_past return_dict "
        "return_dict_in_generate output_scores tie_last_hidden_states output_router_logits",
        "how the weights were when training began": "initializer_range initializer_factor init_std init_method_std",
        "read in training alone": "layerdrop encoder_layerdrop decoder_layerdrop activation_dropout classif_dropout "
        "router_aux_loss_coef",
        "heads for other tasks": "id2label label2id num_labels _num_labels problem_type classifier_dropout "
        "classifier_bias finetuning_task task_specific_params summary_type summary_use_proj summary_activation "
        "summary_proj_to_labels summary_first_dropout summary_last_dropout qa_dropout seq_classif_dropout "
        "classifier_activation num_choices directionality pooler_fc_size "
        "pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type",
        "read for generation alone": "eos_token_id decoder_start_token_id",
        "tokens with a use of their own": "pad_token_id bos_token_id sep_token_id cls_token_id "
        "unk_token_id mask_token_id forced_bos_token_id forced_eos_token_id prefix",
        "how texts are drawn": "do_sample num_beams num_beam_groups num_return_sequences temperature top_k top_p "
        "typical_p min_p max_length min_length max_new_tokens early_stopping length_penalty repetition_penalty "
        "no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids diversity_penalty epsilon_cutoff eta_cutoff "
        "encoder_repetition_penalty exponential_decay_length_penalty remove_invalid_values suppress_tokens "
        "begin_suppress_tokens num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
        "assistant_lookbehind target_lookbehind",
        "the family says it": "is_encoder_decoder is_decoder tie_encoder_decoder cross_attention_hidden_size",
    }.items()
    for name in names.split()
}
#: entries that change the logits in any family, with the only value that is read
CONSTANTS: dict[str, Any] = {
    "is_causal": True,
    "per_layer_config": {},
    "pruned_heads": {},
    "fusion_config": None,
    "quantization_config": None,
}
