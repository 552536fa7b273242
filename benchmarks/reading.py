"""How often a base answers with the field of a result that the request asks for, by the fields of the record.

    python -m benchmarks.reading [--model DIR] [--servers 150]

On made-up servers that no corpus had (another seed), four conversations each: a call, its result, the answer. The
answer is right if each of its tokens is the likeliest after the ones before it; a guess among n fields is right in 1/n.
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.tiny import weights_path
from mcp_rl.tiny.errands import reading_conversation
from mcp_rl.tiny.pretrain import LONGEST, PackedSequence, Packer, collate, logits_and_targets
from mcp_rl.tiny.strangers import strange_server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=weights_path())
    parser.add_argument("--servers", type=int, default=150)
    options = parser.parse_args()
    if not (options.model / "config.json").is_file():
        parser.error(f"--model {options.model}: there is no config.json of a model in this folder")
    tokenizer, model = AutoTokenizer.from_pretrained(options.model), Qwen2ForCausalLM.from_pretrained(options.model)
    packer, rng = Packer(ChatFormat(tokenizer), 0, 1), random.Random(10**9)
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for _ in range(options.servers):
        server = strange_server(rng)
        opening = packer.chat.initial([{"role": "user", "content": ""}], [t.schema for t in server.tools.values()])
        prefix = opening[: len(opening) - len(packer.request(""))]
        for _ in range(4):
            turns = (reading_conversation(rng, server) or [])[:4]
            ids, mask = packer.encode(turns)
            record = _record(turns[2].text) if turns else None
            if record is None or len(ids) > LONGEST:
                continue
            packed = PackedSequence(prefix, list(range(len(prefix))), [(ids, mask)])
            with torch.inference_mode():
                ((logits, targets, index),) = logits_and_targets(model, collate([packed], tokenizer.pad_token_id))
            start = int((index.diff() != 1).nonzero()[-1]) + 1
            fields = f"{min(len(record), 6)}"
            asked[fields] += 1
            right[fields] += bool((logits.argmax(-1) == targets)[start:].all())
    print(json.dumps({n: {"right": round(right[n] / asked[n], 2), "of": asked[n]} for n in sorted(asked)}))


def _record(result: str) -> dict[str, object] | None:
    """Return the one record that a result in JSON holds."""
    try:
        record = json.loads(result)
    except ValueError:
        return None
    return record if isinstance(record, dict) and len(record) > 1 else None


if __name__ == "__main__":
    main()
