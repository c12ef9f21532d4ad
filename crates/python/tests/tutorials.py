"""What the readers of the tutorials bring: mail, a scrape, tickets, and vectors with their documents."""

import csv
import json
from email.message import EmailMessage
from pathlib import Path

import numpy as np
from bench import news

SENDERS = ["Anna Berg <anna@example.com>", "bo@example.org"]
VECTOR_WIDTH = 64


def write(folder: Path) -> None:
    mail(folder)
    scrape(folder)
    tickets(folder)
    vectors(folder)


def message(row: dict) -> EmailMessage:
    """A document of the news as a mail of the year 2026."""
    mail = EmailMessage()
    mail["From"] = SENDERS[row["id"] % 2]
    mail["Subject"] = " ".join(row["text"].split()[:3])
    mail["Date"] = f"{1 + row['id'] % 28:02} {['Jan', 'Feb', 'Mar'][row['id'] % 3]} 2026 12:00:00 +0000"
    mail["Message-ID"] = f"<{row['id']}@example.com>"
    mail.set_content(row["text"])
    return mail


def mail(folder: Path) -> None:
    def mbox(rows: list[dict]) -> bytes:
        return b"".join(b"From someone Thu Jan  1 00:00:00 2026\n" + bytes(message(row)) + b"\n" for row in rows)

    (folder / "inbox.mbox").write_bytes(mbox(news(0, 120)))
    (folder / "inbox-later.mbox").write_bytes(mbox(news(10, 140)))
    late = next(row for row in news(140, 200) if row["label"] == "crop")
    (folder / "harvest.eml").write_bytes(bytes(message(late)))


def scrape(folder: Path) -> None:
    """A quarter of the pages repeat another: half of them letter by letter, half with other first words."""
    def page(address: str, text: str) -> str:
        return json.dumps({"url": f"https://example.com/{address}", "text": text, "fetched": "2026-03-01"}) + "\n"

    def text(row: dict, other: dict) -> str:
        return row["text"] + " " + other["text"]

    rows = news(0, 200)
    pages = [page(str(row["id"]), text(row, rows[(row["id"] + 4) % len(rows)])) for row in rows]
    for row in rows[:50]:
        said = text(row, rows[(row["id"] + 4) % len(rows)])
        pages.append(page(f"copy/{row['id']}", said if row["id"] % 2 else "said new " + said))
    (folder / "crawl.jsonl").write_text("".join(pages))
    new = [page(f"later/{row['id']}", text(row, row)) for row in news(300, 320)]
    again = [page(f"again/{row['id']}", text(row, rows[(row["id"] + 4) % len(rows)])) for row in rows[60:80]]
    (folder / "crawl-later.jsonl").write_text("".join(new + again))


def tickets(folder: Path) -> None:
    def table(name: str, rows: list[dict]) -> None:
        with open(folder / name, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["ticket", "subject", "body", "opened", "product"])
            for row in rows:
                words = row["text"].split()
                opened = f"2026-{1 + row['id'] % 3:02}-{1 + row['id'] % 28:02}"
                writer.writerow([f"T{row['id']}", " ".join(words[:4]), " ".join(words[4:]), opened, ["web", "app"][row["id"] % 2]])

    table("tickets.csv", news(0, 300))
    table("tickets-later.csv", news(300, 340))


def vectors(folder: Path) -> None:
    """Vectors of documents of a kind lie around one point, as those of an encoder do."""
    rows = news(0, 1200)
    draw = np.random.default_rng(3)
    centres = {label: draw.standard_normal(VECTOR_WIDTH) for label in sorted({row["label"] for row in rows})}
    made = np.array([centres[row["label"]] + 0.7 * draw.standard_normal(VECTOR_WIDTH) for row in rows], "float32")
    np.save(folder / "vectors.npy", made)
    np.save(folder / "query.npy", made[:1] + np.float32(0.05))
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
