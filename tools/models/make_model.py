"""Makes the files *.model beside it: the tensors of well-known networks, and when a training step needs each of them.

    .venv/bin/python tools/models/make_model.py resnet50 >tools/models/resnet50.model

The networks are written down here from their papers and published code, in plain PyTorch, with the names of the usual
implementations. A training step of each is run on a CPU, one thread; of some steps the fastest is kept. For each tensor
the file says how long after the start of the forward pass its layer begins (before that the new value must be there),
and how long after the start of the backward pass its gradient is ready.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

STEPS = 4


class Bottleneck(nn.Module):
    """He et al. 2015, with the stride in the 3x3 convolution as torchvision has it."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        outside = 4 * middle
        self.conv1 = nn.Conv2d(inside, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet50() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], str]:
    """ResNet-50 for ImageNet."""
    network = nn.Sequential()
    network.add_module("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=False))
    network.add_module("bn1", nn.BatchNorm2d(64))
    network.add_module("relu", nn.ReLU())
    network.add_module("maxpool", nn.MaxPool2d(3, 2, 1))
    inside = 64
    for stage, (blocks, middle) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        layer = nn.Sequential()
        for block in range(blocks):
            layer.append(Bottleneck(inside, middle, 2 if stage > 1 and block == 0 else 1))
            inside = 4 * middle
        network.add_module(f"layer{stage}", layer)
    network.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    network.add_module("flatten", nn.Flatten())
    network.add_module("fc", nn.Linear(2048, 1000))
    batch = 8
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    source = "ResNet-50 (He et al. 2015, arXiv:1512.03385; names and strides of torchvision), ImageNet, "
    return network, lambda model: functional.cross_entropy(model(images), labels), f"{source}batch {batch}"


class Vgg16(nn.Module):
    """Simonyan and Zisserman 2014, configuration D."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 3
        for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
            if width == 0:
                layers.append(nn.MaxPool2d(2, 2))
                continue
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.ReLU()]
            inside = width
        self.features = nn.Sequential(*layers)
        linear = [nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
        self.classifier = nn.Sequential(*linear, nn.Linear(4096, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The network."""
        return self.classifier(self.features(x).flatten(1))


def vgg16() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], str]:
    """VGG-16 for ImageNet."""
    batch = 4
    images, labels = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    source = "VGG-16 (Simonyan and Zisserman 2014, arXiv:1409.1556, configuration D; names of torchvision), ImageNet, "
    return Vgg16(), lambda model: functional.cross_entropy(model(images), labels), f"{source}batch {batch}"


class Attention(nn.Module):
    """Several heads, with separate projections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, causal: bool = False) -> torch.Tensor:
        """From x to memory."""
        parts = (self.query(x), self.key(memory), self.value(memory))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """One layer of a transformer, normalised after each part; `cross`: of a decoder."""

    def __init__(self, width: int, heads: int, inner: int, cross: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width)
        self.cross = Attention(width, heads) if cross else None
        self.cross_norm = nn.LayerNorm(width) if cross else None
        self.intermediate = nn.Linear(width, inner)
        self.output = nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """The layer."""
        x = self.attention_norm(x + self.attention(x, x, causal=memory is not None))
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            x = self.cross_norm(x + self.cross(x, memory))
        return self.output_norm(x + self.output(functional.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """Devlin et al. 2018."""

    def __init__(self) -> None:
        super().__init__()
        width = 1024
        self.word_embeddings = nn.Embedding(30522, width)
        self.position_embeddings = nn.Embedding(512, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.encoder = nn.ModuleList(Layer(width, 16, 4096) for _ in range(24))
        self.pooler = nn.Linear(width, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The network up to the pooler."""
        positions = torch.arange(words.shape[1])
        x = self.word_embeddings(words) + self.position_embeddings(positions)
        x = self.norm(x + self.token_type_embeddings(torch.zeros_like(words)))
        for layer in self.encoder:
            x = layer(x)
        return torch.tanh(self.pooler(x[:, 0]))


