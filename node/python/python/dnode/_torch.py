"""What the swarm sees of a PyTorch model: named tensors, where they lie, and saved state."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generator, Iterable, Iterator, Optional, Sequence, Union

import torch

from dnode import _parts, _saved
from dnode._exclude import Excluded
from dnode._native import ConfigError, Error

if TYPE_CHECKING:
    from dnode._moments import Moment

#: What wrappers put into the names of a model's own parameters.
_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
#: Wrappers whose only part is a ``module``, as a model's own part may be called, too.
_PARALLEL = ("DistributedDataParallel", "DataParallel")
#: Forms of numbers that the Rust side reads where they lie.
_FORMS = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


@dataclass(frozen=True)
class Place:
    """Where a model has a tensor: in the parameters or buffers of one of its modules, under a name of its own.

    ``name`` is that in the model, without what ``DistributedDataParallel``, FSDP, ``torch.compile`` and
    checkpoints of activations put into it.
    """

    name: str
    owner: "dict[str, Optional[torch.Tensor]]"
    key: str

    @property
    def tensor(self) -> Optional[torch.Tensor]:
        """What is there now."""
        return self.owner.get(self.key)


def places(model: torch.nn.Module, kind: str) -> Iterator[tuple[Place, torch.Tensor]]:
    """All places with something in them, and what it is; ``kind`` is ``_parameters`` or ``_buffers``."""
    parallel: set[str] = set()
    for path, module in model.named_modules():
        if any(it.__name__ in _PARALLEL for it in type(module).__mro__):
            parallel.add(path)
        owner: "dict[str, Optional[torch.Tensor]]" = getattr(module, kind)
        for key, tensor in owner.items():
            if tensor is not None:
                yield Place(_plain(f"{path}.{key}" if path else key, parallel), owner, key), tensor


def _plain(name: str, parallel: "set[str]") -> str:
    """The name without what wrappers put into it; those at the paths ``parallel`` have a ``module``."""
    kept: list[str] = []
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part not in _WRAPPERS and not (part == "module" and ".".join(parts[:index]) in parallel):
            kept.append(part)
    return ".".join(kept)


@dataclass(frozen=True)
class Host:
    """The processes that are one peer, and whether this one has its node."""

    #: Processes of the group that was given; 0 where none was.
    size: int = 0
    speaks: bool = True


class Tensor:
    """One tensor of the model, and the mirror in host memory by which it is reached, if it needs one."""

    def __init__(self, place: Place, tensor: torch.Tensor, nonnegative: bool = False, speaks: bool = True) -> None:
        self.name = place.name
        self.tensor = tensor
        self.nonnegative = nonnegative
        self._place = place
        #: Whether another tensor of the model has the same memory, which ends if this one gets another.
        self.is_tied = False
        #: Whether this process has a part of it: then what reads or moves it is done at all processes.
        self.in_parts = _parts.is_part(tensor)
        self._speaks = speaks
        self.mirror: Optional[torch.Tensor] = None
        self._dtype, self._shape, self._device = tensor.dtype, tensor.shape, tensor.device
        # The device's, and of which device it is.
        self._stream: Any = None
        self._stream_of: Any = None
        self._read_once = False

    def reflect(self) -> None:
        """Makes the mirror, if it needs one; where another process has the node, it takes whole tensors."""
        if self._is_direct() or not (self._speaks or self.in_parts):
            return
        pinned = self.tensor.is_cuda and not self.in_parts
        self.mirror = torch.empty(self.tensor.shape, dtype=torch.float32, device="cpu", pin_memory=pinned)

    def _is_direct(self) -> bool:
        tensor = self.tensor
        if self.in_parts:
            return False
        on_host = tensor.device.type == "cpu" and tensor.dtype in _FORMS
        return on_host and tensor.is_contiguous() and not self.nonnegative

    @property
    def form(self) -> str:
        """How the numbers of :attr:`reached` lie."""
        return "mirror" if self.mirror is not None else _FORMS[self.tensor.dtype]

    @property
    def begins(self) -> int:
        """Where the tensor's numbers begin; 0 where this process has a part of them."""
        return 0 if self.in_parts else self.tensor.data_ptr()

    def follow(self) -> bool:
        """Takes what the model has in the tensor's place now, if that is another; whether it is.

        One that was taken out of its place is kept: it may be a part of the model elsewhere.
        """
        now = self._place.tensor
        if now is self.tensor or now is None or _parts.is_part(now) != self.in_parts:
            return False
        self.tensor = now
        return True

    def check(self) -> None:
        """Refuses a tensor whose numbers have become others than they were when the swarm was joined.

        One that has a mirror may be on another device.
        """
        tensor = self.tensor
        same = tensor.dtype == self._dtype and tensor.shape == self._shape
        if same and self.mirror is None and self._speaks:
            same = tensor.device == self._device and (tensor.is_cuda or self._is_direct())
        if not same:
            raise Error(
                f"train parameter {self.name}: its type, shape or place has changed since the swarm was "
                "joined; change the model before dnode.join"
            )

    @property
    def reached(self) -> torch.Tensor:
        """What lies where the Rust side reads: the tensor, or its mirror."""
        return self.tensor if self.mirror is None else self.mirror

    @property
    def shape(self) -> list[int]:
        """As peers compare it; a scalar is a vector of one."""
        return list(self.tensor.shape) or [1]

    def fetch(self) -> None:
        """Copies the tensor to its mirror.

        A mirror of a tensor of 16 bits is its f32 master: what was done to the tensor is added to it.
        """
        with torch.no_grad():
            if self._is_on_device():
                self._fetch_from_device()
            else:
                self._fetch()

    def _is_on_device(self) -> bool:
        """Whether the tensor is read and moved by streams of a device."""
        return self.tensor.is_cuda and not self.in_parts

    def _fetch(self) -> None:
        assert self.mirror is not None
        now = _parts.whole(self.tensor) if self.in_parts else self.tensor.detach()
        if not self._speaks:
            return
        now = now.to(self.mirror.device, torch.float32)
        self.mirror.copy_(self._followed(self.mirror, now) if self._has_master() else now)
        self._read_once = True

    def _has_master(self) -> bool:
        """Whether the mirror has digits that the tensor lacks."""
        return self._read_once and self.tensor.dtype not in (torch.float32, torch.float64)

    def _followed(self, master: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        """What the master becomes of a tensor that is ``now``; both in f32 and on one device."""
        written = master.to(self.tensor.dtype).to(torch.float32)
        followed = master + (now - written)
        # What the loop has changed has the digits below it of before, as long as they are below it.
        below = followed.to(self.tensor.dtype).to(torch.float32) == now
        return torch.where(below, followed, now)

    def forget(self) -> None:
        """Makes all numbers of the mirror NaN."""
        assert self.mirror is not None
        self.mirror.fill_(float("nan"))

    def _fetch_from_device(self) -> None:
        """The same by a stream of its own, which the stream of the loop does not wait for.

        The thread that reads the mirror waits for the copy, and for the kernels before it; no other work
        of the device is waited for.
        """
        assert self.mirror is not None
        if self._stream is None or self._stream_of != self.tensor.device:
            self._stream, self._stream_of = torch.cuda.Stream(self.tensor.device), self.tensor.device
        stream = self._stream
        stream.wait_stream(torch.cuda.default_stream(self.tensor.device))
        with torch.cuda.stream(stream):
            self.tensor.record_stream(stream)
            now = self.tensor.detach().to(torch.float32)
            if self._has_master():
                now = self._followed(self.mirror.to(self.tensor.device, non_blocking=True), now)
            self.mirror.copy_(now, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)
        done.synchronize()
        self._read_once = True

    def store(self) -> None:
        """Copies the mirror back to the tensor, on the stream of the loop."""
        assert self.mirror is not None
        with torch.no_grad():
            if self.nonnegative:
                self.mirror.clamp_(min=0.0)
            if self.in_parts:
                _parts.put(self.mirror, self.tensor)
                return
            if not self._is_on_device():
                self.tensor.copy_(self.mirror)
                return
            stream = torch.cuda.default_stream(self.tensor.device)
            with torch.cuda.stream(stream):
                self.tensor.copy_(self.mirror, non_blocking=True)


def changed(tensors: "Sequence[Tensor]") -> None:
    """Tells PyTorch that tensors without a mirror were written where they lie: a backward pass that still needs what
    they were is refused then, and not computed with other numbers."""
    count: Any = getattr(torch.autograd.graph, "increment_version", None)
    for it in tensors:
        if it.mirror is not None or it.in_parts:
            continue
        if count is not None:
            count(it.tensor)
        else:
            # Before PyTorch 2.3: a change of none of its numbers, which counts as one.
            it.tensor.detach().reshape(-1)[:0].zero_()


def devices(tensors: "Sequence[Tensor]") -> list[Any]:
    """The CUDA devices that have some of the tensors."""
    return list({it.tensor.device for it in tensors if it.tensor.is_cuda})


@contextlib.contextmanager
def current_device(devices: Sequence[Any]) -> Generator[None, None, None]:
    """Around what makes one of the devices that of this thread: the loop's is the same again after it."""
    with contextlib.ExitStack() as kept:
        if devices and torch.cuda.is_available():
            kept.enter_context(torch.cuda.device(torch.cuda.current_device()))
        yield


@contextlib.contextmanager
def in_order(devices: Sequence[Any]) -> Generator[None, None, None]:
    """What the node does with weights on a device comes after what the loop has asked of the device, and before
    what it asks from then on. The node works after the default stream; a loop may have another."""
    streams: list[tuple[Any, Any]] = []
    for device in devices:
        own, shared = torch.cuda.current_stream(device), torch.cuda.default_stream(device)
        if own != shared:
            shared.wait_stream(own)
            streams.append((own, shared))
    try:
        yield
    finally:
        for own, shared in streams:
            own.wait_stream(shared)


def _refuse_parts(model: torch.nn.Module, host: Host) -> None:
    """Refuses a model in parts that this peer cannot gather."""
    sharded = (
        # FSDP of its first form, ZeRO-3.
        any(kind.__name__ == "FullyShardedDataParallel" for it in model.modules() for kind in type(it).__mro__)
        or any(type(it).__name__ == "FlatParameter" or hasattr(it, "ds_id") for it in model.parameters())
    )
    parts = [it for it in model.parameters() if _parts.is_part(it)]
    if sharded or (parts and host.size == 0) or not all(hasattr(it, "full_tensor") for it in parts):
        raise ConfigError(
            "join with a model whose ranks have parts of the weights (FSDP, ZeRO or tensor parallelism): "
            "wrap it in DistributedDataParallel or fully_shard, and give dnode.join the process_group"
        )
    if any(_parts.processes(it) != host.size for it in parts):
        raise ConfigError(
            f"process_group has {host.size} processes, and {_parts.processes(parts[0])} have a part of the weights: "
            "give the group of all that have"
        )


@dataclass(frozen=True)
class Collected:
    """The tensors of a model that the swarm sees."""

    #: Those that are exchanged.
    exchanged: list[Tensor]
    #: Parameters that are trained and stay with their peer: checkpoints have them, nobody else.
    local: list[Tensor]


def collect(
    model: torch.nn.Module,
    optimizer: Optional[torch.optim.Optimizer],
    buffers: str,
    host: Host = Host(),
    excluded: Optional[Excluded] = None,
) -> Collected:
    """The tensors that are exchanged: trained parameters, each once, and buffers if they are averaged, but for
    those that are excluded.

    A parameter is trained if it requires a gradient and, where there is an optimizer, is one of its
    parameters.
    """
    if buffers not in ("keep", "average"):
        raise ConfigError(f'buffers = "{buffers}" is not legal: must be "keep" or "average"')
    excluded = Excluded(model) if excluded is None else excluded
    _refuse_parts(model, host)
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        raise ConfigError(
            "join with ZeroRedundancyOptimizer, of whose state each process has a part: give an optimizer that every "
            "process has whole, or put the model in parts by fully_shard"
        )
    found, local = _trained(model, optimizer, host, excluded)
    if not found:
        raise ConfigError(
            "join with a model that has no parameter to train: requires_grad is false for all of them, "
            "the optimizer has others, or exclude has all"
        )
    if buffers == "average":
        seen = {_memory(it.tensor) for it in found}
        for place, buffer in places(model, "_buffers"):
            wanted = buffer.is_floating_point() and not excluded.has(place, buffer)
            if wanted and buffer.numel() > 0 and _memory(buffer) not in seen:
                if not bool(torch.isfinite(buffer).all()):
                    raise ConfigError(
                        f'buffers = "average": {place.name} has numbers that are not finite, which cannot be averaged: '
                        "exclude it"
                    )
                seen.add(_memory(buffer))
                found.append(Tensor(place, buffer, place.key == "running_var", host.speaks))
    _refuse_half_excluded(model, found, excluded)
    _refuse_overlaps(found, local)
    by_memory = {_memory(it.tensor): it for it in found}
    for kind in ("_parameters", "_buffers"):
        for _, tensor in places(model, kind):
            twin = by_memory.get(_memory(tensor))
            if twin is not None and twin.tensor is not tensor:
                twin.is_tied = True
    return Collected(found, local)


def _trained(
    model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer], host: Host, excluded: Excluded
) -> "tuple[list[Tensor], list[Tensor]]":
    """Trained parameters, each once: those that are exchanged, and those that are excluded."""
    trained = None
    if optimizer is not None:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    found: "tuple[list[Tensor], list[Tensor]]" = ([], [])
    seen: "tuple[set[object], set[object]]" = (set(), set())
    for place, parameter in places(model, "_parameters"):
        which = int(excluded.has(place, parameter))
        wanted = parameter.requires_grad and (trained is None or id(parameter) in trained)
        if wanted and _memory(parameter) not in seen[which] and parameter.numel() > 0:
            if not parameter.is_floating_point():
                raise ConfigError(f"parameter {place.name} has numbers of {parameter.dtype}, which cannot be averaged")
            seen[which].add(_memory(parameter))
            found[which].append(Tensor(place, parameter, speaks=host.speaks))
    return found


