"""What SmolLM2 is asked in the golden tests. Each was chosen since Transformers' greedy choice is clear at every step: the
two most likely tokens are never closer than 0.01, so that no rounding turns one into the other."""

TEXTS = [
    "The harbour was quiet that morning, and the only sound came from",
    "def fibonacci(n):\n    ",
    "Once there was a clockmaker who",
    "1, 2, 4, 8, 16,",
    "import json\n\nwith open('settings.json') as file:\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "In the year 1492,",
    "SELECT name, COUNT(*) FROM orders",
    "# Getting started\n\nFirst install the package:\n\n```",
    "The moon goes around the earth once every",
    "To be a good listener, you should",
    "Question: How many legs does a spider have?\nAnswer:",
]

CHATS = [
    "What is the capital of France?",
    "Write two sentences about the sea.",
    "Explain what a prime number is to a child.",
    "Give me a short recipe for pancakes.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet?",
    "Tell me a joke about a cat.",
]
