"""A few characters that tell whether two peers begin with the same weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Iterable, Union

if TYPE_CHECKING:
    import torch


def digest(
    model: "torch.nn.Module",
    frozen: bool = False,
    exclude: "Union[str, torch.Tensor, Iterable[Union[str, torch.Tensor]]]" = (),
) -> str:
    """16 hexadecimal digits that differ where the trained weights of two models differ.

    ``dnode.join(…, agreed={"weights": dnode.digest(model)})`` refuses a peer that begins with other
    weights, by :class:`RunMismatch`. Every peer must then be started in the same way, also one that
    comes later. Names count without the prefixes of wrappers, and numbers are compared as f32. Of a model of
    which each process has a part, all of them call it.

    :param frozen: whether parameters that require no gradient count, too. Nothing else compares these, and no
        exchange makes them equal: with LoRA they are the base, which all peers should have alike. Parts that are
        frozen and differ on purpose are why they do not count by default, and a large base takes its time.
    :param exclude: as in :func:`join`; what stays with its peer does not count.
    """
    import torch

    from dnode import _parts, _torch
    from dnode._exclude import Excluded

    excluded = Excluded(model, exclude)
    hashed = hashlib.sha256()
    seen: set[int] = set()
    for place, parameter in _torch.places(model, "_parameters"):
        wanted = (frozen or parameter.requires_grad) and not excluded.has(place, parameter)
        if wanted and id(parameter) not in seen:
            seen.add(id(parameter))
            hashed.update(place.name.encode() + b"\0")
            numbers = _parts.whole(parameter) if _parts.is_part(parameter) else parameter.detach()
            hashed.update(_torch.bytes_of(numbers.to("cpu", torch.float32).contiguous()))
    return hashed.hexdigest()[:16]
