"""What :meth:`Swarm.state_dict` brings: where a peer stands, and its checkpoint as tensors of bytes."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Optional

from dnode._native import CheckpointError

if TYPE_CHECKING:
    import torch

#: Version of what :func:`described` returns.
FORMAT = 2
#: The manifest of a checkpoint names its other files and their hashes; the Rust side compares them.
_MANIFEST = "manifest.json"
#: Files that a checkpoint of a loop may have.
_FILES = (_MANIFEST, "parameters.safetensors", "state.safetensors")
#: A folder of this prefix is being written, and has no value until it is renamed.
_WRITING = ".writing-"
#: A checkpoint of this prefix is one whose place another of the same step takes; it counts until then.
_REPLACED = ".replaced-"


def described(run: str, at: tuple[int, int], parameters: Optional[Path]) -> dict[str, Any]:
    """The state of a peer ``at`` this step of its own and of the run, with the checkpoint of these
    parameters."""
    (index, position), files = at, None
    if parameters is not None:
        # The last one is of a step more than the loop was told.
        index = int(parameters.parent.name)
        files = {name: _read(parameters.with_name(name)) for name in _FILES}
    return {
        "format": FORMAT,
        "run": run,
        "index": index,
        "position": position,
        "checkpoint": files,
    }


def _read(file: Path) -> "torch.Tensor":
    import torch

    data = bytearray(file.stat().st_size)
    with file.open("rb") as opened:
        if opened.readinto(data) != len(data):
            raise CheckpointError(f"read {file}: it has become shorter")
    return torch.frombuffer(data, dtype=torch.uint8)


def check(state: Mapping[str, Any], run: str, doing: str) -> None:
    """Refuses what is no state of a swarm, or one of another run.

    :raises CheckpointError: for that; it begins with what the caller was ``doing``.
    """
    index = state.get("index")
    if state.get("format") != FORMAT or not isinstance(index, int) or index < 0:
        raise CheckpointError(f"{doing}: it is not a state_dict() of a swarm, or of another version of dnode")
    if state.get("run") != run:
        raise CheckpointError(f"{doing}: it is of run {state.get('run')!r}, and this peer is of {run!r}")


def place(state: Mapping[str, Any], run: str, data_dir: Path) -> Optional[Path]:
    """Writes the checkpoint of a state where a start of the peer resumes from it.

    :returns: the checkpoint's folder; ``None`` if it was there already.
    :raises CheckpointError: when it is of another run, has no checkpoint, or there is a later one.
    """
    doing = "resume from a state"
    check(state, run, doing)
    files = _files(state, doing)
    checkpoints = data_dir / "checkpoints"
    index = int(state["index"])
    folder = checkpoints / f"{index:012}"
    found = [int(it.name) for it in checkpoints.glob("*") if it.name.isdigit()]
    newest = max(found, default=-1)
    if newest > index:
        raise CheckpointError(
            f"{doing}: it is of step {index}, and {data_dir} has a checkpoint of step {newest}; take "
            "resume=True to go on from that, or another data_dir"
        )
    if _same(files[_MANIFEST], folder / _MANIFEST):
        return None
    writing = checkpoints / f"{_WRITING}{index:012}"
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        for name, data in files.items():
            with (writing / name).open("wb") as opened:
                opened.write(_view(data))
        if folder.exists():
            replaced = checkpoints / f"{_REPLACED}{index:012}"
            shutil.rmtree(replaced, ignore_errors=True)
            folder.rename(replaced)
        writing.rename(folder)
    except OSError as error:
        raise CheckpointError(f"{doing}: {error}") from None
    return folder


def _files(state: Mapping[str, Any], doing: str) -> "dict[str, torch.Tensor]":
    import torch

    files: Any = state.get("checkpoint")
    if files is None:
        raise CheckpointError(
            f"{doing}: it has no checkpoint, because none could be written then; load model and optimizer "
            "yourself, and join without resume"
        )
    if not isinstance(files, Mapping) or sorted(files) != sorted(_FILES):
        raise CheckpointError(f"{doing}: its checkpoint must have the files {', '.join(_FILES)}")
    found: dict[str, torch.Tensor] = {}
    for name in _FILES:
        data = files[name]
        if not isinstance(data, torch.Tensor) or data.dtype != torch.uint8 or data.dim() != 1:
            raise CheckpointError(f"{doing}: {name} must be a vector of uint8")
        # One that was loaded to a device comes back.
        found[name] = data.cpu().contiguous()
    return found


def _same(data: "torch.Tensor", file: Path) -> bool:
    return file.is_file() and file.read_bytes() == bytes(_view(data))


def _view(data: "torch.Tensor") -> "ctypes.Array[ctypes.c_char]":
    view: ctypes.Array[ctypes.c_char] = (ctypes.c_char * data.numel()).from_address(data.data_ptr())
    return view
