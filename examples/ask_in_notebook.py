#!/usr/bin/env python
"""Ask as cells of a notebook do: python examples/ask_in_notebook.py [MODEL [key=value ...]]."""

# %% Load once; `with` would do the same for a single cell.
import sys

from launch.api import load

name, *overrides = sys.argv[1:] or ["smollm2", "sampling.max_new_tokens=40"]
model = load(name, *overrides)
model.__enter__()

# %% Ask as often as you like.
answer = model.generate("Name three colours.")
print(answer.text)
print(f"{answer.count} tokens, ended by {answer.finish_reason}")

# %% Unload.
model.__exit__()
