#!/usr/bin/env python
"""A conversation of two turns: python examples/ask_chat.py [MODEL [key=value ...]]."""

import sys

from launch.api import load

name, *overrides = sys.argv[1:] or ["smollm2", "sampling.max_new_tokens=40"]
messages = [{"role": "system", "content": "Answer in one sentence."}]
with load(name, *overrides) as model:
    for question in ("What is a verb?", "Give an example of one."):
        messages.append({"role": "user", "content": question})
        answer = model.chat(messages).text
        messages.append({"role": "assistant", "content": answer})
        print(f"> {question}\n{answer}")
