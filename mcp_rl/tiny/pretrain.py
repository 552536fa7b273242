"""Pretrains the built-in model from random weights: `python -m mcp_rl.tiny.pretrain --out DIR`.

Each training sequence is one tool set followed by many separate conversations about it. The tool set is forwarded
once; a conversation sees the tool set and itself and starts at the position right after it, exactly as in a rollout.
Loss is on the assistant's tokens. Hidden matrices learn with Muon, embeddings and norms with AdamW.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, Qwen2ForCausalLM, Qwen2Tokenizer

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.tiny import weights_path
from mcp_rl.tiny.architecture import tiny_config
from mcp_rl.tiny.errands import READ
from mcp_rl.tiny.mixture import STRANGE_LETTERS, toolset_and_conversations
from mcp_rl.tiny.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.tiny.corpus import TextPiece


_ALIKE, _APART = 0.99, 0.7
"""Cosine of embeddings that count as equal; length of what tells them apart."""
LONGEST = 640
"""Tokens of a conversation; one with longer results would cost as much as a dozen others."""


@dataclass(frozen=True)
class PackedSequence:
    """A tool set of P tokens and conversations that each continue it."""

    prefix: list[int]
    positions: list[int]
    """Positions of the prefix; a conversation starts at the last one plus 1."""
    branches: list[tuple[list[int], list[bool]]]
    """Ids of each conversation, and True where predicting the id carries loss."""


@dataclass(frozen=True)
class Chunk:
    """Conversations of similar length, padded together: N rows of L tokens."""

    tokens: Tensor
    positions: Tensor
    owners: Tensor
    """[N] index of each row's prefix in the batch."""
    sees: Tensor
    """[N, 1, L, P + L] bool"""
    index: Tensor
    """[M] flat positions whose next token carries loss."""
    targets: Tensor
    """[M] the ids of those next tokens."""


@dataclass(frozen=True)
class PackedBatch:
    """Tool sets, padded together, and their conversations in chunks."""

    prefix: Tensor
    """[B, P], padded at the end."""
    positions: Tensor
    sees: Tensor
    """[B, 1, P, P] bool"""
    chunks: list[Chunk]


class Packer:
    """Draws conversations and packs them into sequences; the same seed gives the same stream."""

    def __init__(
        self,
        chat: ChatFormat,
        seed: int,
        conversations: int,
        strange_letters: float = STRANGE_LETTERS,
        read: float = READ,
    ) -> None:
        """`strange_letters` is the share of conversations with signs that English texts lack."""
        self.chat, self._strange_letters, self._read = chat, strange_letters, read
        self.rng = random.Random(seed)
        self.conversations = conversations

    def draw(self) -> PackedSequence:
        """Draw a tool set and its conversations."""
        tools, conversations = toolset_and_conversations(
            self.rng, self.conversations, self._strange_letters, self._read
        )
        opening = self.chat.initial([{"role": "user", "content": ""}], [tool.schema for tool in tools])
        prefix = opening[: len(opening) - len(self.request(""))]
        branches = [branch for branch in map(self.encode, conversations) if len(branch[0]) <= LONGEST]
        return PackedSequence(prefix, self._positions(len(prefix)), branches) if branches else self.draw()

    def encode(self, turns: list[TextPiece]) -> tuple[list[int], list[bool]]:
        """Return the ids and the loss mask of one conversation, built as in a rollout."""
        ids: list[int] = []
        mask: list[bool] = []
        pending: list[dict[str, str]] = []
        for turn in turns:
            if turn.role == "assistant":
                given = self.request(pending[0]["content"]) if not ids else self.chat.continuation(pending)
                said = [*self.chat.encode(turn.text), *self.chat.stop_token_ids]
                ids += [*given, *said]
                mask += [False] * len(given) + [turn.learn] * len(said)
                pending = []
            else:
                pending.append({"role": turn.role, "content": turn.text})
        return ids, mask

    def request(self, text: str) -> list[int]:
        return self.chat.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

    def _positions(self, length: int) -> list[int]:
        """Return positions, sometimes with random gaps, so that long listings are within reach (Ruoss et al. 2023)."""
        gap = self.rng.choice((2, 8, 20)) if self.rng.random() < 0.2 else 0
        position, positions = 0, []
        for _ in range(length):
            positions.append(position)
            position += 1 + (self.rng.randrange(gap + 1) if gap else 0)
        return positions


