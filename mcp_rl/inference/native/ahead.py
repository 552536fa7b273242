"""Compiles what sampling calls, by calling it with a model of zeros: no library is imported that takes seconds."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import BIAS, INPUTS, NONE, OUTPUTS, PAGE, Cache, Rotations, TokenArrays, Weights
from mcp_rl.inference.native.decoding import TurnArrays, decode
from mcp_rl.inference.native.draws import draw_rows
from mcp_rl.inference.native.forward import embedded, into, logits_of, out_of, out_of_bounds, room_for
from mcp_rl.inference.native.guesses import CONTEXT, NOTHING, Followers, learn_all
from mcp_rl.inference.native.vectors import BLOCK

_WIDTH = BLOCK
"""Of the model: one layer with one head, as many ids, all weights 0."""


def compile_sampling() -> None:
    """Call each function that the engine calls, with the types of its arguments."""
    weights = _weights()
    rotations = Rotations(*np.zeros((2, PAGE, _WIDTH), np.float32))
    cache = Cache(np.zeros(2 * PAGE * _WIDTH, np.float32), 1, PAGE, np.zeros((0, 3), np.int64))
    zeros = np.zeros(1, np.int64)
    tokens = TokenArrays(zeros, zeros, zeros, zeros, np.full(1, NONE))
    x, room = embedded(weights, tokens.ids), room_for(weights, 1)
    queries, logits = np.zeros(_WIDTH, np.float32), np.zeros((1, _WIDTH), np.float32)
    out_of_bounds(tokens, _WIDTH, 1, PAGE)
    into(weights, rotations, cache, tokens, 0, (x, queries), room, (0, 1))
    out_of(weights, cache, tokens, 0, queries, np.arange(1), x, room)
    logits_of(weights, x, room, logits)
    draw_rows(logits, np.ones(1), np.zeros(1), np.empty(1, np.int64), np.empty(1, np.float32))
    learn_all(Followers.none(), np.zeros((1, CONTEXT), np.int64), np.zeros(1, np.int64))
    decode(weights, rotations, cache, NOTHING, np.zeros(1, np.int64), 1, 0, _turns())


def _weights() -> Weights:
    product = np.zeros(7, np.int64)
    product[[INPUTS, OUTPUTS]] = _WIDTH, 3 * _WIDTH
    product[BIAS] = _WIDTH * 3 * _WIDTH
    head = product.copy()
    head[OUTPUTS] = _WIDTH
    return Weights(
        numbers=np.zeros(_WIDTH * 3 * _WIDTH + 3 * _WIDTH, np.float32),
        products=np.array([[product, head, product, head]]),
        norms=np.array([[0, 0, NONE, NONE]]),
        head=np.array([0, *head]),
        embeddings=np.zeros((_WIDTH, _WIDTH), np.float32),
        heads=1,
        shared=1,
        dim=_WIDTH,
        scaling=np.float32(1),
        floor=np.float32(1),
    )


def _turns() -> TurnArrays:
    zeros = np.zeros(1, np.int64)
    return TurnArrays(
        slots=zeros,
        starts=zeros,
        trunk_of=np.full(1, NONE),
        positions=zeros,
        limits=np.ones(1, np.int64),
        temperatures=np.ones(1),
        uniforms=np.zeros((1, 1)),
        ids=np.zeros((1, CONTEXT + 1), np.int64),
        logprobs=np.empty((1, 1), np.float32),
        counts=np.zeros(1, np.int64),
        passes=np.zeros(1, np.int64),
        guessed=np.zeros(1, np.int64),
    )
