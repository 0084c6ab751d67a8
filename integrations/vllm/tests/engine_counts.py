"""What the reference engine answers and accepts, as JSON: `python engine_counts.py FOLDER DRAFT K QUESTION ...`.

A process of its own, since vLLM starts no engine once numba has been imported. Every answer ends where a step of the
engine ends, so that neither host cuts a draft that the other keeps.
"""

from __future__ import annotations

import json
import sys

from specdec_engine import LLM, SamplingParams

MOST = 40


def answered(llm, chat, k):
    """The ids of a prompt and of its answer, the steps after the prompt's, and accepted drafts by position.

    Where one id is left, the engine drafts nothing and vLLM drafts what it then throws away: so steps are counted.
    """
    params = SamplingParams(temperature=0.0, max_tokens=MOST, ignore_eos=True)
    ends = [len(output.outputs[0].token_ids) for output in llm.stream(chat, params)]
    last = max(end for end in ends if end < MOST - k)
    (output,) = llm.generate(chat, SamplingParams(temperature=0.0, max_tokens=last, ignore_eos=True), use_tqdm=False)
    accepted = [*output.metrics.accepted_per_pos, *[0] * k][:k]
    steps = sum(end <= last for end in ends) - 1
    ids = list(output.outputs[0].token_ids)
    return {"prompt": list(chat["prompt_token_ids"]), "ids": ids, "steps": steps, "accepted": accepted}


def main():
    folder, draft, k, *questions = sys.argv[1:]
    config = {"model": draft, "num_speculative_tokens": int(k)}
    with LLM(folder, config, dtype="float32", max_model_len=256, enable_prefix_caching=False) as llm:
        chats = llm.chat_prompts([[{"role": "user", "content": text}] for text in questions])
        print(json.dumps([answered(llm, chat, int(k)) for chat in chats]))


if __name__ == "__main__":
    main()