def collate(sequences: list[PackedSequence], pad: int, rows: int = 24) -> PackedBatch:
    """Pad the prefixes together, and the conversations, sorted by length, in chunks of about `rows`."""
    longest = max(len(s.prefix) for s in sequences)
    prefix, positions, real = _padded([s.prefix for s in sequences], pad, longest)
    positions = _padded([s.positions for s in sequences], 0, longest)[0]
    sees = (torch.ones(longest, longest, dtype=torch.bool).tril() & real[:, None, :])[:, None]
    branches = [(owner, ids, mask) for owner, s in enumerate(sequences) for ids, mask in s.branches]
    branches.sort(key=lambda branch: len(branch[1]))
    starts = [s.positions[-1] + 1 for s in sequences]
    chunks = [_chunk(branches[at : at + rows], real, starts, pad) for at in range(0, len(branches), rows)]
    return PackedBatch(prefix, positions, sees, chunks)


def _chunk(branches: list[tuple[int, list[int], list[bool]]], real: Tensor, starts: list[int], pad: int) -> Chunk:
    owners = torch.tensor([owner for owner, _, _ in branches])
    length = max(len(ids) for _, ids, _ in branches)
    tokens, offsets, own = _padded([ids for _, ids, _ in branches], pad, length)
    learn = _padded([[int(x) for x in mask] for _, _, mask in branches], 0, length)[0].bool()
    positions = offsets + torch.tensor(starts)[owners][:, None]
    causal = torch.ones(length, length, dtype=torch.bool).tril() & own[:, None, :]
    sees = torch.cat([real[owners][:, None, :].expand(-1, length, -1), causal], dim=2)[:, None]
    flat = learn.flatten().nonzero().squeeze(1)
    return Chunk(tokens, positions, owners, sees, flat - 1, tokens.flatten()[flat])


