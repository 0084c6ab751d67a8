"""Code: functions to write, and code of the standard library to edit, to explain and to copy."""

from __future__ import annotations

import re
from random import Random
from typing import Final

from specdec_train.collect.starters import passages, words

TO_WRITE: Final = """\
checks whether a string is a palindrome
returns the n-th Fibonacci number
sorts a list of numbers with bubble sort
finds the largest and the smallest number in a list
counts how often each word occurs in a text
removes duplicates from a list and keeps the order
reverses the words in a sentence
checks whether a number is prime
computes the greatest common divisor of two numbers
converts a temperature from Celsius to Fahrenheit
merges two sorted lists into one sorted list
finds an element by binary search
reads a CSV file and returns the sum of a column
validates an email address with a regular expression
computes the factorial of a number without recursion
implements a stack with push, pop and peek
implements a queue with two stacks
transposes a matrix
checks whether two strings are anagrams
flattens a nested list
computes the average and the median of a list
groups a list of records by a key
downloads a web page and prints its title
parses a date and returns the day of the week
generates a random password of a given length
counts the vowels in a string
finds the longest common prefix of a list of strings
converts a Roman numeral to an integer
implements a linked list with insert and delete
traverses a binary tree in order
finds the shortest path in a graph
solves the Tower of Hanoi
simulates the rolling of two dice
checks whether brackets in a string are balanced
rotates a list by k places
finds all pairs of numbers with a given sum
computes compound interest
logs every call of a function with its arguments
retries a request three times before it fails
caches the results of another function
splits a list into chunks of equal size
prints a multiplication table
converts a decimal number to binary
encodes a string with run-length encoding
finds the second largest number in a list""".splitlines()
WRITE: Final = (
    "Write a {language} function that {what}.",
    "Write a function in {language} that {what}. Add comments.",
    "How do I write {language} code that {what}?",
    "Implement a program in {language} that {what}, and show how it is used.",
    "Give me a {language} example that {what}. Explain how it works.",
    "Write a {language} class with a method that {what}.",
    "Write a {language} function that {what}, and three tests for it.",
)
EDIT: Final = (
    "Rename the variable `{old}` to `{new}` in this code and write all of the code again:\n\n{code}",
    "Add a docstring to this function. Do not change anything else.\n\n{code}",
    "Add type hints to this Python code and return the whole code:\n\n{code}",
    "Here is some code:\n\n```python\n{code}\n```\n\nRewrite it with comments for each step.",
    "```python\n{code}\n```\nReplace every `{old}` in the code above by `{new}`. Print the complete code.",
    "Fix the formatting of this code and print it again without other changes:\n\n{code}",
    "Add a line that prints `{old}` at the start of the function, and show the new function:\n\n{code}",
    "Copy this code exactly as it is:\n\n```\n{code}\n```",
    "Refactor the following function. Keep its name and its arguments.\n\n{code}",
)
EXPLAIN: Final = (
    "What does this code do?\n\n{code}",
    "Explain the following Python code line by line:\n\n```python\n{code}\n```",
    "Is there a bug in this function?\n\n{code}",
    "Write a docstring for this function:\n\n{code}",
    "Which arguments does this function take, and what does it return?\n\n{code}",
)
NEW_NAMES: Final = ("value", "item", "result", "data", "entry", "total", "current", "source", "buffer", "number")


def writing(rng: Random) -> str:
    """Return a request to write a program."""
    return rng.choice(WRITE).format(language=rng.choice(words.LANGUAGES), what=rng.choice(TO_WRITE))


def reading(rng: Random) -> str:
    """Return a question about a function."""
    return rng.choice(EXPLAIN).format(code=passages.function(rng))


def editing(rng: Random) -> str:
    """Return a request to write a function again with a change."""
    code = passages.function(rng)
    names = [name for name in re.findall(r"\b[a-z_]{3,}\b", code) if name not in ("def", "self", "return", "for")]
    old = rng.choice(names) if names else "x"
    return rng.choice(EDIT).format(code=code, old=old, new=rng.choice(NEW_NAMES))
