"""Words that templates of starters are filled with; lists of them, and nothing else."""

from __future__ import annotations

from typing import Final


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.replace("\n", " ").split(",") if word.strip())


NAMES: Final = _list(
    """Anna, Ben, Carla, David, Elena, Farid, Grace, Hannah, Ivan, Julia, Kenji, Laura, Marco, Nadia, Oscar, Priya,
    Quentin, Rosa, Samuel, Tara, Umar, Vera, Walter, Xenia, Yusuf, Zoe, Aisha, Bruno, Clara, Diego, Emma, Felix, Greta,
    Hugo, Ines, Jonas, Karim, Lena, Mateo, Noah, Olga, Peter, Rachel, Sofia, Tom, Wendy"""
)
SURNAMES: Final = _list(
    """Adler, Brooks, Castillo, Dawson, Eriksen, Fontaine, Garcia, Hughes, Ibrahim, Jensen, Kowalski, Lindqvist, Moreau,
    Nakamura, Okafor, Petrov, Quinn, Rossi, Schneider, Tanaka, Ueda, Varga, Whitfield, Yamada, Zimmer, Bauer, Costa"""
)
CITIES: Final = _list(
    """Lisbon, Oslo, Nairobi, Lima, Toronto, Kyoto, Prague, Cairo, Melbourne, Chicago, Istanbul, Mumbai, Santiago,
    Helsinki, Lagos, Vienna, Seattle, Bangkok, Havana, Warsaw, Dublin, Athens, Hanoi, Denver, Glasgow, Seville, Tunis,
    Boston, Manila, Geneva, Rotterdam, Marseille, Cape Town, Buenos Aires, Edinburgh, Leipzig, Quebec, Sapporo"""
)
COUNTRIES: Final = _list(
    """Brazil, Japan, Kenya, Canada, Italy, Egypt, India, Norway, Mexico, Thailand, Poland, Australia, Morocco, Chile,
    Greece, Vietnam, Ireland, Turkey, Nigeria, Peru, Portugal, South Korea, Iceland, Argentina, Finland, Indonesia,
    Germany, France, Spain, Sweden, Ethiopia, Cuba, Switzerland, New Zealand, China, Russia, the Netherlands, Austria"""
)
ANIMALS: Final = _list(
    """octopus, honey bee, wolf, penguin, elephant, salmon, barn owl, bat, crocodile, dolphin, hedgehog, camel, spider,
    giraffe, tortoise, hummingbird, whale, ant, wallaby, polar bear, falcon, frog, shark, squirrel, horse, butterfly"""
)
THINGS: Final = _list(
    """printing press, steam engine, telescope, bicycle, compass, microscope, telephone, refrigerator, radio, clock,
    light bulb, battery, camera, sewing machine, airplane, elevator, typewriter, transistor, umbrella, piano, zipper,
    parachute, thermometer, lighthouse, windmill, vaccine, satellite, escalator, calculator, paper, glass, concrete"""
)
SCIENCE: Final = _list(
    """photosynthesis, gravity, evaporation, plate tectonics, natural selection, electricity, magnetism, inflation,
    supply and demand, the water cycle, DNA, the immune system, black holes, sound waves, the greenhouse effect,
    fermentation, friction, the speed of light, osmosis, nuclear fusion, probability, prime numbers, the Doppler effect,
    acids and bases, the periodic table, cell division, ocean currents, earthquakes, volcanoes, the ozone layer, antibiotics,
    machine learning, recursion, encryption, opportunity cost, compound interest, game theory, the placebo effect, entropy"""
)
HISTORY: Final = _list(
    """the Roman Empire, the Industrial Revolution, the French Revolution, the Silk Road, the Renaissance, the Cold War,
    the Black Death, the Ottoman Empire, the Great Depression, the Viking Age, ancient Egypt, the moon landing,
    the building of the Panama Canal, the fall of the Berlin Wall, the Meiji Restoration, the Inca Empire, the Magna Carta,
    the First World War, the invention of writing, the Suez Canal, the Age of Exploration, the Enlightenment"""
)
FOODS: Final = _list(
    """bread, lentil soup, pancakes, chocolate cake, vegetable curry, apple pie, pizza, risotto, omelette, sushi, tacos,
    mushroom pasta, yogurt, cheese, roast chicken, potato salad, fried rice, dumplings, hummus, tomato sauce, coffee, tea"""
)
HOBBIES: Final = _list(
    """gardening, chess, photography, hiking, knitting, swimming, painting, playing the guitar, cooking, running, bird watching,
    pottery, dancing, reading, cycling, learning a language, meditation, woodworking, climbing, writing poems, astronomy, baking"""
)
SUBJECTS: Final = _list(
    """remote work, renewable energy, public transport, school uniforms, social media, plastic waste, space travel,
    homework, city parks, electric cars, tourism, free museums, video games, a four-day work week, online learning,
    healthy eating, volunteering, recycling, sleep, friendship, time management, saving money, public speaking, stress,
    small businesses, artificial intelligence, data privacy, water shortage, traditional music, local newspapers,
    team sports, urban farming, noise in cities, night trains, libraries, teaching children to code, fast fashion"""
)
JOBS: Final = _list(
    """nurse, teacher, pilot, carpenter, software engineer, baker, journalist, librarian, firefighter, architect, farmer,
    lawyer, electrician, chef, photographer, biologist, bus driver, accountant, doctor, translator, sailor, detective"""
)
PLACES: Final = _list(
    """an old lighthouse, a mountain village, a night market, a train station, a small bakery, a desert, a rainy harbor,
    a library after closing time, a space station, a forest cabin, a crowded bus, a museum, a frozen lake, an island,
    a castle, a school on the last day of term, a hospital, a farm in spring, a city without electricity, a quiet beach"""
)
OBJECTS: Final = _list(
    """apples, pencils, books, marbles, cookies, stickers, tickets, bottles, eggs, chairs, coins, flowers, boxes, stamps,
    cards, shirts, bags of rice, oranges, balloons, candles, plates, bricks, plants, toy cars, muffins, notebooks"""
)
SHOPS: Final = _list(
    """bakery, bookshop, hardware store, farm stand, toy shop, bicycle shop, stationery store, flower shop, supermarket"""
)
ADJECTIVES: Final = _list(
    """simple, short, detailed, clear, friendly, formal, funny, careful, practical, convincing, honest, cheerful"""
)
READERS: Final = _list(
    """a child, a beginner, a student, my grandmother, a busy manager, a tourist, a high school class, an expert,
    someone who has never heard of it, a new employee, a curious ten year old"""
)
LANGUAGES: Final = _list("""Python, Python, Python, JavaScript, Java, C, C++, Go, Rust, SQL, Bash, TypeScript""")
MONTHS: Final = _list(
    """January, February, March, April, May, June, July, August, September, October, November, December"""
)