def _padded(rows: list[list[int]], pad: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return padded rows [N, L], their offsets 0, 1, 2 …, and a mask of what is no padding."""
    padded = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    offsets = torch.arange(length).expand(len(rows), -1)
    return padded, offsets, offsets < torch.tensor([len(row) for row in rows])[:, None]


def logits_and_targets(model: Qwen2ForCausalLM, batch: PackedBatch) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each chunk the logits [M, V] of the tokens that carry loss, their targets [M] and flat positions [M].

    Every conversation attends to its prefix's keys and values, which are computed once.
    """
    cache = DynamicCache(config=model.config)
    model.model(
        input_ids=batch.prefix,
        position_ids=batch.positions,
        attention_mask=batch.sees,
        past_key_values=cache,
        use_cache=True,
    )
    for chunk in batch.chunks:
        shared = DynamicCache(config=model.config)
        for index, layer in enumerate(cache.layers):
            keys, values = cast("tuple[Tensor, Tensor]", (layer.keys, layer.values))  # type: ignore[union-attr]
            shared.update(keys[chunk.owners], values[chunk.owners], index)
        output = model.model(
            input_ids=chunk.tokens,
            position_ids=chunk.positions,
            attention_mask=chunk.sees,
            past_key_values=shared,
            use_cache=True,
        )
        yield model.lm_head(output.last_hidden_state.flatten(0, 1)[chunk.index]), chunk.targets, chunk.index


def exact_share(
    model: Qwen2ForCausalLM, chat: ChatFormat, pad: int, strange_letters: float, seed: int = 10**9
) -> tuple[float, float]:
    """Return, teacher-forced on unseen tool sets, the share of right assistant tokens and of right assistant turns."""
    packer = Packer(chat, seed, 10, strange_letters)
    right_tokens = all_tokens = right_turns = all_turns = 0
    with torch.inference_mode():
        batches = (collate([packer.draw()], pad, rows=5) for _ in range(24))
        for logits, targets, index in (found for batch in batches for found in logits_and_targets(model, batch)):
            right = logits.argmax(-1) == targets
            turn = torch.cat([torch.zeros(1, dtype=torch.long), (index.diff() != 1).long().cumsum(0)])
            wrong = torch.zeros(int(turn[-1]) + 1).index_add(0, turn, (~right).float())
            right_tokens, all_tokens = right_tokens + int(right.sum()), all_tokens + len(right)
            right_turns, all_turns = right_turns + int((wrong == 0).sum()), all_turns + len(wrong)
    return right_tokens / all_tokens, right_turns / all_turns


@torch.no_grad()
def take_over(model: Qwen2ForCausalLM, earlier: Qwen2ForCausalLM, tokenizer: Qwen2Tokenizer, folder: Path) -> None:
    """Copy an earlier model's weights; a token that its tokenizer lacks begins near the mean of its parts there."""
    before = Qwen2Tokenizer.from_pretrained(folder)
    state, known = earlier.state_dict(), before.get_vocab()
    old = state["model.embed_tokens.weight"]
    new = torch.randn(len(tokenizer), old.shape[1]) * old.std() * 0.5
    for token, index in tokenizer.get_vocab().items():
        if token in known:
            new[index] = old[known[token]]
        else:
            new[index] += old[before.encode(tokenizer.decode([index]))].mean(0)
    model.load_state_dict({**state, "model.embed_tokens.weight": new, "lm_head.weight": new})


def _embeddings(model: Qwen2ForCausalLM) -> Tensor:
    return cast("Tensor", model.get_input_embeddings().weight)


@torch.no_grad()
def alike_tokens(model: Qwen2ForCausalLM) -> Tensor:
    """Return [V], True for tokens whose embedding is that of another one, since no text held them."""
    weights = torch.nn.functional.normalize(_embeddings(model).detach(), dim=1)
    return (weights @ weights.T).fill_diagonal_(0).amax(1) > _ALIKE


@torch.no_grad()
def tell_apart(model: Qwen2ForCausalLM, alike: Tensor) -> None:
    """Give tokens with equal embeddings each a random one near it."""
    weights = _embeddings(model)
    noise = torch.nn.functional.normalize(torch.randn(int(alike.sum()), weights.shape[1]), dim=1)
    weights[alike] += _APART * noise


def _share(text: str) -> float:
    """Return a share from 0 to 1. Raises ArgumentTypeError for anything else."""
    with suppress(ValueError):
        if 0 <= (share := float(text)) <= 1:
            return share
    raise argparse.ArgumentTypeError(f"'{text}' is no share: give a number from 0 to 1")


def main() -> None:
    parser = argparse.ArgumentParser(description="Pretrain the built-in model on a synthetic corpus.")
    parser.add_argument("--out", type=Path, default=weights_path(), help="folder for weights and tokenizer")
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--batch", type=int, default=6, help="sequences in a step")
    parser.add_argument("--conversations", type=int, default=12, help="conversations in a sequence")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--resume", type=Path, help="start from the weights in this folder, whatever its tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes", type=int, default=2, help="processes of one thread that share a step's sequences"
    )
    parser.add_argument(
        "--strange-letters", type=_share, default=STRANGE_LETTERS, help="share of conversations with other alphabets"
    )
    parser.add_argument(
        "--read", type=_share, default=READ, help="share of conversations about made-up servers that ask for fields"
    )
    parser.add_argument(
        "--alike-only", action="store_true", help="learn only the embeddings that are equal to another token's"
    )
    options = parser.parse_args()
    if options.alike_only and not options.resume:
        parser.error("--alike-only needs --resume: new weights have no equal embeddings")
    if options.resume and not (options.resume / "config.json").is_file():
        parser.error(f"--resume {options.resume}: there is no config.json of a model in this folder")
    options.processes = min(options.processes, options.batch)  # each has a sequence of every step
    with tempfile.TemporaryDirectory() as folder:
        work = (options, f"file://{folder}/meeting")
        spawn(_train, work, options.processes)  # type: ignore[no-untyped-call]


