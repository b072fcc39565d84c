import math

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices, planted_fault
from helpers.tiny_models import weights_of
from helpers.tolerance import EXACT, FLOAT64_REFERENCE
from torch import nn

from zerogap.errors import CheckpointError, ConfigError, NumericsError
from zerogap.kernels import round_bf16, round_bf16_
from zerogap.train.optimizer import Optimizer

LR, BETAS, EPS, DECAY = 0.01, (0.9, 0.95), 1e-8, 0.1


class Toy(nn.Module):
    """A matrix, longer than one block of the norm, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(70, 60))
        self.bias = nn.Parameter(torch.randn(60))


def build(model, *, max_grad_norm=1e9, decay=DECAY, keeps_masters=False):
    optimizer = Optimizer(
        model,
        betas=BETAS,
        eps=EPS,
        weight_decay=decay,
        max_grad_norm=max_grad_norm,
        keeps_masters=keeps_masters,
    )
    optimizer.zero_grad()
    return optimizer


def fill(model, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def loop_adamw(start, gradients, decay):
    """AdamW in float64 (arXiv 1711.05101, algorithm 2), one step after the other."""
    p, m, v = start.double(), 0.0, 0.0
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g * g
        step = (m / (1 - BETAS[0] ** t)) / ((v / (1 - BETAS[1] ** t)).sqrt() + EPS)
        p = p - LR * decay * p - LR * step
    return p


def test_updates_match_a_float64_loop_and_vectors_do_not_decay():
    model = Toy()
    start = weights_of(model)
    optimizer, gradients = build(model), {"weight": [], "bias": []}
    for step in range(4):
        optimizer.zero_grad()
        fill(model, step)
        for name, parameter in model.named_parameters():
            gradients[name].append(parameter.grad.clone())
        optimizer.update(LR)
    FLOAT64_REFERENCE.check(model.weight, loop_adamw(start["weight"], gradients["weight"], DECAY))
    FLOAT64_REFERENCE.check(model.bias, loop_adamw(start["bias"], gradients["bias"], 0.0))
    wrong = loop_adamw(start["bias"], gradients["bias"], DECAY)
    assert_notices("biases decay", lambda: FLOAT64_REFERENCE.check(model.bias, wrong))


def test_a_gradient_of_zero_moves_nothing_though_there_is_momentum_and_decay():
    model = Toy()
    optimizer = build(model)
    optimizer.zero_grad()
    fill(model, 0)
    optimizer.update(LR)
    weights = weights_of(model)
    state = {name: tensor.clone() for name, tensor in optimizer.state_dict().items()}
    optimizer.zero_grad()
    assert optimizer.update(LR) == 0.0
    EXACT.check(weights_of(model), weights)
    EXACT.check(optimizer.state_dict(), state)

    def check_with_a_tiny_gradient():
        optimizer.zero_grad()
        model.bias.grad[0] = 1e-15
        optimizer.update(LR)
        EXACT.check(weights_of(model), weights)

    assert_notices("momentum alone", check_with_a_tiny_gradient)


def test_a_long_gradient_is_scaled_to_the_limit_and_a_short_one_is_left_alone():
    model = Toy()
    optimizer = build(model, max_grad_norm=0.5)
    fill(model, 0)
    flat = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
    norm = optimizer.update(0.0)
    FLOAT64_REFERENCE.check(norm, float(flat.norm()))
    clipped = torch.cat([p.grad.flatten() for p in model.parameters()])
    FLOAT64_REFERENCE.check(clipped, flat * (0.5 / flat.norm()))
    fill(model, 0, scale=1e-6)
    before = [p.grad.clone() for p in model.parameters()]
    optimizer.update(0.0)
    EXACT.check([p.grad for p in model.parameters()], before)


def test_the_norm_of_millions_of_elements_is_right_to_1e6():
    # fp32 accumulation is off by 3e-4 here.
    model = nn.Module()
    model.weight = nn.Parameter(torch.zeros(3000, 1001))
    optimizer = build(model)
    model.weight.grad.fill_(0.1)
    norm, tenth = optimizer.update(0.0), float(np.float32(0.1))
    FLOAT64_REFERENCE.check(norm, tenth * math.sqrt(3000 * 1001))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_named(value):
    model = Toy()
    optimizer = build(model)
    fill(model, 0)
    optimizer.update(LR)
    weights = weights_of(model)
    state = {n: t.clone() for n, t in optimizer.state_dict().items()}
    model.weight.grad[3, 4] = value
    with pytest.raises(NumericsError, match=r"gradient of weight .* weights are as before"):
        optimizer.update(LR)
    EXACT.check(dict(model.named_parameters()), weights)
    EXACT.check(optimizer.state_dict(), state)


def test_gradient_buffers_and_moments_are_reused():
    model = Toy()
    optimizer = build(model)

    def addresses():
        tensors = [p.grad for p in model.parameters()] + list(optimizer.state_dict().values())[1:]
        return [tensor.data_ptr() for tensor in tensors]

    before = addresses()
    for step in range(2):
        optimizer.zero_grad()
        EXACT.check(model.bias.grad, torch.zeros(60))
        (model.weight.sum() * (step + 1.0) + model.bias.sum()).backward()
        optimizer.update(LR)
    assert addresses() == before


def test_a_restored_optimizer_goes_on_bit_for_bit():
    models = [Toy(), Toy()]
    models[1].load_state_dict(models[0].state_dict())
    first, second = build(models[0]), build(models[1])
    fill(models[0], 0)
    first.update(LR)
    models[1].load_state_dict(models[0].state_dict())
    second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
    for model, optimizer in zip(models, (first, second), strict=True):
        fill(model, 1)
        optimizer.update(LR)
    EXACT.check(dict(models[1].named_parameters()), dict(models[0].named_parameters()))
    EXACT.check(second.state_dict(), first.state_dict())


def test_the_state_of_another_model_is_refused_and_nothing_changes():
    optimizer = build(Toy())
    state = {name: t.clone() for name, t in optimizer.state_dict().items()}
    del state["exp_avg.bias"]
    state["exp_avg.weight"] = torch.ones(2, 2)
    with pytest.raises(CheckpointError, match=r"2 entries .* \(first: exp_avg.bias\)"):
        optimizer.load_state_dict(state)
    assert not optimizer.state_dict()["exp_avg.weight"].any()


def test_updates_have_the_bits_of_torchs_own_class():
    ours, theirs = Toy(), Toy()
    theirs.load_state_dict(ours.state_dict())
    optimizer = build(ours)
    groups = [
        {"params": [theirs.weight], "weight_decay": DECAY},
        {"params": [theirs.bias], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)
    for step in range(3):
        fill(ours, step)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.grad = mine.grad.clone()
        optimizer.update(LR)
        reference.step()
        EXACT.check(dict(ours.named_parameters()), dict(theirs.named_parameters()))
    optimizer.update(LR * 1.001)
    reference.step()
    assert_notices(
        "another learning rate",
        lambda: EXACT.check(dict(ours.named_parameters()), dict(theirs.named_parameters())),
    )


# ------------------------------------------------------------ frozen parameters


def half_frozen_toy():
    model = Toy()
    model.bias.requires_grad_(False)
    return model


def test_a_frozen_parameter_has_no_gradient_and_no_state_and_keeps_its_bits():
    model = half_frozen_toy()
    optimizer, bias = build(model), model.bias.detach().clone()
    assert optimizer.state_dict().keys() == {"num_updates", "exp_avg.weight", "exp_avg_sq.weight"}
    assert optimizer.gradients().keys() == {"weight"}
    ((model.weight * 2.0).sum() + model.bias.sum()).backward()
    before = model.weight.detach().clone()
    optimizer.update(LR)
    assert model.bias.grad is None
    EXACT.check(model.bias, bias)
    with planted_fault("the trained one stands still"):
        EXACT.check(model.weight, before)


def test_the_state_of_another_frozen_set_is_refused():
    state = build(Toy()).state_dict()
    with pytest.raises(
        CheckpointError, match=r"2 entries .*first: exp_avg.bias.* same parameters frozen"
    ):
        build(half_frozen_toy()).load_state_dict(state)


def test_with_everything_frozen_there_is_nothing_to_train():
    model = Toy().requires_grad_(False)
    with pytest.raises(ConfigError, match="all parameters of the model are frozen"):
        build(model)


# ------------------------------------------------------------ gradient hooks


def test_gradients_are_what_lies_in_grad_whoever_puts_it_there():
    """A hook may replace a gradient, as one that sums over processes does."""
    plain, hooked = Toy(), Toy()
    hooked.load_state_dict(plain.state_dict())
    optimizers = [build(plain), build(hooked)]

    def of_two_processes(parameter):
        parameter.grad = parameter.grad * 2.0

    for parameter in hooked.parameters():
        parameter.register_post_accumulate_grad_hook(of_two_processes)
    for model, scale, optimizer in zip((plain, hooked), (2.0, 1.0), optimizers, strict=True):
        ((model.weight * model.weight).sum() * scale + model.bias.sum() * scale).backward()
        optimizer.update(LR)
    EXACT.check(dict(hooked.named_parameters()), dict(plain.named_parameters()))


# ------------------------------------------------------------ bf16 parameters


def rounded_toy():
    model = Toy()
    with torch.no_grad():
        for parameter in model.parameters():
            round_bf16_(parameter)
    return model


def test_masters_take_the_updates_of_fp32_and_parameters_are_their_rounding():
    model, plain = rounded_toy(), Toy()
    plain.load_state_dict(model.state_dict())
    optimizer, reference = build(model, keeps_masters=True), build(plain)
    for step in range(4):
        fill(model, step)
        fill(plain, step)
        optimizer.update(LR)
        reference.update(LR)
    for name, parameter in plain.named_parameters():
        EXACT.check(optimizer.state_dict()[f"master.{name}"], parameter)
        EXACT.check(dict(model.named_parameters())[name], round_bf16(parameter))
    assert_notices(
        "parameters that are not rounded",
        lambda: EXACT.check(plain.weight, round_bf16(plain.weight)),
    )


def test_an_update_that_bf16_cannot_say_is_not_lost():
    """AdamW moves a weight with a constant gradient by the learning rate a step."""
    # Half way from 1 to the next bf16 is 0.0039; fp32 makes 9.5e-7 of a step.
    rate, enough = 1e-6, 4200

    def after(num_updates, *, keeps_masters):
        model = nn.Module()
        model.weight = nn.Parameter(torch.ones(3, 2))
        optimizer = build(model, decay=0.0, keeps_masters=keeps_masters)
        model.weight.grad.fill_(-1.0)
        for _ in range(num_updates):
            optimizer.update(rate)
            round_bf16_(model.weight.data)
        return model.weight.detach()

    moved = torch.full((3, 2), 1.0 + 2**-7)
    EXACT.check(after(enough // 2, keeps_masters=True), torch.ones(3, 2))
    EXACT.check(after(enough, keeps_masters=True), moved)
    assert_notices(
        "no masters: each update is rounded away",
        lambda: EXACT.check(after(enough, keeps_masters=False), moved),
    )


def test_a_restored_optimizer_goes_on_with_its_masters():
    models = [rounded_toy(), Toy()]
    first, second = (build(m, keeps_masters=True) for m in models)
    for step in range(3):
        fill(models[0], step)
        first.update(LR / 100)
    models[1].load_state_dict(models[0].state_dict())
    second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
    forgetful = build(models[1], keeps_masters=True)
    forgot = forgetful.state_dict()["master.weight"]
    for model, optimizer in zip(models, (first, second), strict=True):
        fill(model, 5)
        optimizer.update(LR / 100)
    EXACT.check(second.state_dict(), first.state_dict())
    EXACT.check(dict(models[1].named_parameters()), dict(models[0].named_parameters()))
    assert_notices(
        "masters made of the rounded parameters",
        lambda: EXACT.check(forgot, first.state_dict()["master.weight"]),
    )


def test_masters_of_another_step_are_refused_and_nothing_changes():
    model = rounded_toy()
    optimizer = build(model, keeps_masters=True)
    state = {name: t.clone() for name, t in optimizer.state_dict().items()}
    state["master.bias"] *= 1.1
    state["num_updates"] += 1
    with pytest.raises(CheckpointError, match=r"weights of bias do not round to the model's"):
        optimizer.load_state_dict(state)
    assert int(optimizer.state_dict()["num_updates"]) == 0
    with pytest.raises(CheckpointError, match=r"2 entries are missing"):
        optimizer.load_state_dict(build(Toy()).state_dict())
