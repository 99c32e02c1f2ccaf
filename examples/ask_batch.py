#!/usr/bin/env python
"""Answers to several prompts side by side: python examples/ask_batch.py [MODEL [key=value ...]]."""

import sys

from launch.api import load

name, *overrides = sys.argv[1:] or ["smollm2", "sampling.max_new_tokens=40"]
prompts = ["Name a colour.", "Name a river.", "Name a number."]
with load(name, *overrides) as model:
    for prompt, answer in zip(prompts, model.generate_batch(prompts), strict=True):
        entropies = answer.entropies or [0.0]
        print(f"{prompt} {answer.text!r}, mean entropy {sum(entropies) / len(entropies):.2f} nats")
