"""Questions by templates: facts, explanations, writing, advice, roles; and what is said next in a conversation."""

from __future__ import annotations

from random import Random
from typing import Final

from specdec_train.collect.starters import words

FILLED: Final = {
    "name": words.NAMES,
    "surname": words.SURNAMES,
    "city": words.CITIES,
    "country": words.COUNTRIES,
    "animal": words.ANIMALS,
    "thing": words.THINGS,
    "science": words.SCIENCE,
    "history": words.HISTORY,
    "food": words.FOODS,
    "hobby": words.HOBBIES,
    "subject": words.SUBJECTS,
    "job": words.JOBS,
    "place": words.PLACES,
    "adjective": words.ADJECTIVES,
    "reader": words.READERS,
    "month": words.MONTHS,
}
FACTS: Final = """\
What is the capital of {country}?
what is the capital city of {country}
Where is {city}, and what is it known for?
how many people live in {city}
When did {country} become independent?
who was the first president of {country}
What language do people speak in {country}?
what currency is used in {country}
Who invented the {thing}?
when was the {thing} invented
How does a {thing} work?
what is a {thing} used for
What do {animal}s eat?
how long does a {animal} live
where do {animal}s live in the wild
Why is the {animal} important for its environment?
What is {science}?
what is the meaning of {science}
Who discovered {science}, and how?
Why does {science} matter in daily life?
When was {history}?
what caused {history}
who was the leader during {history}
what were the effects of {history}
Where does {food} come from?
what are the ingredients of {food}
how long does it take to make {food}
what does a {job} do
how much does a {job} earn in {country}
What is the weather like in {city} in {month}?
what is the longest river in {country}
What is the highest mountain in {country}?
who wrote the national anthem of {country}
which countries border {country}
what is the difference between {science} and {science}
Is {city} bigger than {city}?
when does the school year start in {country}
who is in charge of education in {country}
what is the most popular sport in {country}
Name five facts about the {animal}.
name three famous people from {country}
How far is it from {city} to {city}?""".splitlines()
EXPLAIN: Final = """\
Explain {science} to {reader}.
Explain {science} in simple words, with an example.
Can you explain how {science} works, step by step?
Describe {history} in one paragraph.
What are the advantages and disadvantages of {subject}?
Compare {subject} and {subject}. Which one is more important, and why?
Give me a {adjective} explanation of {science}.
What is the relationship between {science} and {science}?
List the main causes and effects of {history}.
Why do people disagree about {subject}?
Summarize what is known about {science} in five bullet points.
How did {history} change the lives of ordinary people?
What would happen if there were no {science}?
Explain the difference between a {job} and a {job}.
Imagine you are a {job}. Explain {science} to {reader}.
What are common mistakes that people make about {science}?
Discuss the ethics of {subject} from several points of view.
Which economic factors influence {subject}? Give examples from {country}.
Describe the role of {history} in the culture of {country}.
How could {city} improve {subject}? Give a plan with three steps.
Make a table with three columns that compares {country}, {country} and {country}.
Extract the names and the places from this sentence: {name} {surname}, a {job} from {city}, moved to {country} in {month}.
Classify each of these as an animal, a food or a machine: {animal}, {food}, {thing}, {animal}, {thing}.
Sort these words by the alphabet: {hobby}, {job}, {animal}, {thing}, {food}.
Write these facts as JSON: {name} {surname} is a {job}, lives in {city}, and likes {hobby}.
If all {job}s like {food}, and {name} is a {job}, what do we know about {name}? Explain your reasoning.
{name} is taller than {name}, and {name} is taller than both. Who is the shortest? Think step by step.""".splitlines()
WRITING: Final = """\
Write a news article about {subject} in {city}.
Write a {adjective} news report: a {job} in {city} has saved a {animal}.
Write a long article about {history}, with several paragraphs.
Write an encyclopedia article about {science}.
Write an article about the {animal}, where it lives and what it eats.
Write a travel guide for {city} with sections on food, sights and transport.
Write a short story that takes place in {place}. The main character is a {job} called {name}.
Write a {adjective} email to my manager about {subject}.
Write a {adjective} letter from {name} to {name} about {hobby}.
Compose a blog post about a trip to {country}, with cultural experiences and places to see.
Write a poem about {place}.
Write a speech for {reader} about {subject}.
Write a persuasive essay on {subject}. Give reasons and examples.
Write a dialogue between a {job} and a {job} about {subject}.
Write a product description for a new {thing}.
Write a review of a restaurant in {city} that serves {food}.
Write the first chapter of a novel that begins in {place} in {month}.
Draft a press release: the city of {city} opens a museum about the {thing}.
Write a biography of {name} {surname}, a {job} from {country}.
Write a history of the {thing}, from its invention until today.
Write a report of a football match between {city} and {city}.
Write instructions for making {food} at home, with a list of ingredients.
Write a diary entry of a {job} on a hard day in {month}.
Write a job advertisement for a {job} in {city}.
Write a plan for learning {hobby} in four weeks.
Write a fable in which a {animal} and a {animal} learn something about {subject}.""".splitlines()
ADVICE: Final = """\
How can I get better at {hobby}?
I am a {job} and I want to start with {hobby}. What should I buy first?
Give me ten tips for {hobby}.
What should I do in {city} for three days?
I have a job interview as a {job} next week. How should I prepare?
My friend {name} is sad because of {subject}. What can I say?
Suggest five ideas for a birthday party for {reader}.
Plan a week of meals with {food} and {food}.
How do I explain {subject} to my children?
Pretend to be a {job} in {city}. I ask you: what is the best part of your day?
You are {name}, a {adjective} {job}. Tell me why I should try {hobby}.
Act as a tour guide in {city} and welcome a group from {country}.
Play the role of a {job} who has to calm down an angry customer. Begin.
What questions should I ask before I move to {country}?
Give three reasons why people enjoy {hobby}.
Help me to decide between becoming a {job} and a {job}.
What are the signs of a good {job}?
How do I write a {adjective} complaint to a shop that sold me a broken {thing}?""".splitlines()
NEXT: Final = """\
Now make it shorter.
Can you explain the second point in more detail?
Rewrite your answer for {reader}.
Give me an example.
Summarize that in one sentence.
Now write the same as a list of bullet points.
Rewrite it as a poem.
Write it again, but more {adjective}.
Why is that so?
What are the arguments against it?
Turn this into a {adjective} email.
Can you check your answer and correct any mistakes?
Translate your answer into French.
Translate your answer into German.
Translate your last answer into Spanish.
What should I do next?
Continue.
Tell me more about it.
How does this compare with {subject}?
Now do the same for {country}.
Repeat your answer, but change every name to {name}.
Ask me three questions about this.
Make a title for it, and three keywords.
Rewrite the first sentence of your answer in three different ways.
Put your answer into a table.
Who would disagree, and what would they say?
Take what you wrote and limit each sentence to ten words.""".splitlines()


def filled(rng: Random, template: str) -> str:
    """Return a template with a word for each of its fields; the same field gets other words each time."""
    text = template
    for field, choices in FILLED.items():
        mark = f"{{{field}}}"
        for word in rng.sample(choices, text.count(mark)):
            text = text.replace(mark, word, 1)
    return text


def fact(rng: Random) -> str:
    """Return a short question about a fact or an idea."""
    return filled(rng, rng.choice(FACTS if rng.random() < 0.7 else EXPLAIN))


def topic(rng: Random) -> str:
    """Return a question for an explanation, for reasoning, for advice or for a role."""
    return filled(rng, rng.choice(EXPLAIN if rng.random() < 0.55 else ADVICE))


def writing(rng: Random) -> str:
    """Return a request to write a text."""
    return filled(rng, rng.choice(WRITING))


def next_turn(rng: Random) -> str:
    """Return what a user says after an answer."""
    return filled(rng, rng.choice(NEXT))
