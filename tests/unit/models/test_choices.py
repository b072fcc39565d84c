"""Choices of a forward pass: the first pass makes them, every later one repeats them."""

from dataclasses import replace

import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_models import randomize, tiny_config, tiny_model
from helpers.tolerance import EXACT
from helpers.toy_family import TOY, ToyConfig

from zerogap import kernels
from zerogap.errors import ModelError
from zerogap.kernels import Arena, capture
from zerogap.kernels.native import native
from zerogap.models import FAMILIES, CausalLM, ChoiceColumn, Choices
from zerogap.models.blocks import SelfAttention
from zerogap.models.part import Part, WeightSpec

SEQUENCES = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [27, 18, 28])
NUM_ROWS = sum(map(len, SEQUENCES))


def toy_model(seed: int = 0) -> CausalLM:
    model = CausalLM(ToyConfig(**vars(tiny_config("toy"))))
    randomize(model, seed)
    return model


def gradients(model: CausalLM, **options) -> dict[str, torch.Tensor]:
    model.zero_grad()
    PackedRows(SEQUENCES).logits(model, **options).logsumexp(-1).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


@torch.no_grad()
def test_a_pass_that_is_given_choices_goes_the_way_of_the_pass_that_made_them(toy_family):
    model, rows = toy_model(), PackedRows(SEQUENCES)
    made = model.new_choices(NUM_ROWS)
    first = rows.logits(model, choices=made)
    assert list(made) == ["expert"]
    assert made["expert"].shape == (NUM_ROWS, 2)
    assert set(made["expert"].unique().tolist()) == {0, 1, 2}
    EXACT.check(rows.logits(model), first)
    # Another router would go elsewhere; the experts' weights are still its logits.
    model.layers[0].router.weight.copy_(model.layers[0].router.weight.flip(0))
    given = Choices({"expert": made["expert"].clone()}, are_made=True)
    own = model.new_choices(NUM_ROWS)
    replayed, free = rows.logits(model, choices=given), rows.logits(model, choices=own)
    EXACT.check(given["expert"], made["expert"])
    assert not torch.equal(own["expert"], made["expert"])
    EXACT.check(rows.logits(model, choices=given), replayed)
    with planted_fault("own routes"):
        EXACT.check(free, replayed)


@torch.no_grad()
def test_choices_of_sequences_alone_are_those_of_the_packed_pass(toy_family):
    model, made = toy_model(), []
    for sequences in [SEQUENCES, *([ids] for ids in SEQUENCES)]:
        made.append(model.new_choices(sum(map(len, sequences))))
        PackedRows(sequences).logits(model, choices=made[-1])
    EXACT.check(torch.cat([made[1]["expert"], made[2]["expert"]]), made[0]["expert"])


def test_a_layer_that_is_computed_again_chooses_nothing_anew(toy_family, monkeypatch):
    model, made = toy_model(), []
    settle = Choices.settle

    def counting(self, name, layer, decide):
        return settle(self, name, layer, lambda out: (made.append(layer), decide(out)))

    kept = gradients(model)
    monkeypatch.setattr(Choices, "settle", counting)
    EXACT.check(gradients(model, recompute=True), kept)
    assert made == [0, 1]

    def forgetful(self, name, layer, decide):
        self._made.clear()
        return counting(self, name, layer, decide)

    monkeypatch.setattr(Choices, "settle", forgetful)
    gradients(model, recompute=True)
    assert made == [0, 1, 0, 1, 1, 0]


def test_replayed_choices_have_the_gradient_of_the_pass_that_made_them(toy_family):
    model = toy_model()
    made = model.new_choices(NUM_ROWS)
    expected = gradients(model, choices=made)
    again = Choices({"expert": made["expert"].clone()}, are_made=True)
    EXACT.check(gradients(model, choices=again, recompute=True), expected)
    with planted_fault("another expert"):
        other = Choices({"expert": (made["expert"] + 1) % 3}, are_made=True)
        EXACT.check(gradients(model, choices=other), expected)


def test_choices_of_other_rows_or_another_model_are_refused(toy_family):
    model, rows = toy_model(), PackedRows(SEQUENCES)
    with pytest.raises(ModelError, match=r"expert \[22, 2\].*expert \[23, 2\]"):
        rows.logits(model, choices=model.new_choices(NUM_ROWS - 1))
    with pytest.raises(ModelError, match="the model makes none"):
        rows.logits(tiny_model(), choices=model.new_choices(NUM_ROWS))


def test_a_dense_model_has_no_choices():
    model = tiny_model()
    assert model.choice_columns == {}
    assert list(model.new_choices(5)) == []


PAGE = kernels.PAGE_SIZE


class KernelChooser(Part):
    """A choice that C++ writes: PAGE numbers a row, from the row itself, which the step then adds. As a router's kernel would.

    ``write_kv`` is the kernel here that writes into memory it is given.
    """

    def __init__(self, config, index: int) -> None:
        self._index = index
        self.weights = {
            "chooser": WeightSpec({"chooser": PAGE}, columns=config.hidden_size),
            "back": WeightSpec({"back": config.hidden_size}, columns=PAGE),
        }
        self.choices = {"numbers": ChoiceColumn(torch.float32, (PAGE,))}

    def __call__(self, layer, x_TD, rows):
        def decide(out_TP):
            found_T1P = kernels.linear(x_TD, layer["chooser"].weight).view(-1, 1, PAGE)
            pages = out_TP.view(-1, 1, PAGE, PAGE)
            kernels.write_kv(found_T1P, found_T1P, SLOTS, SCRATCH, pages, SLOTS)

        numbers_TP = rows.choices.settle("numbers", self._index, decide)
        return kernels.linear(numbers_TP, layer["back"].weight, residual_TO=x_TD)


SLOTS = torch.arange(PAGE)
SCRATCH = torch.zeros(1, 1, PAGE, PAGE)


@pytest.mark.skipif(
    native.library is None or not native.has_gemm, reason="no C++ GEMM on this processor"
)
@torch.no_grad()
def test_a_recorded_pass_makes_choices_in_the_memory_that_it_was_given(monkeypatch):
    family = replace(TOY, layer=lambda c, i: (SelfAttention(c, i), KernelChooser(c, i)))
    monkeypatch.setitem(FAMILIES, "toy", family)
    model, positions = toy_model(), torch.arange(PAGE)
    memory = model.new_choices(PAGE)["numbers"]

    def forward(ids):
        def attention(layer, q_TNH, k_TKH, v_TKH):
            return q_TNH

        return model(
            ids, positions, attention, choices=Choices({"numbers": memory}, are_made=False)
        )

    def both(ids):
        return {"hidden": forward(ids).clone(), "numbers": memory.clone()}

    ids, others = torch.arange(PAGE), torch.arange(PAGE).flip(0) + 7
    expected = both(ids), both(others)
    _, program = capture(lambda: forward(ids), [ids], Arena(1 << 22))
    for given, found in zip((others, ids), reversed(expected), strict=True):
        memory.zero_()
        hidden = program.run([given])
        EXACT.check({"hidden": hidden, "numbers": memory}, found)
    with planted_fault("choices of other tokens"):
        program.run([others])
        EXACT.check(memory, expected[0]["numbers"])
