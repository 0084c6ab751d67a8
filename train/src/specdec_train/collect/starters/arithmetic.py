"""Arithmetic: word problems of several steps, and plain sums; made by templates, without answers."""

from __future__ import annotations

from random import Random
from typing import Final

from specdec_train.collect.starters import words

PROBLEMS: Final = """\
{a} has {n} {obj}. {b} gives {a} {m} more, and then {a} gives half of all of them to {c}. How many {obj} does {a} have left?
A {shop} sells {obj} for ${p} each. {a} buys {k} of them and pays with a ${big} bill. How much change does {a} get?
{a} earns ${p} an hour and works {h} hours a day, {d} days a week. How much does {a} earn in {k} weeks?
There are {n} {obj} in a box. {m} of them are broken, and the rest are shared equally among {k} children. How many does each child get?
A train travels {s} miles in {h} hours. At the same speed, how far does it travel in {k} hours?
{a} reads {m} pages on Monday, twice as many on Tuesday, and {k} pages fewer on Wednesday than on Tuesday. How many pages does {a} read in all?
{a} is {k} years older than {b}. In {h} years, {a} will be twice as old as {b} was {d} years ago. If {b} is {m} now, how old is {a}?
A farmer has {n} hens. Each hen lays {k} eggs a week. The farmer sells the eggs in boxes of 12 for ${p} a box. How much money does the farmer make in {h} weeks?
{a} and {b} collect {obj}. {a} has {n}, and {b} has {pct}% more. How many do they have together?
A shirt costs ${big}. It is on sale for {pct}% off, and {a} has a coupon for another ${k}. How much does {a} pay?
{a} wants to save ${big} in {h} months. So far {a} has saved ${m}. How much must {a} save each month?
A tank holds {big} liters. It is filled at {k} liters a minute and loses {h} liters every {d} minutes. How much is in it after {m} minutes?
{a} bakes {n} cookies. {a} eats {k}, gives {m} to the neighbors, and packs the rest into bags of {h}. How many bags can {a} fill?
In a class of {n} students, {pct}% play football and {k} play tennis. The others play nothing. How many play nothing?
{a} walks {k} miles to school and back every day, {d} days a week. How many miles does {a} walk in {h} weeks?
A {shop} had {big} {obj}. On Monday it sold {m}, on Tuesday {k} times as many as on Friday, when it sold {h}. How many are left?
{a} has {k} bags with {m} {obj} in each. {b} has {h} bags with {n} {obj} in each. Who has more, and how many more?
It takes {k} workers {h} days to build a wall. How many days does it take {d} workers?
The sum of two numbers is {n}, and one of them is {k} more than the other. What are the numbers?
{a} drives {s} miles. The car uses a gallon for every {m} miles, and a gallon costs ${k}. What does the trip cost?
{a} buys {k} {obj} for ${p} each and {h} {obj2} for ${d} each. The tax is {pct}%. What is the total?
A rectangle is {n} meters long and {m} meters wide. What are its area and its perimeter?
{a} has three times as many {obj} as {b}, and {b} has {k} more than {c}. If {c} has {m}, how many do they have altogether?
A phone costs ${big}. {a} pays ${m} now and the rest in {h} equal payments. How much is each payment?""".splitlines()
BARE: Final = """\
What is {n} + {m}?
What is {n} times {k}?
Calculate {big} - {m} + {k} * {h}. Show each step.
Solve for x: {k}x + {m} = {big}
What is {pct}% of {big}?
Solve the equation {k}(x - {h}) = {n} step by step.
Convert {n} kilometers to miles.
What is the average of {n}, {m}, {k} and {h}?
Is {n} a prime number? Explain.
Find the greatest common divisor of {n} and {m}.
If f(x) = {k}x^2 - {h}x + {d}, what is f({d})?
What is the next number in the sequence {k}, {n}, {m}, {big}?
Write {n}/{m} as a decimal.""".splitlines()
AFTER: Final = ("", "", "", "", " Think step by step.", " Show your work.", " Explain how you got the answer.")


def problem(rng: Random) -> str:
    """Return a problem with its numbers."""
    template = rng.choice(PROBLEMS if rng.random() < 0.8 else BARE)
    a, b, c = rng.sample(words.NAMES, 3)
    obj, obj2 = rng.sample(words.OBJECTS, 2)
    text = template.format(
        a=a,
        b=b,
        c=c,
        obj=obj,
        obj2=obj2,
        shop=rng.choice(words.SHOPS),
        n=rng.randint(12, 96),
        m=rng.randint(8, 60),
        k=rng.randint(2, 9),
        h=rng.randint(2, 8),
        d=rng.randint(2, 6),
        p=rng.choice((2, 3, 4, 5, 8, 12, 15)),
        s=rng.randint(6, 40) * 10,
        big=rng.choice((50, 100, 120, 200, 240, 300, 360, 450, 500)),
        pct=rng.choice((5, 10, 15, 20, 25, 30, 40, 50)),
    )
    return text + rng.choice(AFTER)
