"""Networks by name for synthetic_benchmark.py: torchvision's, where that is installed, else small code of our own.

`build(name, ...)` gives the model, and a function that makes a batch: inputs and the loss of the model's output.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.path = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(inputs) + self.shortcut(inputs))


def resnet50(num_classes: int) -> nn.Module:
    """25.6 million parameters with 1000 classes."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))


def vgg16(num_classes: int) -> nn.Module:
    """138 million parameters with 1000 classes."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        if outputs == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True)]
        inputs = outputs
    head = (nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head, nn.Linear(4096, num_classes))


class Bert(nn.Module):
    """The encoder of BERT base, with its head that guesses words: 110 million parameters."""

    def __init__(self, words: int = 30522, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)
        self.head.weight = self.words.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.encoder(self.norm(self.words(text) + places)))


def _of_torchvision(name: str, num_classes: int) -> nn.Module | None:
    if importlib.util.find_spec("torchvision") is None:
        return None
    import torchvision

    make = getattr(torchvision.models, name, None)
    return None if make is None else make(num_classes=num_classes)


def _of_our_own(name: str, num_classes: int) -> nn.Module | None:
    return {"resnet50": resnet50, "vgg16": vgg16}[name](num_classes) if name in ("resnet50", "vgg16") else None


def build(
    name: str, batch_size: int, image_size: int, num_classes: int, layers: int | None, device: torch.device
) -> tuple[nn.Module, Callable[[], Batch]]:
    """A model by name ("resnet50", "vgg16", "bert", or one of torchvision's) and what makes its batches.

    Raises:
        ValueError: the name is unknown here.
    """
    if name == "bert":
        model: nn.Module = Bert(layers=12 if layers is None else layers)

        def text() -> Batch:
            words = torch.randint(30522, (batch_size, 128), device=device)
            return words, lambda odds: nn.functional.cross_entropy(odds.flatten(0, 1), words.flatten())

        return model.to(device), text
    found = _of_torchvision(name, num_classes) or _of_our_own(name, num_classes)
    if found is None:
        raise ValueError(f"--model {name}: known here are resnet50, vgg16 and bert; others with torchvision installed")

    def images() -> Batch:
        labels = torch.randint(num_classes, (batch_size,), device=device)
        pictures = torch.randn(batch_size, 3, image_size, image_size, device=device)
        return pictures, lambda odds: nn.functional.cross_entropy(odds, labels)

    return found.to(device), images
