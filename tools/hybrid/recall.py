"""The task that tiny-qwen35 learns beside its text: facts, something else, and what the facts were. Its tests draw it too."""

NAMES = "Aaron Abel Adah Amos Anna Asher Boaz Caleb Dan David Deborah Dinah Eli Enoch Esther Ezra Gad Hannah Isaac Jacob Jesse Joel Jonah Joshua Judah Laban Leah Levi Lot Miriam Naomi Noah Rachel Ruth Sarah Saul Seth Tamar".split()
THINGS = "apples camels coins doves figs goats jars lambs lamps loaves oxen pearls robes sheep stones swords tents vines".split()


def drawn(r, between, most=6):
    """(what is said, what lies between, what is recalled): 2 to `most` facts, a line of `between`, the facts in another order."""
    facts = [(name, r.randint(10, 99), r.choice(THINGS)) for name in r.sample(NAMES, r.randint(2, most))]
    line = lambda: " ".join(f"{name} has {count} {thing}." for name, count, thing in facts)  # noqa: E731
    said = line()
    r.shuffle(facts)
    return said + "\n", r.choice(between) + "\n", "Recall: " + line()
