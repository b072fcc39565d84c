"""The ways in which a reward function may be declared, and what each is called with.

Besides ours, those of TRL and verl, so that a function written for them works as it is. The names of its parameters say
which one it is; anything else is refused, because a value in the wrong place would be graded without a word.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from zerogap.data import PromptItem
from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.reward_checks import shown
from zerogap.rollout.rewards import RewardRequest, RewardResult

Takes = Literal["completion", "group"]
Keywords = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One way to declare a reward function."""

    name: str
    parameters: str
    """As they are declared."""
    takes: Takes
    """Whether a call gets one completion, or all of a group."""
    is_called_by_name: bool
    """Whether arguments are passed by keyword, and only those that the function declares."""

    def __str__(self) -> str:
        return f"{self.name}'s {self.parameters}"


OURS = Convention(
    name="zerogap",
    parameters="(completion, item, sample)",
    takes="completion",
    is_called_by_name=False,
)
OURS_OF_GROUP = Convention(
    name="zerogap",
    parameters="(completions, item, samples)",
    takes="group",
    is_called_by_name=False,
)
TRL = Convention(
    name="TRL", parameters="(completions, **columns)", takes="group", is_called_by_name=True
)
VERL = Convention(
    name="verl",
    parameters="(data_source, solution_str, ground_truth, extra_info=None)",
    takes="completion",
    is_called_by_name=True,
)
CONVENTIONS = (OURS, OURS_OF_GROUP, TRL, VERL)


def convention_of(signature: inspect.Signature) -> Convention:
    """The convention that the names of the parameters show.

    Raises:
        ConfigError: none of them.
    """
    # A name that starts with _ says that the function does not use it.
    names = [name.lstrip("_") for name in _declared(signature)]
    if names[:3] == ["completion", "item", "sample"]:
        return OURS
    if names[:3] == ["completions", "item", "samples"]:
        return OURS_OF_GROUP
    if "solution_str" in names:
        return VERL
    if "completions" in names:
        return TRL
    accepted = "; ".join(map(str, CONVENTIONS))
    msg = f"it is declared as {signature}, which is no known way to declare a reward function; name its parameters as one of: {accepted} (docs/guide/rewards.md)"
    raise ConfigError(msg)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What a function that is called by name gets."""

    signature: inspect.Signature
    params: Mapping[str, Any]
    """The recipe's; they win over what the convention gives."""
    answer_name: str | None
    """The data's own name of the reference answer."""

    def of_trl(self, requests: Sequence[RewardRequest]) -> Keywords:
        """Lists with one value a completion, as TRL's GRPOTrainer passes them: prompts, completions, ids, columns."""
        item, size = requests[0].item, len(requests)
        texts = [request.completion for request in requests]
        given: Keywords = {n: [v] * size for n, v in columns_of(item, self.answer_name).items()}
        given["completions"] = texts if item.messages is None else [_as_reply(t) for t in texts]
        given["completion_ids"] = [_completion_ids(request) for request in requests]
        if item.prompt_ids is None:
            prompt = item.question if item.messages is None else [dict(m) for m in item.messages]
            given["prompts"] = [prompt] * size
        return self._accepted(given)

    def of_verl(self, request: RewardRequest) -> Keywords:
        """A row's fields of the same names, as verl's reward managers pass them."""
        item = request.item
        given = {
            "data_source": item.metadata.get("data_source", ""),
            "solution_str": request.completion,
            "ground_truth": _ground_truth(item),
            "extra_info": item.metadata.get("extra_info", dict(item.metadata)),
        }
        return self._accepted(given)

    def _accepted(self, given: Keywords) -> Keywords:
        given = {**given, **self.params}
        if _takes_any_name(self.signature):
            return given
        declared = _declared(self.signature)
        return {name: value for name, value in given.items() if name in declared}


def columns_of(item: PromptItem, answer_name: str | None) -> Keywords:
    """The fields of a row by name. The reference answer is there as ``answer`` and under its own name, also the last part of a dotted one."""
    columns = dict(item.metadata)
    if item.answer is not None:
        columns.setdefault("answer", item.answer)
        if answer_name is not None:
            columns[answer_name] = item.answer
            columns.setdefault(answer_name.rpartition(".")[2], item.answer)
    return columns


def names_given(convention: Convention, columns: Sequence[str]) -> set[str]:
    """What a function of TRL's or verl's convention can ask for by name."""
    if convention is TRL:
        return {*columns, "prompts", "completions", "completion_ids"}
    return {"data_source", "solution_str", "ground_truth", "extra_info"}


def names_missing(signature: inspect.Signature, given: set[str]) -> list[str]:
    """Parameters without a default that nothing is given for."""
    return [
        name
        for name, parameter in signature.parameters.items()
        if name not in given
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def result_of_verl(returned: object) -> object:
    """A float, or a dictionary whose ``score`` is the reward and whose other numbers are its parts."""
    if not isinstance(returned, Mapping):
        return returned
    if "score" not in returned:
        msg = f"the reward function returned {shown(returned)}, a dictionary without 'score'; verl takes the reward from there"
        raise RewardFailed(msg)
    return RewardResult(returned["score"], dict(_numbers(returned)))


def rewards_of_trl(returned: object) -> object:
    """A list of rewards. TRL leaves a None out of a sum of rewards; here it is a failure that says so."""
    if not isinstance(returned, list):
        return returned
    msg = "the reward function returned None, which for TRL means that it does not apply; a completion without a reward cannot train here, so return a number"
    return [RewardFailed(msg) if reward is None else reward for reward in returned]


def _numbers(returned: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in returned.items():
        if name != "score" and not isinstance(value, str) and hasattr(value, "__float__"):
            yield name, value


def _as_reply(text: str) -> list[dict[str, str]]:
    """A completion of a conversation, as TRL has it."""
    return [{"role": "assistant", "content": text}]


def _completion_ids(request: RewardRequest) -> list[int]:
    sample = request.sample
    return sample.token_ids[sample.num_prompt_tokens :].tolist()


def _ground_truth(item: PromptItem) -> object:
    if item.answer is not None:
        return item.answer
    nested = item.metadata.get("reward_model")
    if isinstance(nested, Mapping) and "ground_truth" in nested:
        return nested["ground_truth"]
    if "ground_truth" in item.metadata:
        return item.metadata["ground_truth"]
    msg = f"prompt {item.item_id} has no reference answer to pass as ground_truth; set data.answer_field"
    raise RewardFailed(msg)


def _declared(signature: inspect.Signature) -> list[str]:
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, p in signature.parameters.items() if p.kind not in stars]


def _takes_any_name(signature: inspect.Signature) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
