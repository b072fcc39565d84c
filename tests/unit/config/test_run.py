"""A config refuses impossible combinations when it is created."""

import pytest
from helpers.recipes import run_config, run_tree
from pydantic import BaseModel, ValidationError

from zerogap.config import EvaluateConfig, RunConfig, SamplingConfig
from zerogap.config.problems import sections_of

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 32,
    "max_positions": 128,
}
MINE = {"kind": "import", "function": "mine:reward"}
JSONL = {"kind": "jsonl", "path": "train.jsonl", "answer_field": "answer"}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"rollout": {"group_size": 1}}, "group_size = 1.*takes at least two.*2 or more"),
        ({"rollout": {"sampling": {"temperature": 0.0}}}, "temperature = 0.0.*no signal"),
        ({"rollout": {"sampling": {"min_p": 1.5}}}, r"min_p = 1.5.*\[0, 1\)"),
        ({"rollout": {"sampling": {"max_new_tokens": 0}}}, "max_new_tokens = 0.*1 or more"),
        (
            {"engine": {"max_running": 128, "max_scheduled_tokens": 64}},
            "max_scheduled_tokens = 64.*max_running = 128",
        ),
        ({"train": {"updates_per_step": 3}}, "updates_per_step = 3.*16 groups.*divisor"),
        ({"train": {"warmup_steps": 20}}, "warmup_steps = 20.*run.steps = 20"),
        ({"train": {"betas": [0.9, 1.0]}}, "less than 1"),
        ({"evaluate": {"every": 5}}, "evaluate.every = 5.*no evaluation prompts.*data.eval_size"),
        ({"evaluate": {"greedy": False}}, "greedy = false, samples = 0"),
        (
            {"loss": {"kind": "clip", "denominator": "constant"}},
            "constant_denominator = None.*set both",
        ),
        ({"loss": {"kind": "clip", "constant_denominator": 5}}, "denominator = 'token'.*set both"),
        ({"kl": {"kind": "k3"}}, "kind = 'k3', coefficient = 0.0.*set both, or neither"),
        ({"kl": {"coefficient": 0.1}}, "kind = 'none', coefficient = 0.1.*set both, or neither"),
        (
            {"kl": {"kind": "k1", "coefficient": 0.1}},
            'kind = "k1", place = "loss": the gradient of k1 has expectation 0.*set kind = "k3"',
        ),
        ({"corrections": {"mask": {}}}, r"corrections\.mask\.high\n *Field required"),
        ({"corrections": {"mask": {"low": 0.5}}}, r"corrections\.mask\.high\n *Field required"),
        (
            {"corrections": {"mask": {"high": 1.0}}},
            "high = 1.0: .*everything would be dropped; set",
        ),
        (
            {"corrections": {"mask": {"kind": "k3", "low": 0.1, "high": 0.2}}},
            "kind = 'k3', low = 0.1: .*what agrees best would be dropped; remove low",
        ),
        ({"advantage": {"kind": "none"}}, 'advantage.kind = "none": .*no gradient; choose another'),
        (
            {
                "advantage": {"kind": "none"},
                "teacher": {"path": "t"},
                "corrections": {"off_policy_kl": 0.1},
            },
            "corrections.off_policy_kl = 0.1: it drops samples of negative advantage.*remove the key",
        ),
        (
            {"loss": {"kind": "sft"}, "advantage": {"kind": "critic"}},
            "advantage: loss.kind = 'sft' .*no rewards to compare; remove the table",
        ),
        (
            {"loss": {"kind": "sft"}, "kl": {"kind": "k3", "coefficient": 0.1}},
            "kl: loss.kind = 'sft' .*tokens that the policy drew; remove the table",
        ),
        (
            {"loss": {"kind": "sft"}, "teacher": {"path": "t"}},
            "teacher: loss.kind = 'sft' .*the policy's own completions; remove the table",
        ),
        (
            {"loss": {"kind": "dpo"}, "entropy": {"coefficient": 0.1}},
            "entropy.coefficient = 0.1: loss.kind = 'dpo' divides by its pairs.*remove the table",
        ),
        (
            {
                "advantage": {"kind": "maxrl"},
                "sampling_policy": {"overlong": {"buffer_tokens": 8}},
            },
            "sampling_policy.overlong: its penalty makes rewards negative.*choose another advantage",
        ),
        ({"loss": {"kind": "clip", "dual_clip": 1.0}}, "greater than 1"),
        ({"engine": {"dtype": "bf16"}}, "engine.dtype = 'bf16'.*numerics = \"fast\""),
        ({"engine": {"backend": "transformers"}}, 'engine.backend.*numerics = "fast"'),
        ({"loss": {"kind": "sft"}, "corrections": {"veto": 1e-4}}, "nothing to correct"),
        (
            {"train": {"old_log_probs": "rollout"}, "corrections": {"weight": {}}},
            'old_log_probs = "rollout": .*corrections.weight would count the gap twice; remove one',
        ),
        (
            {"loss": {"kind": "dppo"}, "corrections": {"weight": {}}},
            "corrections.weight: loss.kind = 'dppo' .*would count the gap twice; remove the table",
        ),
        (
            {"loss": {"kind": "drpo"}, "corrections": {"weight": {}}},
            "corrections.weight: loss.kind = 'drpo' .*would count the gap twice; remove the table",
        ),
        (
            {"acceptance": {}, "rollout": {"lag": 1}},
            "acceptance: with rollout.lag = 1 samples come from weights before the last update.*set rollout.lag = 0",
        ),
        (
            {"acceptance": {}, "train": {"old_log_probs": "rollout"}},
            "acceptance: it compares the trainer's log-probs .*remove one of the two",
        ),
        ({"acceptance": {}, "loss": {"kind": "sft"}}, "acceptance: .*no gap to judge an update by"),
        (
            {
                "teacher": {"hint": {"kind": "success"}},
                "rollout": {"group_size": 1},
                "advantage": {"kind": "return"},
            },
            'teacher.hint.kind = "success": .*rollout.group_size = 1; set 2 or more',
        ),
        (
            {
                "teacher": {"hint": {"kind": "answer"}},
                "data": {"kind": "jsonl", "path": "a"},
                "reward": MINE,
            },
            'teacher.hint.kind = "answer": data.answer_field is none; name the field',
        ),
        ({"loss": {"kind": "dppo", "ratio": "geometric"}}, "ratio"),
        ({"loss": {"kind": "dpo"}, "rollout": {"lag": 1}}, "rollout.lag = 1"),
        ({"loss": {"kind": "sft"}, "mismatch": {"budget": 0.1}}, "mismatch.budget = 0.1: .*no gap"),
        (
            {"loss": {"kind": "sft"}, "data": {"kind": "jsonl", "path": "a"}, "reward": MINE},
            "kind = 'sft': .*data.answer_field is none; name the field",
        ),
        (
            {"loss": {"kind": "dpo"}, "data": JSONL},
            "kind = 'dpo': .*data.rejected_field is none; name the field",
        ),
        (
            {"loss": {"kind": "dpo"}, "data": {"kind": "reasoning_gym", "dataset": "products"}},
            "kind = 'dpo': .*reasoning_gym.* has none; use a file with both",
        ),
        (
            {"sampling_policy": {"overlong": {"buffer_tokens": 256}}},
            "sampling_policy.overlong.buffer_tokens = 256: it must be below .*max_new_tokens = 256",
        ),
        (
            {
                "sampling_policy": {"overlong": {"buffer_tokens": 5}},
                "advantage": {"kind": "none"},
                "teacher": {"path": "t"},
            },
            "sampling_policy.overlong: it changes rewards, .*'none' does not train on rewards",
        ),
        (
            {"sampling_policy": {"truncated": "mask"}, "loss": {"kind": "sft"}, "data": JSONL},
            "sampling_policy: loss.kind = 'sft' .*no completion is drawn for training; remove",
        ),
        (
            {
                "sampling_policy": {"dynamic_sampling": {"max_rounds": 2}},
                "advantage": {"kind": "critic"},
                "rollout": {"group_size": 1},
            },
            "dynamic_sampling: with rollout.group_size = 1 .*none ever has a signal; set",
        ),
        (
            {
                "sampling_policy": {"truncated": "mask"},
                "kl": {"kind": "k1", "coefficient": 0.1, "place": "reward"},
            },
            'truncated = "mask", kl.place = "reward": a masked completion is not scored',
        ),
        (
            {"sampling_policy": {"dynamic_sampling": {"signal": "accuracy"}}},
            "signal = 'accuracy', max_rounds = 1, .*no signal decides anything; set max_rounds = 2",
        ),
        (
            {"sampling_policy": {"dynamic_sampling": {"max_rounds": 2, "correct_threshold": 0.9}}},
            "correct_threshold = 0.9: signal = 'reward' .*set signal = \"accuracy\"",
        ),
        (
            {"sampling_policy": {"dynamic_sampling": {"over_sampling": 0.5}}},
            "greater than or equal to 1",
        ),
        ({"corrections": {"weight": {"kind": "clip"}}}, "kind = 'clip', low = 0.0"),
        ({"mismatch": {"remedies": ["numerics", "numerics"]}}, "listed twice"),
        ({"model": {}}, "neither is given"),
        ({"model": {"path": "p", "init": TINY, "tokenizer": "byte"}}, "both are given"),
        ({"model": {"init": TINY}}, "tokenizer is missing"),
        ({"model": {"init": TINY | {"num_kv_heads": 3}, "tokenizer": "byte"}}, "num_kv_heads = 3"),
        ({"model": {"init": TINY | {"head_dim": 33}, "tokenizer": "byte"}}, "head_dim = 33.*even"),
        (
            {"model": {"init": TINY, "tokenizer": "byte"}},
            "max_new_tokens = 256.*max_positions = 128",
        ),
        ({"engine": {"kv_cache_tokens": 256}}, "max_new_tokens = 256.*kv_cache_tokens = 256"),
        ({"prompt": {"template": "Q"}}, "template = 'Q'.*exactly once; write {question}"),
        ({"prompt": {"chat": False, "system": "s"}}, "system = 's'.*chat = true"),
        ({"reward": {"kind": "regex", "pattern": "("}}, "not a regular expression"),
        (
            {"reward": {"kind": "regex", "pattern": "a"}},
            "has no group, and the first group is the answer",
        ),
        ({"reward": {"kind": "import", "function": "no colon"}}, "not module:function; for the"),
        ({"data": JSONL, "reward": {"kind": "task"}}, "has no score of its own"),
        ({"data": {"kind": "jsonl", "path": "p"}}, "answer_field is none"),
        ({"data": JSONL | {"eval_path": "e", "eval_size": 3}}, "eval_size = 3, eval_path = 'e'"),
        ({"run": {"dir": "d", "steps": "20"}}, "valid integer"),
        ({"run": {"dir": "d", "steps": 20, "typo": 1}}, "Extra inputs"),
        ({"train": {"learning_rate": float("nan")}}, "finite number"),
    ],
)
def test_an_impossible_combination_is_refused_with_its_cure(sections, message):
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        run_config(**sections)


