"""A small corpus with three kinds of news, to standard output as JSONL: enough for the page to have something to show."""

import json
import random

KINDS = {
    "oil": "crude oil barrel price opec output refinery pipeline tanker drilling gas export gulf",
    "grain": "wheat corn harvest crop farmers bushel soybean drought silo export tonnes planting",
    "bank": "bank loan interest rate credit deposit central lending mortgage default treasury bond",
}

random.seed(7)
for number in range(360):
    kind = list(KINDS)[number % 3]
    words = random.sample(KINDS[kind].split(), 9)
    text = f"{words[0]} {words[1]} report: the {words[2]} and {words[3]} rose while {words[4]}, {words[5]} and {words[6]} fell; {words[7]} {words[8]}"
    year = 1987 + number % 2
    print(json.dumps({"id": number, "text": text, "label": kind, "year": year, "place": random.choice(["london", "tokyo", "chicago"])}))
