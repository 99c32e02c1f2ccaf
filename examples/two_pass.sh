#!/usr/bin/env bash
# Four crossword clues, two samples each, reconsidered under three cues and a neutral control.
# Further settings are passed on: examples/two_pass.sh backend=echo sampling.temperature=0.3
set -euo pipefail
cd "$(dirname "$0")/.."

python launch/run.py task=crossword cue=reconsider_control \
    run.name=two_pass_example run.limit=4 sampling.num_samples=2 "$@"
