"""Type and shape of an optimizer's state, beside its numbers in a checkpoint, which are f32; and how they are named."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Union

import torch

from dnode import _parts

#: After the name of an optimizer's state: its type and shape, where they are not its parameter's.
FORM = ":form"
#: After the name of a parameter that is not exchanged: its numbers.
LOCAL = ":weights"
#: Before the name of the kind of optimizer whose state it is.
KIND = "optimizer:"
#: What a group says of how an optimizer computes: as the loop of the start has it.
_SWITCHES = ("capturable", "differentiable", "foreach", "fused", "maximize")
#: Before the number of a group of the optimizer, and the name of what it says.
GROUP = "group."
#: Types of state by their place in this list, which only grows; a number of Python's has no shape.
_STATES: tuple[Any, ...] = (
    int,
    float,
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
    bool,
)
#: A length of a shape is told as two numbers, of which the second is below this: f32 has both exactly.
_LOW = 1 << 20


def _is_number(value: Any) -> bool:
    """Whether it is one number, of Python or as a tensor."""
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, (int, float))


def numbers_of(group: "Mapping[str, Any]") -> "dict[str, Union[int, float]]":
    """What a group of an optimizer says in single numbers: its learning rate, and what else a loop, a scheduler or
    the optimizer may change, such as a step that is counted there."""
    found = {key: value for key, value in group.items() if key not in _SWITCHES and _is_number(value)}
    return {key: value.item() if isinstance(value, torch.Tensor) else value for key, value in found.items()}


def form(value: Any, parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """Type and shape of an optimizer's state as numbers of f32; ``None`` where they are as without them: those of
    the parameter, or one number of f32."""
    if not isinstance(value, torch.Tensor):
        kind = [float(_STATES.index(type(value)))] if type(value) in (int, float, bool) else None
        return None if kind is None else torch.tensor(kind, dtype=torch.float32, device="cpu")
    plain = value.shape == parameter.shape and value.dtype == parameter.dtype and value.numel() > 1
    if plain or (value.dim() == 0 and value.dtype == torch.float32) or value.dtype not in _STATES:
        return None
    lengths = [number for length in value.shape for number in divmod(length, _LOW)]
    return torch.tensor([_STATES.index(value.dtype), *lengths], dtype=torch.float32, device="cpu")


def formed(numbers: torch.Tensor, form: torch.Tensor, parameter: torch.Tensor) -> Any:
    """The state that had this form; the numbers as they are where its type is one of a later version."""
    kind, *lengths = [int(it) for it in form]
    if not 0 <= kind < len(_STATES):
        return numbers.clone()
    shape = [high * _LOW + low for high, low in zip(lengths[::2], lengths[1::2])]
    if _STATES[kind] in (int, float, bool):
        return _STATES[kind](numbers[0])
    # One number is counted on the host, as optimizers do.
    whole = numbers.clone().reshape(shape).to(_STATES[kind])
    if _parts.is_part(parameter):
        return _parts.part_of(whole, parameter) if whole.shape == parameter.shape else whole
    return whole if whole.dim() == 0 else whole.to(parameter.device)