def _refuse_half_excluded(model: torch.nn.Module, exchanged: "Sequence[Tensor]", excluded: Excluded) -> None:
    """Refuses a tied tensor of which one name is excluded: it would be exchanged all the same."""
    by_memory = {_memory(it.tensor): it for it in exchanged}
    for kind in ("_parameters", "_buffers"):
        for place, tensor in places(model, kind):
            twin = by_memory.get(_memory(tensor))
            if twin is not None and excluded.has(place, tensor):
                raise ConfigError(
                    f"exclude has {place.name}, which is the same tensor as {twin.name}: exclude both, or none"
                )


def _memory(tensor: torch.Tensor) -> object:
    """The same for tensors that are the same numbers."""
    if _parts.is_part(tensor) or tensor.data_ptr() == 0:
        return id(tensor)
    return tensor.device, tensor.dtype, tensor.data_ptr(), tensor.shape, tensor.stride()


def _refuse_overlaps(exchanged: "Sequence[Tensor]", local: "Sequence[Tensor]") -> None:
    """Refuses tensors that have some numbers in common: these would be displaced twice, or although they are
    local."""
    spans: list[tuple[str, int, int, Tensor]] = []
    for it in [*exchanged, *local]:
        if it.begins != 0:
            last = sum((size - 1) * step for size, step in zip(it.tensor.shape, it.tensor.stride()))
            spans.append((str(it.tensor.device), it.begins, it.begins + (last + 1) * it.tensor.element_size(), it))
    spans.sort(key=lambda span: span[:2])
    for index, (device, _, end, first) in enumerate(spans):
        for other_device, begins, _, second in spans[index + 1 :]:
            if other_device != device or begins >= end:
                break
            if not (first in local and second in local) and _overlap(first.tensor, second.tensor):
                raise ConfigError(
                    f"parameters {first.name} and {second.name} have some of their numbers in common, which would be "
                    "averaged twice: tie whole tensors, or give each its own memory"
                )


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether a number of the first is one of the second, which begins within it or behind it."""
    width = first.element_size()
    behind = second.data_ptr() - first.data_ptr()
    if second.element_size() != width or behind % width != 0:
        return True
    ends = [sum((size - 1) * step for size, step in zip(it.shape, it.stride())) for it in (first, second)]
    taken = torch.zeros(max(ends[0], ends[1] + behind // width) + 1, dtype=torch.bool, device="cpu")
    taken.as_strided(first.shape, first.stride()).fill_(True)
    return bool(taken.as_strided(second.shape, second.stride(), behind // width).any())


def bytes_of(flat: torch.Tensor) -> bytes:
    """The bytes of a contiguous tensor of f32 in host memory."""
    assert flat.dtype == torch.float32 and flat.device.type == "cpu", (flat.dtype, flat.device)
    return ctypes.string_at(flat.data_ptr(), 4 * flat.numel())


def _number(value: "Union[int, float, bool]") -> bytes:
    return bytes_of(torch.tensor(float(value), dtype=torch.float32, device="cpu"))


class Callbacks:
    """What the Rust side calls while the loop waits in a call of the swarm."""

    def __init__(
        self,
        tensors: list[Tensor],
        optimizer: Optional[torch.optim.Optimizer],
        speaks: bool = True,
        moments: "Sequence[Moment]" = (),
        local: Sequence[Tensor] = (),
    ) -> None:
        self.tensors = tensors
        #: Trained parameters that are not exchanged.
        self.local = local
        #: What the Rust side reaches by its address, which is kept as long as that has this object.
        self.lent: Sequence[object] = ()
        # Moments are numbered after the tensors.
        self._mirrored: "list[Union[Tensor, Moment]]" = [*tensors, *moments]
        self._optimizer = optimizer
        self._speaks = speaks
        self._names: dict[int, str] = {}
        self._told_of: set[str] = set()
        self._told_of_strangers = False
        # What the groups say before any step and before what a checkpoint has of them.
        self._groups = [] if optimizer is None else [_saved.numbers_of(group) for group in optimizer.param_groups]
        self.follow()
        self._strangers = self._unknown()
        if self._strangers and speaks:
            logging.getLogger("dnode").warning(
                "%d of the optimizer's parameters are not of the model: no exchange and no checkpoint has them",
                len(self._strangers),
            )

    def follow(self) -> None:
        """The tensors are others than before."""
        self._names = {id(it.tensor): it.name for it in [*self.tensors, *self.local]}

    def fetch(self, index: int) -> None:
        self._mirrored[index].fetch()

    def store(self, index: int) -> None:
        self._mirrored[index].store()

    def save(self) -> list[tuple[str, bytes]]:
        """Parameters that are not exchanged, the optimizer's state by ``parameter.key``, and of its groups the learning
        rates and what has changed since the swarm was joined; in f32."""
        saved: list[tuple[str, bytes]] = []
        self._tell_of_strangers()
        for it in self.local:
            numbers = _parts.whole(it.tensor) if it.in_parts else it.tensor.detach()
            if self._speaks:
                saved.append((it.name + _saved.LOCAL, bytes_of(numbers.to("cpu", torch.float32).contiguous())))
        if self._optimizer is None:
            return saved
        saved.append((_saved.KIND + type(self._optimizer).__name__, _number(1.0)))
        for parameter, name, _ in self._parameters():
            saved.extend(self._state_of(parameter, name))
        for index, group in enumerate(self._optimizer.param_groups):
            begun = self._groups[index] if index < len(self._groups) else {}
            for key, value in _saved.numbers_of(group).items():
                if key != "lr" and value == begun.get(key):
                    continue
                name = f"{_saved.GROUP}{index}.{key}"
                saved.append((name, _number(value)))
                form = _saved.form(value, torch.empty(0))
                if form is not None and key != "lr":
                    saved.append((name + _saved.FORM, bytes_of(form)))
        return saved

    def _state_of(self, parameter: torch.Tensor, name: str) -> "list[tuple[str, bytes]]":
        """The optimizer's state of a parameter; none where some of it cannot be kept, as the optimizer would not
        begin what it finds begun. At the processes that do not speak it is a part of what is gathered."""
        assert self._optimizer is not None
        state = self._optimizer.state.get(parameter, {})
        saved: "Optional[list[tuple[str, bytes]]]" = []
        for key in sorted(state, key=str):
            value = state[key]
            form = _saved.form(value, parameter)
            if isinstance(value, (int, float)):
                value = torch.tensor(float(value), dtype=torch.float32, device="cpu")
            if _parts.is_part(value):
                value = _parts.whole(value)
            if not self._speaks or value is None:
                continue
            if not isinstance(value, torch.Tensor) or value.is_complex():
                self._leaves_out(str(key), value)
                saved = None
            elif value.numel() > 0 and saved is not None:
                flat = value.detach().to("cpu", torch.float32).contiguous()
                saved.append((f"{name}.{key}", bytes_of(flat)))
                if form is not None:
                    saved.append((f"{name}.{key}{_saved.FORM}", bytes_of(form)))
        return saved or []

    def restore(self, saved: Iterable[tuple[str, bytearray]]) -> None:
        """Puts back what :meth:`save` returned."""
        tensors = {name: torch.frombuffer(data, dtype=torch.float32) for name, data in saved}
        self._restore_local(tensors)
        if self._optimizer is None or self._is_of_another(tensors):
            return
        for parameter, name, group in self._parameters():
            prefix = f"{name}."
            state: dict[str, Any] = {}
            for full, value in tensors.items():
                key = full[len(prefix) :]
                if not full.startswith(prefix) or "." in key or key.endswith((_saved.FORM, _saved.LOCAL)):
                    continue
                form = tensors.get(full + _saved.FORM)
                if form is not None:
                    state[key] = _saved.formed(value, form, parameter)
                elif value.numel() == parameter.numel() and key != "step" and (value.numel() > 1 or not parameter.dim()):
                    numbers = value.clone().reshape(parameter.shape)
                    if _parts.is_part(parameter):
                        state[key] = _parts.part_of(numbers, parameter)
                    else:
                        state[key] = numbers.to(parameter.device, parameter.dtype)
                else:
                    state[key] = value[0].clone() if value.numel() == 1 else value.clone()
            if group.get("capturable") or group.get("fused"):
                # These keep their counters on the device.
                for key, value in state.items():
                    if key == "step" or (isinstance(value, torch.Tensor) and not value.dim()):
                        state[key] = torch.as_tensor(value, device=parameter.device)
            if state:
                self._optimizer.state[parameter] = state
        for index, group in enumerate(self._optimizer.param_groups):
            for key in _saved.numbers_of(group):
                name = f"{_saved.GROUP}{index}.{key}"
                if name not in tensors:
                    continue
                form = tensors.get(name + _saved.FORM)
                value = float(tensors[name][0]) if form is None else _saved.formed(tensors[name], form, torch.empty(0))
                if isinstance(group[key], torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = value

    def _is_of_another(self, tensors: "dict[str, torch.Tensor]") -> bool:
        """Whether the state is of an optimizer of another kind, whose state this one would not understand; the log
        says so then."""
        kinds = [name[len(_saved.KIND) :] for name in tensors if name.startswith(_saved.KIND)]
        own = type(self._optimizer).__name__
        if not kinds or own in kinds:
            return False
        logging.getLogger("dnode").warning(
            "the checkpoint has the state of %s, and the loop has %s: it begins with no state, and with its own learning "
            "rate",
            kinds[0],
            own,
        )
        return True

    def _restore_local(self, tensors: "dict[str, torch.Tensor]") -> None:
        found = [(it, tensors[it.name + _saved.LOCAL]) for it in self.local if it.name + _saved.LOCAL in tensors]
        for it, numbers in found:
            if numbers.numel() != it.tensor.numel():
                raise Error(
                    f"parameter {it.name}, which is excluded, has {numbers.numel()} numbers in the checkpoint and "
                    f"{it.tensor.numel()} in the model"
                )
        with torch.no_grad():
            for it, numbers in found:
                if it.in_parts:
                    _parts.put(numbers.reshape(it.tensor.shape), it.tensor)
                else:
                    it.tensor.copy_(numbers.reshape(it.tensor.shape))

    def _unknown(self) -> "set[int]":
        """Trained parameters of the optimizer that the swarm does not know."""
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        known = {_memory(it.tensor) for it in [*self.tensors, *self.local]}
        every = [it for group in groups for it in group["params"] if it.requires_grad and it.numel() > 0]
        return {id(it) for it in every if id(it) not in self._names and _memory(it) not in known}

    def _tell_of_strangers(self) -> None:
        """Says once that the optimizer trains what it did not when this process joined."""
        if not self._speaks or self._told_of_strangers or not self._unknown() - self._strangers:
            return
        self._told_of_strangers = True
        logging.getLogger("dnode").warning(
            "the optimizer has parameters that it did not have when this process joined: no exchange and no checkpoint "
            "has them; leave the swarm and join again with what is trained now"
        )

    def _leaves_out(self, key: str, value: object) -> None:
        """Says once that a checkpoint lacks this of the optimizer's state."""
        if key not in self._told_of:
            self._told_of.add(key)
            logging.getLogger("dnode").warning(
                "checkpoints lack the optimizer's state of parameters that have a `%s`, which is a %s: only real numbers "
                "and tensors are kept; after a resume it begins anew for them",
                key,
                type(value).__name__,
            )

    def _parameters(self) -> Iterable[tuple[torch.Tensor, str, dict[str, Any]]]:
        assert self._optimizer is not None
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is not None:
                    yield parameter, name, group
