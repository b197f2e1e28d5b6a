"""The tensors of a well-known network, and when a training step needs each.

    model = read_model("vgg16").shrunk(8).lasting(2.0)

The files are in tools/models (installed: byteps/models), each with its source; a path with a slash names another one.
tools/model_file.h has the format.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

# Beside this folder in a checkout, one further up in an installed package.
_TOOLS = Path(__file__).resolve().parents[1]
_FOLDER = next((each for each in (_TOOLS / "models", _TOOLS.parent / "models") if each.is_dir()), _TOOLS / "models")
_MOST_ELEMENTS = 1 << 40  # as in tools/model_file.cc


@dataclasses.dataclass(frozen=True)
class Tensor:
    """One gradient, of float32."""

    name: str
    elements: int
    begins: float  # seconds into the forward pass at which its layer begins and the new value must be there
    ready: float  # seconds into the backward pass at which the gradient is there

    @property
    def size(self) -> int:
        """In bytes."""
        return 4 * self.elements


@dataclasses.dataclass(frozen=True)
class Model:
    """A network, as a training step sees it. `tensors`: in the order of the forward pass."""

    source: str
    forward: float  # seconds
    backward: float
    tensors: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        """Of all gradients, in bytes."""
        return sum(tensor.size for tensor in self.tensors)

    def shrunk(self, divisor: int) -> Model:
        """The same with tensors so many times smaller: as if every link were so many times faster."""
        tensors = (dataclasses.replace(each, elements=math.ceil(each.elements / divisor)) for each in self.tensors)
        return dataclasses.replace(self, tensors=tuple(tensors))

    def lasting(self, seconds: float) -> Model:
        """The same with a computation of so many seconds, as on another device or with another batch."""
        factor = seconds / (self.forward + self.backward)
        tensors = (
            dataclasses.replace(each, begins=each.begins * factor, ready=each.ready * factor) for each in self.tensors
        )
        return Model(self.source, self.forward * factor, self.backward * factor, tuple(tensors))


def known_models() -> list[str]:
    """The names of the shipped ones."""
    return sorted(path.stem for path in _FOLDER.glob("*.model"))


def _seconds(milliseconds: str) -> float:
    try:
        seconds = float(milliseconds) / 1e3
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{milliseconds} is no time in milliseconds")
    return seconds


def _elements(shape: str) -> int:
    extents = [int(extent) if extent.isascii() and extent.isdecimal() else 0 for extent in shape.split("x")]
    if min(extents) < 1 or math.prod(extents) > _MOST_ELEMENTS:
        raise ValueError(f"{shape} is no shape: sizes of at least 1, such as 64x3x3, and at most 2^40 elements in all")
    return math.prod(extents)


def read_model(name: str) -> Model:
    """The model of that name or file; ValueError says what is wrong."""
    path = Path(name) if "/" in name else _FOLDER / f"{name}.model"
    if not path.exists():
        raise ValueError(f"there is no model {name!r}; known are {', '.join(known_models())}, and paths with a slash")
    times: dict[str, float] = {}
    tensors: dict[str, Tensor] = {}
    lines: dict[str, int] = {}  # of the tensors
    source = ""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it cannot be read as a text file: {error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            if line.startswith("# "):
                source = source or line[2:]
            continue
        words = line.split()
        try:
            if words and words[0] == "tensor":
                if len(words) != 5:
                    raise ValueError("expected `tensor NAME SHAPE BEGINS_MS READY_MS`")
                name_, shape, begins, ready = words[1:]
                if name_ in tensors:
                    raise ValueError(f"there is a tensor {name_} already, in line {lines[name_]}")
                tensors[name_] = Tensor(name_, _elements(shape), _seconds(begins), _seconds(ready))
                lines[name_] = number
            elif words:
                if len(words) != 2 or words[0] not in ("forward_ms", "backward_ms"):
                    raise ValueError("expected `forward_ms MS`, `backward_ms MS` or `tensor ...`")
                if words[0] in times:
                    raise ValueError(f"{words[0]} is there already")
                times[words[0]] = _seconds(words[1])
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    if not tensors or "forward_ms" not in times or "backward_ms" not in times:
        raise ValueError(f"{path}: it needs forward_ms, backward_ms and tensors")
    # Here, since the lines may be in any order.
    for tensor in tensors.values():
        for seconds, end in ((tensor.begins, "forward_ms"), (tensor.ready, "backward_ms")):
            if seconds > times[end]:
                at = f"{path}:{lines[tensor.name]}"
                raise ValueError(f"{at}: {seconds * 1e3:g} ms of {tensor.name} is beyond {end} {times[end] * 1e3:g}")
    if times["forward_ms"] + times["backward_ms"] == 0:
        raise ValueError(f"{path}: a step that computes nothing: forward_ms and backward_ms are both 0")
    # Stable: as declared where layers begin together.
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.begins)
    return Model(source, times["forward_ms"], times["backward_ms"], tuple(in_order))