def bert_large() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], str]:
    """BERT-large."""
    batch, length = 2, 128
    words = torch.randint(30522, (batch, length))
    source = "BERT-large (Devlin et al. 2018, arXiv:1810.04805: encoder and pooler, without the heads of pretraining), "
    return Bert(), lambda model: model(words).square().mean(), f"{source}batch {batch} of {length} tokens"


class Transformer(nn.Module):
    """Vaswani et al. 2017, base; one embedding for both sides and the output, as in the paper."""

    def __init__(self) -> None:
        super().__init__()
        width = 512
        self.embedding = nn.Embedding(37000, width)
        self.encoder = nn.ModuleList(Layer(width, 8, 2048) for _ in range(6))
        self.decoder = nn.ModuleList(Layer(width, 8, 2048, cross=True) for _ in range(6))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of the words of the target."""
        memory = self.embedding(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embedding(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return functional.linear(x, self.embedding.weight)


def transformer() -> tuple[nn.Module, Callable[[nn.Module], torch.Tensor], str]:
    """Transformer, base."""
    batch, length = 16, 32
    source, target = (torch.randint(37000, (batch, length)) for _ in range(2))
    text = "Transformer, base (Vaswani et al. 2017, arXiv:1706.03762; shared embedding of 37000 words), "

    def loss(model: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten())

    return Transformer(), loss, f"{text}batch {batch} pairs of {length} tokens"


MODELS = {"resnet50": resnet50, "vgg16": vgg16, "bert-large": bert_large, "transformer": transformer}


class Step:
    """The times of one training step, in seconds."""

    def __init__(self) -> None:
        self.needed: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self.forward = 0.0
        self.backward = 0.0


def profile(network: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> Step:
    """The fastest of some steps."""
    step, origin = Step(), 0.0
    owners: dict[nn.Module, list[str]] = {}
    for name, parameter in network.named_parameters():
        owner = network.get_submodule(name.rpartition(".")[0])
        owners.setdefault(owner, []).append(name)
        parameter.register_post_accumulate_grad_hook(
            lambda _, name=name: step.ready.__setitem__(name, time.perf_counter() - origin)
        )

    def begins(names: list[str]) -> None:
        for name in names:
            step.needed.setdefault(name, time.perf_counter() - origin)

    for owner, names in owners.items():
        owner.register_forward_pre_hook(lambda *_, names=names: begins(names))
    best = None
    for _ in range(STEPS):
        network.zero_grad(set_to_none=True)
        step = Step()
        origin = time.perf_counter()
        value = loss(network)
        step.forward = time.perf_counter() - origin
        origin = time.perf_counter()
        value.backward()
        step.backward = time.perf_counter() - origin
        if best is None or step.forward + step.backward < best.forward + best.backward:
            best = step
    assert best is not None
    return best


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in MODELS:
        print(f"usage: make_model.py {'|'.join(MODELS)}", file=sys.stderr)
        return 2
    torch.manual_seed(1)
    torch.set_num_threads(1)
    network, loss, source = MODELS[sys.argv[1]]()
    step = profile(network, loss)
    parameters = dict(network.named_parameters())
    print(f"# {source}.")
    print(f"# Times: one thread of a CPU, float32, PyTorch {torch.__version__}; made by tools/models/make_model.py.")
    print(f"forward_ms {1e3 * step.forward:.3f}")
    print(f"backward_ms {1e3 * step.backward:.3f}")
    print("# tensor NAME SHAPE, in the order of declaration; its layer begins after ms of the forward pass;")
    print("# its gradient is ready after ms of the backward pass")
    for name, parameter in parameters.items():
        shape = "x".join(map(str, parameter.shape))
        print(f"tensor {name} {shape} {1e3 * step.needed.get(name, 0):.3f} {1e3 * step.ready[name]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
