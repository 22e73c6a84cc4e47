"""Edits as the page writes them: small, because a value that is an array is named by the text it comes from.

An edit is the dict of `Edit.to_dict`, except that `value` may be one of

    {"run_of": TEXT}                            what the run of this text has there
    {"mean_of": TEXT}                           the mean of that over the positions of the text
    {"run_of": TEXT, "source": TEXT}            the same where the encoder reads another source (of mean_of too)
    {"towards": TEXT, "away": TEXT, "pos": -1}  the difference of what two texts have at one position, or of the means
                                                over all positions ("mean")

so that a list of edits fits into the address of a page, and one list acts in traces and in generation alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from pellucid.edits import AXES_OF_SELECTION, Edit, EditError
from pellucid.lens.analysis.steering import direction, mean_activation
from pellucid.lens.core.inputs import InputOptions
from pellucid.lens.trace import trace
from pellucid.serve.protocol import EditBody
from pellucid.text_model import Model

#: the fields of a named value, by its first one
NAMED_VALUES = {"run_of": {"run_of", "source"}, "mean_of": {"mean_of", "source"}, "towards": {"towards", "away", "pos"}}
#: fields of a named value that may be left out
OPTIONAL = {"pos", "source"}


def resolve_edit(body: EditBody, model: Model, **options: Unpack[InputOptions]) -> Edit:
    """The edit with its value computed; `options` say how texts are read.

    Raises EditError for a value that is neither an array nor one of the named ones, and what a trace raises for texts
    and names.
    """
    name, value = body.name, body.value
    if not isinstance(value, Mapping):
        return body.edit(model.network.embed.token.weight.dtype)
    kind = named_kind(value)
    if "source" in value:
        options["source"] = value["source"]
    if kind == "run_of":
        computed = trace(model, value["run_of"], keep=[name], **options)[name]
    elif kind == "mean_of":
        computed = mean_activation(model, value["mean_of"], name, **options)
    else:
        position = value.get("pos", -1)
        computed = direction(model, [value["towards"]], [value["away"]], at=name, pos=position, **options)
    plain = Edit.from_dict({field: item for field, item in edit_fields(body).items() if field != "value"})
    return replace(plain, value=computed.detach())


def resolve_edits(bodies: Sequence[EditBody], model: Model, **options: Unpack[InputOptions]) -> list[Edit]:
    """Each edit with its value computed."""
    return [resolve_edit(body, model, **options) for body in bodies]


def edit_fields(body: EditBody) -> dict[str, Any]:
    """The fields that were sent, under the names of `Edit.to_dict`."""
    return body.model_dump(exclude_unset=True, by_alias=True)


def named_kind(value: Mapping[str, Any]) -> str:
    """Which of the named values this is. Raises EditError for anything else."""
    for kind, fields in NAMED_VALUES.items():
        if kind in value and not set(value) - fields:
            texts = [value.get(field) for field in (fields - OPTIONAL) | (value.keys() & {"source"})]
            if not all(isinstance(text, str) for text in texts):
                break
            return kind
    known = "; ".join(", ".join(sorted(fields)) for fields in NAMED_VALUES.values())
    raise EditError(f"the value {dict(value)!r:.200} is no array and names none: give the fields {known}, with texts")


def edits_code(bodies: Sequence[EditBody], **options: Unpack[InputOptions]) -> str:
    """Python for the list of edits, which reads `model` and `pellucid.edits` as `edits`.

    options  how texts are read
    """
    calls = [edit_code(edit_fields(body), options) for body in bodies]
    if len(calls) < 2:
        return f"[{''.join(calls)}]"
    return "[\n" + "".join(f"    {call},\n" for call in calls) + "]"


def edit_code(fields: Mapping[str, Any], options: InputOptions) -> str:
    """The call that makes one edit."""
    op, name, value = fields["op"], fields["name"], fields.get("value")
    arguments = [repr(name)]
    if op == "mean":
        arguments.append(
            f"over={repr(fields.get('over', 'pos')) if value is None else _value_code(value, name, options)}"
        )
    elif value is not None:
        arguments.append(_value_code(value, name, options))
    if op in ("add", "scale") and "factor" in fields:
        arguments.append(f"factor={fields['factor']!r}")
    arguments += [f"{bound}={fields[bound]!r}" for bound in ("low", "high") if fields.get(bound) is not None]
    arguments += [
        f"{place}={_indices_code(fields[place])}" for place in AXES_OF_SELECTION if fields.get(place) is not None
    ]
    return f"edits.{'set_to' if op == 'set' else op}({', '.join(arguments)})"


def _value_code(value: Any, name: str, options: InputOptions) -> str:
    if not isinstance(value, Mapping):
        return repr(value)
    kind = named_kind(value)
    read = options_code({**options, "source": value["source"]} if "source" in value else options)
    if kind == "run_of":
        return f"model.trace({value['run_of']!r}{read})[{name!r}]"
    if kind == "mean_of":
        return f"model.mean_activation({value['mean_of']!r}, {name!r}{read})"
    position = value.get("pos", -1)
    return f"model.direction([{value['towards']!r}], [{value['away']!r}], at={name!r}, pos={position!r}{read})"


def options_code(options: InputOptions) -> str:
    """How texts are read, as the last arguments of a call."""
    return "".join(f", {name}={value!r}" for name, value in options.items())


def _indices_code(indices: Any) -> str:
    if isinstance(indices, Mapping):
        return f"slice({indices.get('from')!r}, {indices.get('to')!r})"
    return repr(indices[0] if isinstance(indices, list | tuple) and len(indices) == 1 else indices)