@pytest.mark.parametrize(
    "sections",
    [
        # Every round of a step is drawn by the version that is served in it.
        {"rollout": {"lag": 2}},
        {"loss": {"kind": "clip", "ratio": "geometric"}},
        {"advantage": {"kind": "critic"}, "rollout": {"group_size": 2}},
        {"advantage": {"kind": "none"}, "teacher": {"path": "t"}},
        {"kl": {"kind": "k3", "coefficient": 0.1}},
        {
            "advantage": {"kind": "return", "std": "batch"},
            "kl": {"kind": "k1", "coefficient": 0.1, "place": "reward"},
        },
    ],
)
def test_a_sampling_policy_goes_with_every_loss_that_samples(sections):
    policy = {"dynamic_sampling": {"max_rounds": 3, "over_sampling": 1.5}, "truncated": "mask"}
    assert run_config(**sections, sampling_policy=policy).sampling_policy.dynamic_sampling.is_on


def test_a_section_lists_all_its_problems():
    with pytest.raises(ValidationError) as error:
        run_config(rollout={"group_size": 1}, evaluate={"every": 3}, train={"warmup_steps": 30})
    for key in ("rollout.group_size", "evaluate.every", "train.warmup_steps"):
        assert f"{key} = " in str(error.value)


def test_a_config_is_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        run_config().run.steps = 3


