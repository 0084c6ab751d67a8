"""Translation: sentences of other languages, made of parts that fit together, and requests to translate."""

from __future__ import annotations

from random import Random
from typing import Final

from specdec_train.collect.starters import facts, questions

Parts = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]

GERMAN: Final[Parts] = (
    (
        "Die Regierung", "Der Bürgermeister von Hamburg", "Eine junge Ärztin", "Mein Bruder", "Die Polizei",
        "Der Trainer der Mannschaft", "Das Unternehmen", "Die Lehrerin", "Ein Sprecher des Ministeriums",
        "Die neue Direktorin", "Der alte Mann", "Die Universität", "Ein Forscher aus Leipzig", "Die Gewerkschaft",
    ),
    (
        "hat am Dienstag einen neuen Plan vorgestellt", "will bis zum Ende des Jahres mehr Geld ausgeben",
        "sucht seit drei Wochen eine Wohnung", "hat die Entscheidung nicht erklärt", "hofft auf besseres Wetter",
        "musste das Spiel wegen des Regens absagen", "hat zwei Bücher über die Stadt geschrieben",
        "warnt vor den Folgen der Krise", "fährt jeden Morgen mit dem Zug zur Arbeit", "spricht mit den Eltern der Kinder",
        "rechnet mit steigenden Preisen", "hat den Vertrag gestern unterschrieben", "bleibt trotz der Kritik im Amt",
    ),
    (
        "weil viele Menschen darauf warten", "obwohl die Kosten sehr hoch sind", "wie eine Zeitung berichtet",
        "und niemand weiß, warum", "bevor die Ferien beginnen", "damit die Schulen geöffnet bleiben können",
        "sagte eine Nachbarin", "aber das reicht nicht aus", "denn die Zahl der Touristen nimmt zu", "",
    ),
)  # fmt: skip
FRENCH: Final[Parts] = (
    (
        "Le gouvernement", "La maire de Lyon", "Un jeune médecin", "Ma sœur", "La police", "Le directeur de l'école",
        "Une entreprise de Marseille", "Le ministre", "Un habitant du quartier", "L'équipe nationale",
        "La nouvelle professeure", "Le vieux pêcheur", "Un groupe de chercheurs", "Le syndicat",
    ),
    (
        "a présenté un nouveau projet mardi", "veut dépenser plus d'argent cette année", "cherche un appartement depuis un mois",
        "n'a pas expliqué sa décision", "espère que le temps sera meilleur", "a dû annuler le match à cause de la pluie",
        "a écrit deux livres sur la ville", "craint les conséquences de la crise", "prend le train tous les matins",
        "parle avec les parents des enfants", "attend une hausse des prix", "a signé le contrat hier soir",
    ),
    (
        "parce que beaucoup de gens l'attendent", "bien que les coûts soient très élevés", "selon un journal local",
        "et personne ne sait pourquoi", "avant le début des vacances", "pour que les écoles restent ouvertes",
        "mais cela ne suffit pas", "car le nombre de touristes augmente", "a déclaré une voisine", "",
    ),
)  # fmt: skip
SPANISH: Final[Parts] = (
    (
        "El gobierno", "La alcaldesa de Sevilla", "Un joven médico", "Mi hermana", "La policía", "El director del museo",
        "Una empresa de Bilbao", "El ministro", "Un vecino del barrio", "La selección nacional", "La nueva profesora",
        "El viejo pescador", "Un grupo de científicos", "El sindicato",
    ),
    (
        "presentó un nuevo plan el martes", "quiere gastar más dinero este año", "busca un piso desde hace un mes",
        "no ha explicado su decisión", "espera que mejore el tiempo", "tuvo que cancelar el partido por la lluvia",
        "ha escrito dos libros sobre la ciudad", "teme las consecuencias de la crisis", "toma el tren todas las mañanas",
        "habla con los padres de los niños", "prevé una subida de los precios", "firmó el contrato anoche",
    ),
    (
        "porque mucha gente lo está esperando", "aunque los costes son muy altos", "según un periódico local",
        "y nadie sabe por qué", "antes de que empiecen las vacaciones", "para que las escuelas sigan abiertas",
        "pero eso no es suficiente", "ya que aumenta el número de turistas", "dijo una vecina", "",
    ),
)  # fmt: skip
RUSSIAN: Final[Parts] = (
    (
        "Правительство", "Мэр города", "Молодой врач", "Мой брат", "Директор школы", "Крупная компания", "Министр",
        "Один из жителей", "Национальная сборная", "Новая учительница", "Старый рыбак", "Группа учёных",
    ),
    (
        "готовит новый план", "хочет потратить больше денег в этом году", "уже месяц ищет квартиру",
        "не объясняет своё решение", "надеется на хорошую погоду", "пишет книгу о городе", "боится последствий кризиса",
        "каждое утро едет на поезде", "говорит с родителями детей", "ждёт повышения цен",
    ),
    (
        "потому что многие этого ждут", "хотя расходы очень велики", "как сообщает газета", "и никто не знает почему",
        "до начала каникул", "но этого недостаточно", "",
    ),
)  # fmt: skip
CHINESE: Final[Parts] = (
    (
        "政府", "市长", "一位年轻的医生", "我的弟弟", "警察", "学校的校长", "一家大公司", "一位居民", "国家队", "新来的老师",
        "老渔夫", "一组科学家",
    ),
    (
        "星期二公布了一个新计划", "今年想花更多的钱", "已经找了一个月的房子", "没有解释这个决定", "希望天气会变好",
        "因为下雨取消了比赛", "写了两本关于这座城市的书", "每天早上坐火车去上班", "正在和孩子们的父母谈话", "昨天签了合同",
    ),
    (
        "因为很多人在等", "虽然费用很高", "但是这还不够", "没有人知道为什么", "据报纸报道", "",
    ),
)  # fmt: skip
FOREIGN: Final = {
    "German": GERMAN,
    "French": FRENCH,
    "Spanish": SPANISH,
    "Chinese": CHINESE,
    "Russian": RUSSIAN,
}
WEIGHTS: Final = (5, 3, 3, 2, 2)  # how often each is asked for
TO_ENGLISH: Final = (
    "Translate {language} to English: {text}",
    "Translate this from {language} to English: {text}",
    "Translate the following {language} text into English:\n\n{text}",
    "What does this {language} sentence mean in English? {text}",
    "Please translate into English.\n\n{language}: {text}\nEnglish:",
    "{text}\n\nTranslate the text above from {language} into English.",
    "English translation of this {language} text, please: {text}",
)
FROM_ENGLISH: Final = (
    "Translate English to {language}: {text}",
    "Translate the following text into {language}:\n\n{text}",
    "How do you say this in {language}? {text}",
    "Translate this sentence from English to {language}: {text}",
)


def sentence(rng: Random, language: str) -> str:
    """Return a sentence of a language."""
    subjects, predicates, ends = FOREIGN[language]
    comma, stop = ("，", "。") if language == "Chinese" else (", ", ".")
    space = "" if language == "Chinese" else " "
    end = rng.choice(ends)
    return f"{rng.choice(subjects)}{space}{rng.choice(predicates)}{comma + end if end else ''}{stop}"


def request(rng: Random) -> str:
    """Return a request to translate one to four sentences, into English most of the time."""
    language = rng.choices(tuple(FOREIGN), WEIGHTS)[0]
    count = rng.choice((1, 1, 1, 2, 2, 3, 4))
    if rng.random() < 0.75:
        text = ("" if language == "Chinese" else " ").join(sentence(rng, language) for _ in range(count))
        return rng.choice(TO_ENGLISH).format(language=language, text=text)
    if rng.random() < 0.7:
        made, _ = facts.passage(rng)
        parts = made.split(". ")
        start = rng.randrange(max(1, len(parts) - count))
        text = ". ".join(parts[start : start + count]).rstrip(".") + "."
    else:
        text = questions.fact(rng)
    return rng.choice(FROM_ENGLISH).format(language=language, text=text)
