"""How many examples a property test takes, in each of the profiles of tests/conftest.py."""

from hypothesis import settings


def examples(quick: int) -> int:
    """``quick`` in the profile of that name, and in the others as many more or fewer as they say."""
    return max(1, quick * settings().max_examples // settings.get_profile("quick").max_examples)
