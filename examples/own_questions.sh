#!/usr/bin/env bash
# Your own questions at two temperatures. The second start finds everything done and asks nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

questions=$(mktemp --suffix=.jsonl)
trap 'rm -f "$questions"' EXIT
cat > "$questions" <<'JSONL'
{"id": "sum", "question": "What is 17 + 25?", "answer": "42"}
{"id": "half", "question": "What is half of 3?", "answer": "\\frac{3}{2}"}
JSONL

for start in first second; do
    python launch/run.py -m task=math task.data.path="$questions" cue=wait \
        run.name=own_questions_example sampling.temperature=0,0.7 "$@"
done
