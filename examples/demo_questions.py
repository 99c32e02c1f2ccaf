"""Makes the embedded data set of task demo: 15 facts, 6 sums and 3 products, shuffled.

    python examples/demo_questions.py > components/tasks/data/demo.jsonl

The questions are of kinds that the embedded model of 135M parameters gets partly right.
"""

import json
import random

SEED = 7
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Australia": "Canberra",
}
OPPOSITES = {"hot": "cold", "early": "late", "ancient": "modern", "wet": "dry"}
FACTS = {
    "Which colour is the sky on a clear day?": "blue",
    "Which planet is known as the Red Planet?": "Mars",
    "Which planet is the largest?": "Jupiter",
    "Which day comes after Tuesday?": "Wednesday",
    "Which month comes after August?": "September",
    "How many legs does a spider have?": "8",
}


def questions() -> list[tuple[str, str]]:
    """Question and answer of every example, in the order of the file."""
    rng = random.Random(SEED)
    pairs = [(f"What is the capital of {place}?", city) for place, city in CAPITALS.items()]
    pairs += [(f"What is the opposite of {word}?", other) for word, other in OPPOSITES.items()]
    pairs += FACTS.items()
    for _ in range(6):
        a, b = rng.randint(2, 30), rng.randint(2, 30)
        pairs.append((f"What is {a} + {b}?", str(a + b)))
    for _ in range(3):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        pairs.append((f"What is {a} * {b}?", str(a * b)))
    rng.shuffle(pairs)
    return pairs


if __name__ == "__main__":
    for number, (question, answer) in enumerate(questions(), start=1):
        row = {"id": f"demo-{number:02d}", "question": question, "answer": answer}
        print(json.dumps(row))
