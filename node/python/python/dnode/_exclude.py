"""What of a model stays with its peer although it is trained (``exclude``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterable, Union

import torch

from dnode._native import ConfigError

if TYPE_CHECKING:
    from dnode._torch import Place


class Excluded:
    """Names of parameters, of buffers or of parts of the model, and parameters themselves."""

    def __init__(
        self, model: torch.nn.Module, given: "Union[str, torch.Tensor, Iterable[Union[str, torch.Tensor]], None]" = ()
    ) -> None:
        from dnode._torch import places

        things: "list[object]" = [given] if isinstance(given, (str, torch.Tensor)) else list(given or ())
        self._names: "set[str]" = set()
        self._tensors: "set[int]" = set()
        # What the numbers stand for lives as long as they do.
        self._kept: "list[torch.Tensor]" = []
        if not things:
            return
        known = [found for kind in ("_parameters", "_buffers") for found in places(model, kind)]
        for thing in things:
            if isinstance(thing, str):
                self._names.add(thing)
                if not any(_covers(thing, place) for place, _ in known):
                    raise ConfigError(
                        f'exclude: the model has no parameter, buffer or part "{thing}"; names are those without '
                        "what wrappers put into them"
                    )
            elif isinstance(thing, torch.Tensor) and any(thing is tensor for _, tensor in known):
                self._tensors.add(id(thing))
                self._kept.append(thing)
            else:
                what = f"a tensor of {list(thing.shape)}" if isinstance(thing, torch.Tensor) else repr(thing)
                raise ConfigError(
                    f"exclude: {what} is not of the model: give names, or parameters of the model that joins"
                )

    def has(self, place: "Place", tensor: torch.Tensor) -> bool:
        """Whether what is in this place stays with its peer."""
        return id(tensor) in self._tensors or any(_covers(name, place) for name in self._names)


def _covers(name: str, place: "Place") -> bool:
    return place.name == name or place.name.startswith(f"{name}.")