def test_evaluation_samples_as_rollouts_do_unless_told_otherwise():
    rollout = {"sampling": {"max_new_tokens": 7}}
    assert run_config(rollout=rollout).evaluate_sampling.max_new_tokens == 7
    evaluate = {"sampling": {"max_new_tokens": 9, "top_p": 0.9}}
    assert run_config(rollout=rollout, evaluate=evaluate).evaluate_sampling.top_p == 0.9


def test_sampling_turns_into_request_parameters():
    sampling = SamplingConfig(temperature=0.6, stop=("x",), stop_token_ids=(3,), max_new_tokens=5)
    params = sampling.params(n=4, seed=1)
    assert (params.n, params.sampling_seed, params.stop, params.stop_token_ids) == (
        4,
        1,
        ("x",),
        (3,),
    )
    assert sampling.greedy().params().is_greedy
    assert sampling.greedy().stop == ("x",)


def test_a_template_is_no_format_string():
    prompt = run_config(prompt={"template": "{x} {question} {"}).prompt
    assert prompt.render("1 {y}") == "{x} 1 {y} {"


def _fields(section):
    for name, field in section.model_fields.items():
        yield section, name, field
        for inner in sections_of(field.annotation):
            yield from _fields(inner)


def test_every_field_is_documented():
    missing = [
        f"{s.__name__}.{name}" for s, name, field in _fields(RunConfig) if not field.description
    ]
    assert missing == []


def test_toml_can_say_every_value():
    # TOML has no none, so a nullable field whose default is not none could never be set to none.
    stuck = [
        f"{section.__name__}.{name}"
        for section, name, field in _fields(RunConfig)
        if type(None) in getattr(field.annotation, "__args__", ())
        and not field.is_required()
        and field.default is not None
    ]
    assert stuck == []


def test_the_minimal_recipe_has_defaults_everywhere_else():
    config = run_config()
    assert isinstance(config, BaseModel)
    assert config.evaluate == EvaluateConfig()
    assert config == RunConfig.model_validate(run_tree())
