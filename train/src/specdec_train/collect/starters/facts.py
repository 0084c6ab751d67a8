"""Made-up passages with facts in them, and questions that only the passage answers; by templates."""

from __future__ import annotations

from random import Random
from typing import Final

from specdec_train.collect.starters import words

# Each: sentences in the order in which they come, and questions about them.
KINDS: Final = (
    (
        (
            "{name} {surname} was born in {city} in {year}, the child of a {job} and a {job2}.",
            "After school {name} moved to {city2}, where {surname} worked as a {job3} for {k} years.",
            "In {year2} {surname} published a book about {subject}, which sold {n},000 copies in {country}.",
            "Critics praised its clear style, but the newspaper of {city3} called it too long.",
            "{surname} received the {country} Prize for Letters in {year3} and used the money to open a library in {city}.",
            "Friends remember that {name} loved {hobby} and never owned a car.",
            "{surname} died in {month} {year4}; the house in {city2} is a museum today and has {m} rooms.",
        ),
        (
            "Where was {name} {surname} born?",
            "What did {name} {surname} write about, and how many copies were sold?",
            "In which year did {surname} win a prize, and what was the money used for?",
            "How many rooms does the museum have?",
            "What did critics say about the book?",
            "Write a short biography of {name} {surname} from the text.",
        ),
    ),
    (
        (
            "The {surname} Company was founded in {year} in {city} by {name} {surname}, a former {job}.",
            "At first it made {obj} in a workshop with {k} workers.",
            "By {year2} it had {n}00 employees and sold its {thing}s in {m} countries.",
            "A fire destroyed the main factory in {month} {year3}, and production moved to {city2} for two years.",
            "{name2} {surname2} became the director in {year4} and closed three of the {k2} branches.",
            "Last year the company earned {n2} million dollars, {pct} percent more than the year before.",
            "It plans to build a new research center in {country}, which will study {science}.",
        ),
        (
            "Who founded the {surname} Company, and when?",
            "What happened to the main factory?",
            "How much did the company earn last year?",
            "Where will the new research center be, and what will it study?",
            "How many employees did the company have in {year2}?",
            "List all the years in the text and say what happened in each.",
        ),
    ),
    (
        (
            "The city council of {city} decided on {weekday} to rebuild the old {shop} near the central station.",
            "The work will begin in {month} and cost about {n} million dollars, said the mayor, {name} {surname}.",
            "Residents had collected {m},000 signatures against the plan because they fear more noise.",
            '"We have waited {k} years for this," said {name2} {surname2}, who runs a {shop2} across the street.',
            "The building was damaged by a storm in {year2} and has been empty since then.",
            "When it opens again, it will have a hall for {n2}0 people, a cafe, and a small exhibition about the {thing}.",
            "A first meeting for residents takes place on {month2} {k2}.",
        ),
        (
            "What did the city council of {city} decide?",
            "How much will the work cost, and who said so?",
            "Why are residents against the plan?",
            "When was the building damaged?",
            "What will be in the building when it opens again?",
            "What did {name2} {surname2} say?",
        ),
    ),
    (
        (
            "The Cape {surname} lighthouse was built in {year} by the engineer {name2} {surname2}.",
            "It is {n} meters tall and stands on a rock {m} kilometers from {city}.",
            "Its lamp was changed to electric light in {year2}, after a ship with {obj} had run aground in {month}.",
            "The last keeper, {name} {surname}, climbed {n2}0 steps every evening for {k} years.",
            "Since {year4} the light has been controlled from {city2}, and the keeper's house is a hotel with {k2} beds.",
            "Visitors can see {animal}s on the rocks below from {month2} on.",
        ),
        (
            "Who built the lighthouse, and in which year?",
            "How tall is the lighthouse, and where does it stand?",
            "Why was the lamp changed to electric light?",
            "How many steps did the last keeper climb?",
            "What is the keeper's house used for today?",
        ),
    ),
    (
        (
            "Researchers in {city} have studied {k2}00 {animal}s for {k} years.",
            "The group of {name} {surname} found that the animals sleep {k} hours less in {month} than in {month2}.",
            "The reason, the researchers say, is {science}, although {subject} may play a part as well.",
            "An earlier study from {country} had come to another result, but it used only {n} animals.",
            '"It surprised all of us," said {surname}, who began the project in {year4}.',
            "The results appeared in {month}; the data of {m} animals could not be used because their collars had failed.",
            "The next study will begin in {country2} and cost {n2}0,000 dollars.",
        ),
        (
            "What did the researchers find out?",
            "How many animals were studied, and for how long?",
            "Why could the data of some animals not be used?",
            "What had an earlier study found?",
            "Where will the next study begin, and what will it cost?",
        ),
    ),
)
WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


def passage(rng: Random) -> tuple[str, list[str]]:
    """Return a passage of a few sentences, some of them left out at random, and questions about it."""
    sentences, questions = rng.choice(KINDS)
    fields = _fields(rng)
    left_out = rng.randrange(1, len(sentences)) if rng.random() < 0.4 else None
    kept = [text for i, text in enumerate(sentences) if i != left_out]
    text = " ".join(sentence.format(**fields) for sentence in kept)
    return text, [question.format(**fields) for question in questions]


def _fields(rng: Random) -> dict[str, str]:
    cities, countries = rng.sample(words.CITIES, 3), rng.sample(words.COUNTRIES, 2)
    names, surnames = rng.sample(words.NAMES, 2), rng.sample(words.SURNAMES, 2)
    jobs, months = rng.sample(words.JOBS, 3), rng.sample(words.MONTHS, 2)
    shops = rng.sample(words.SHOPS, 2)
    years = sorted(rng.sample(range(1840, 2020), 4))
    found: dict[str, object] = {
        **dict(zip(("city", "city2", "city3"), cities, strict=True)),
        **dict(zip(("country", "country2"), countries, strict=True)),
        **dict(zip(("name", "name2"), names, strict=True)),
        **dict(zip(("surname", "surname2"), surnames, strict=True)),
        **dict(zip(("job", "job2", "job3"), jobs, strict=True)),
        **dict(zip(("month", "month2"), months, strict=True)),
        **dict(zip(("shop", "shop2"), shops, strict=True)),
        **dict(zip(("year", "year2", "year3", "year4"), years, strict=True)),
        "animal": rng.choice(words.ANIMALS),
        "thing": rng.choice(words.THINGS),
        "science": rng.choice(words.SCIENCE),
        "subject": rng.choice(words.SUBJECTS),
        "hobby": rng.choice(words.HOBBIES),
        "obj": rng.choice(words.OBJECTS),
        "weekday": rng.choice(WEEKDAYS),
        "k": rng.randint(3, 29),
        "k2": rng.randint(2, 28),
        "m": rng.randint(11, 89),
        "n": rng.randint(12, 98),
        "n2": rng.randint(11, 79),
        "pct": rng.randint(2, 30),
    }
    return {name: str(value) for name, value in found.items()}