def _train(rank: int, options: argparse.Namespace, meeting: str) -> None:
    """Train in one of the processes: each draws its part of a step's sequences, and all add up their gradients."""
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=options.processes)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = build_tokenizer()
    chat = ChatFormat(tokenizer)
    model = Qwen2ForCausalLM(tiny_config(tokenizer))
    if options.resume:
        take_over(model, Qwen2ForCausalLM.from_pretrained(options.resume), tokenizer, options.resume)
    if options.alike_only:
        alike = alike_tokens(model)
        tell_apart(model, alike)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("embed" in name)
        _embeddings(model).register_hook(lambda gradient: gradient * alike[:, None])  # type: ignore[no-untyped-call]
    pad = tokenizer.pad_token_id
    learned = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in learned if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in learned if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=options.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    ]
    if matrices:
        muon = torch.optim.Muon(matrices, lr=options.learning_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        optimizers.insert(0, muon)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: _schedule(s, options.steps)) for o in optimizers]
    packer = Packer(
        chat, options.seed * options.processes + rank, options.conversations, options.strange_letters, options.read
    )
    mine = len(range(rank, options.batch, options.processes))
    started, tokens, running = time.monotonic(), 0, 0.0
    command = multiprocessing.parent_process()
    for step in range(1, options.steps + 1):
        if command is not None and not command.is_alive():  # it was killed, and nobody would see what is learned
            return
        count, loss = 0, 0.0
        for sequence in [packer.draw() for _ in range(mine)]:  # one by one, in small chunks, for little padding
            chunks = logits_and_targets(model, collate([sequence], pad, rows=3))
            part = torch.stack([cross_entropy(logits, targets, reduction="sum") for logits, targets, _ in chunks]).sum()
            part.backward()  # type: ignore[no-untyped-call]
            count, loss = count + sum(sum(mask) for _, mask in sequence.branches), loss + part.item()
        total, loss = _add_up(model, count, loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        tokens += total
        running = loss if step == 1 else 0.95 * running + 0.05 * loss
        if rank == 0 and (step % 100 == 0 or step == options.steps):
            share, turns = exact_share(model, chat, pad, options.strange_letters)
            seconds = time.monotonic() - started
            line = {"step": step, "loss": running, "token_accuracy": share, "turn_accuracy": turns}
            line["alike"] = int(alike_tokens(model).sum())
            print(
                json.dumps({k: round(v, 4) for k, v in line.items()} | {"tokens": tokens, "seconds": round(seconds)}),
                flush=True,
            )
        if rank == 0 and (step % 200 == 0 or step == options.steps):
            options.out.mkdir(parents=True, exist_ok=True)
            model.save_pretrained(options.out)
            tokenizer.save_pretrained(options.out)
    torch.distributed.destroy_process_group()


def _add_up(model: Qwen2ForCausalLM, count: int, loss: float) -> tuple[int, float]:
    """Make each gradient that of the mean loss of all processes' tokens; return their number and that loss."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([float(count), loss])])
    torch.distributed.all_reduce(flat)
    total = int(flat[-2])
    parts = torch.split(flat[:-2], [gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient) / total)
    return total, float(flat[-1]) / total


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the learning rate: linear warm-up over 50 steps, then linear decay to a fiftieth."""
    return min(1.0, (step + 1) / 50) * max(0.02, 1 - step / steps)


if __name__ == "__main__":
    main()
