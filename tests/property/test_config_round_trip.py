"""config -> TOML -> config and config -> JSON -> config, over every section and kind."""

import tomli_w
from helpers.recipes import run_tree
from hypothesis import given
from hypothesis import strategies as st

from zerogap.config import RunConfig
from zerogap.config.load import config_from_toml, config_to_toml
from zerogap.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
SCALAR = st.booleans() | st.integers(-(2**53), 2**53) | FLOAT | TEXT
PARAMS = st.dictionaries(TEXT.filter(bool), SCALAR | st.lists(SCALAR, max_size=3), max_size=4)


def table(**fields):
    return st.fixed_dictionaries({}, optional=fields)


SAMPLING = table(
    temperature=st.floats(0.1, 2),
    max_new_tokens=st.integers(1, 500),
    stop=st.lists(TEXT.filter(bool), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 99), max_size=3),
)
TREE = st.builds(
    run_tree,
    numerics=st.sampled_from(["exact", "fast"]),
    data=st.one_of(
        st.builds(lambda params: {"kind": "builtin", "name": "n", "params": params}, PARAMS),
        st.builds(
            lambda params: {"kind": "reasoning_gym", "dataset": "d", "params": params}, PARAMS
        ),
        st.builds(lambda path: {"kind": "jsonl", "path": path, "answer_field": "a"}, TEXT),
    ),
    reward=st.one_of(
        st.just({"kind": "exact"}),
        st.builds(lambda params: {"kind": "import", "function": "m.n:f", "params": params}, PARAMS),
        st.dictionaries(
            st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
            table(weight=st.floats(0.1, 9), normalize=st.sampled_from(["none", "group"])).map(
                lambda keys: {"kind": "exact", **keys}
            ),
            min_size=1,
            max_size=3,
        ).map(lambda parts: {"kind": "weighted_sum", "parts": parts}),
    ),
    rollout=table(
        prompts_per_step=st.integers(1, 9), group_size=st.integers(2, 9), sampling=SAMPLING
    ),
    train=table(
        learning_rate=st.floats(0, 1),
        betas=st.lists(st.floats(0, 0.99), min_size=2, max_size=2),
        schedule=st.sampled_from(["constant", "linear", "cosine"]),
    ),
    prompt=table(system=TEXT, chat_arguments=PARAMS),
    evaluate=table(samples=st.integers(0, 3), sampling=SAMPLING),
)


@given(TREE)
def test_every_config_survives_toml_and_json(tree):
    config = RunConfig.model_validate(tree)
    assert config_from_toml(config_to_toml(config)) == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@given(st.recursive(SCALAR, lambda inner: st.dictionaries(TEXT, inner, max_size=3), max_leaves=6))
def test_whatever_a_section_is_given_it_is_accepted_or_refused_in_words(value):
    for section in ("run", "data", "reward", "rollout", "loss", "prompt", "other"):
        assert section in _refusal(tomli_w.dumps(run_tree() | {section: value}), section)


def _refusal(text, accepted):
    try:
        config_from_toml(text)
    except ConfigError as error:
        return str(error)
    return accepted
