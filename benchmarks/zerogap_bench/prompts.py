"""Word problems of about equal length, the same for every side and on every machine."""

from random import Random

_NAMES = ("Mia", "Omar", "Lena", "Ravi", "Nora", "Ivan", "Aiko", "Sam", "Zoe", "Hugo")
_GOODS = ("apples", "pencils", "marbles", "stickers", "cookies", "buttons", "shells", "stamps")
_PLACES = ("market", "school", "library", "garden", "station", "harbour")
_STORY = (
    "{a} has {n} {goods} in a box and takes {m} of them to the {place}. There, {b} gives {a} {k} bags with {j} "
    "{goods} in each bag, and {a} loses {i} of them on the way home. How many {goods} does {a} have at the end? "
    "Explain each step in a short sentence."
)


def word_problems(count: int, *, seed: int = 0) -> list[str]:
    """``count`` different texts of about 70 tokens, the same for the same seed."""
    random = Random(seed)
    problems: dict[str, None] = {}
    while len(problems) < count:
        a, b = random.sample(_NAMES, 2)
        kept, taken = random.randint(40, 99), random.randint(11, 39)
        problems[
            _STORY.format(
                a=a,
                b=b,
                n=kept + taken,
                m=taken,
                k=random.randint(2, 9),
                j=random.randint(10, 30),
                i=random.randint(2, 9),
                goods=random.choice(_GOODS),
                place=random.choice(_PLACES),
            )
        ] = None
    return list(problems)
