"""Sums of two numbers of two digits, after three worked examples: python3 prompts.py > prompts.jsonl"""

import json
import random

EXAMPLES = "12 + 25 = 37\n40 + 31 = 71\n64 + 18 = 82\n"
random.seed(1)
for _ in range(800):
    a, b = random.randint(10, 99), random.randint(10, 99)
    print(json.dumps({"prompt": f"{EXAMPLES}{a} + {b} =", "answer": str(a + b)}))
