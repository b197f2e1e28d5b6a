"""A small transformer learns to write Python's documentation, character by character.

    bpslaunch --workers 2 -- python examples/torch/transformer.py

The text is that of Python's own help topics, which come with every installation. Written in Horovod's words: with
`import horovod.torch as hvd` it is a program of Horovod.
"""

import argparse
import math
import pydoc_data.topics
import time

import byteps.horovod.torch as hvd
import torch
from torch import nn


def load_text(characters: int) -> tuple[torch.Tensor, str]:
    """The text as numbers, and the alphabet."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))[:characters]
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text]), alphabet


class Block(nn.Module):
    """Attention to what came before, and a small network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        batch, length, width = inputs.shape
        parts = self.attention(self.norm_1(inputs)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return inputs + self.network(self.norm_2(inputs))


class Transformer(nn.Module):
    """Gives the odds of the next character at each place."""

    def __init__(self, letters: int, length: int, width: int, heads: int, layers: int, sparse: bool) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width, sparse=sparse), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.odds = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(text.shape[1]))
        return self.odds(self.norm(self.blocks(self.letters(text) + places)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces of text per step and worker")
    parser.add_argument("--length", type=int, default=64, help="characters of a piece")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--characters", type=int, default=200_000, help="of the text")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
    parser.add_argument(
        "--sparse", action="store_true", help="send the rows of the letters in the batch alone, not the whole embedding"
    )
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)  # several workers share the cores of this host
    torch.manual_seed(7 + hvd.rank())
    text, alphabet = load_text(args.characters)
    model = Transformer(len(alphabet), args.length, args.width, 4, args.layers, args.sparse)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    # An optimizer takes either dense gradients or sparse ones.
    dense = dict(model.named_parameters())
    sparse = {"letters.weight": dense.pop("letters.weight")} if args.sparse else {}
    optimizers = [
        hvd.DistributedOptimizer(kind(named.values(), lr=args.learning_rate), named.items(), compression=compression)
        for kind, named in ((torch.optim.AdamW, dense), (torch.optim.SparseAdam, sparse))
        if named
    ]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for optimizer in optimizers:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)

    start = time.perf_counter()
    loss_sum, loss_count, mean = 0.0, 0, math.log(len(alphabet))
    for step in range(1, args.steps + 1):
        begins = torch.randint(len(text) - args.length - 1, (args.batch_size,)).tolist()  # each worker its own
        pieces = torch.stack([text[begin : begin + args.length + 1] for begin in begins])
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(dense.values(), 1.0)
        for optimizer in optimizers:
            with optimizer.skip_synchronize():
                optimizer.step()
        loss_sum, loss_count = loss_sum + loss.item(), loss_count + 1
        if step % max(1, args.steps // 10) == 0:
            mean = hvd.allreduce(torch.tensor(loss_sum / loss_count), name="loss").item()
            loss_sum, loss_count = 0.0, 0
            if hvd.rank() == 0:
                print(f"step {step:4}/{args.steps}  loss {mean:.3f}", flush=True)
    if hvd.rank() == 0:
        seconds = time.perf_counter() - start
        characters = args.steps * args.batch_size * args.length * hvd.size() / seconds
        print(f"transformer: loss {mean:.3f} in {seconds:.1f} s, {characters:.0f} characters/s, {hvd.size()} workers")
    hvd.shutdown()


if __name__ == "__main__":
    main()
