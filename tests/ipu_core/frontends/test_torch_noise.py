"""Random numbers that a captured module draws: their distribution, whose bits they are, and training with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ipu_core import Adam, Predictor, Sgd, TrainLoop, from_torch
from ipu_core.errors import NotCovered
from ipu_core.frontends.torch.operations.noise import middle

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 4096


class Drawing(nn.Module):
    """Gives what it draws, beside a parameter that changes nothing."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.w, self.draw = nn.Parameter(torch.zeros(1)), draw

    def forward(self, x: Any) -> Any:
        return self.draw(x) + self.w


def drawn(draw: Any, precision: str = "fp32.32", number: int = 0, engine: str = "direct") -> Any:
    x = torch.zeros(ROWS, 16)
    model = from_torch(Drawing(draw), (x,), inference=True)
    predictor = Predictor(model, model.params, (x,), precision=precision, engine=engine)
    return np.asarray(predictor((x,), number), np.float64)


UNIFORM = {
    "rand": (lambda x: torch.rand(ROWS, 16), 0.0, 1.0),
    "rand_like": (torch.rand_like, 0.0, 1.0),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-2.0, 1.0), -2.0, 1.0),
}
NORMAL = {
    "randn": (lambda x: torch.randn(ROWS, 16), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "normal_": (lambda x: torch.empty_like(x).normal_(3.0, 0.5), 3.0, 0.5),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_numbers_are_uniform(name: str) -> None:
    draw, low, high = UNIFORM[name]
    found = np.sort((drawn(draw).ravel() - low) / (high - low))
    assert 0 <= found[0] < 1e-4
    assert 1 - 1e-4 < found[-1] < 1
    # Kolmogorov's distance of n numbers is above 2 / sqrt(n) once in 1,500 times; bits are those of a fixed key
    steps = np.arange(1, found.size + 1) / found.size
    assert np.abs(found - steps).max() < 2 / np.sqrt(found.size)
    assert np.unique(found).size > 0.99 * found.size


@pytest.mark.parametrize("name", NORMAL)
def test_normal_numbers_are_normal(name: str) -> None:
    draw, middle_, deviation = NORMAL[name]
    found = np.sort((drawn(draw).ravel() - middle_) / deviation)
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(found)).numpy()
    assert np.abs(expected - np.arange(1, found.size + 1) / found.size).max() < 2 / np.sqrt(found.size)
    assert abs(np.mean(found**4) - 3) < 0.15
    assert 3.5 < found[-1] < 5.8
    columns = drawn(draw).T - middle_
    assert np.abs(np.corrcoef(columns) - np.eye(16)).max() < 0.07  # 4 deviations of 1 / sqrt(4096)


WHOLE = {
    "randint": (lambda x: torch.randint(7, (ROWS, 16)), 0, 7),
    "randint from": (lambda x: torch.randint(-3, 2, (ROWS, 16)), -3, 2),
    "randint_like": (lambda x: torch.randint_like(x, 10), 0, 10),
    "randint_like from": (lambda x: torch.randint_like(x, -5, 1), -5, 1),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_are_each_as_likely(name: str) -> None:
    draw, low, high = WHOLE[name]
    numbers, counts = np.unique(drawn(draw, precision="fp16.16/stochastic"), return_counts=True)
    np.testing.assert_array_equal(numbers, np.arange(low, high))
    share = 1 / (high - low)
    assert np.abs(counts / (ROWS * 16) - share).max() < 4 * np.sqrt(share * (1 - share) / (ROWS * 16))


def test_numbers_that_are_drawn_take_rows_of_a_table() -> None:
    class Choosing(Drawing):
        def forward(self, x: Any) -> Any:
            return F.embedding(torch.randint(4, (ROWS,)), torch.arange(4.0)[:, None] ** 2) + self.w

    model = from_torch(Choosing(None), (torch.zeros(1),), inference=True)
    found = np.asarray(Predictor(model, model.params, (torch.zeros(1),), precision="fp32.32")((torch.zeros(1),)))
    assert set(np.unique(found)) == {0, 1, 4, 9}
    with pytest.raises(NotCovered, match="from 1 to 2\\^24 of them are drawn"):
        from_torch(Drawing(lambda x: torch.randint_like(x, 1 << 25)), (torch.zeros(2),), inference=True)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_alpha_dropout_keeps_mean_and_deviation(channels: bool, rate: float) -> None:
    layer = (nn.FeatureAlphaDropout if channels else nn.AlphaDropout)(rate)

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.drop = nn.Parameter(torch.zeros(512, 16, 8)), layer

        def forward(self, x: Any) -> Any:
            return (self.drop(self.w + x) * x).sum()

    torch.manual_seed(3)
    x = torch.randn(512, 16, 8)
    x = (x - x.mean()) / x.std()
    model = from_torch(Dropping(), (x,))
    loop = TrainLoop(model, model.params, (x,), optimizer=Sgd(1.0), precision="fp32.32", engine="direct", key=2)
    loss = loop.train((x,))
    kept = -loop.params["w"].reshape(x.shape) / x.numpy()  # its gradient: a factor where it is kept, else 0
    factor, alpha = np.float32(kept.max()), 1.7580993408473766
    assert factor == pytest.approx(1 / np.sqrt((alpha**2 * rate + 1) * (1 - rate)), rel=1e-5)
    mask = kept > factor / 2
    assert mask.mean() == pytest.approx(1 - rate, abs=0.02)
    assert (mask.reshape(512 * 16, 8).mean(1) % 1 == 0).all() == channels
    made = np.where(mask, x.numpy() * factor + alpha * factor * rate, alpha * factor * (rate - 1))
    assert loss == pytest.approx(float((made * x.numpy()).sum()), rel=1e-4)
    assert abs(made.mean()) < 0.05
    assert made.std() == pytest.approx(1, abs=0.05)


def test_gumbel_noise_chooses_by_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 0.5])

    class Choosing(Drawing):
        def forward(self, x: Any) -> Any:
            return F.gumbel_softmax(logits.expand(ROWS, 4) + self.w, tau=0.01)

    x = torch.zeros(1)
    model = from_torch(Choosing(None), (x,), inference=True)
    found = np.asarray(Predictor(model, model.params, (x,), precision="fp32.32")((x,)))
    shares = np.bincount(found.argmax(1), minlength=4) / ROWS
    np.testing.assert_allclose(shares, logits.softmax(0).numpy(), atol=0.03)


@pytest.mark.parametrize("precision", ["fp32.32", "fp16.16/stochastic"])
def test_draws_are_of_the_key_and_the_number_of_the_step(precision: str) -> None:
    state = torch.get_rng_state()
    first, again, other = (drawn(torch.randn_like, precision, number) for number in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.02
    two = drawn(lambda x: torch.randn_like(x) - torch.randn_like(x), precision)
    assert abs(two.std() - np.sqrt(2)) < 0.02  # two calls draw two arrays
    assert torch.equal(state, torch.get_rng_state())


class Encoder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(4, 8)

    def forward(self, x: Any) -> Any:
        mean, logarithm = self.inner(x).chunk(2, 1)
        hidden = mean + torch.exp(0.5 * logarithm) * torch.randn_like(logarithm)
        apart = -0.5 * (1 + logarithm - mean**2 - logarithm.exp()).sum(1).mean()
        return F.mse_loss(self.outer(hidden), x) + 0.01 * apart


@pytest.mark.parametrize("engine", ["direct", "tiles"])
def test_an_autoencoder_that_draws_is_trained(engine: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(64, 2) @ torch.randn(2, 8)
    model = from_torch(Encoder(), (x,))
    assert "not seen: what is drawn" in str(model.check((x,)))
    loop = TrainLoop(model, model.params, (x,), optimizer=Adam(0.02), precision="fp16.16/stochastic", engine=engine)
    losses = [loop.train((x,)) for _ in range(60)]
    assert np.mean(losses[-5:]) < 0.35 * np.mean(losses[:5])
    still = TrainLoop(model, model.params, (x,), optimizer=Sgd(0.0), precision="fp32.32", engine=engine)
    assert len({still.train((x,)) for _ in range(4)}) == 4  # every step draws anew


def test_both_engines_draw_the_same() -> None:
    for draw in (torch.rand_like, torch.randn_like):
        np.testing.assert_array_equal(drawn(draw), drawn(draw, engine="tiles"))


def test_deviations_as_tensors_name_the_other_way() -> None:
    with pytest.raises(NotCovered, match=r"mean \+ deviation \* torch\.randn_like\(mean\)"):
        from_torch(Drawing(lambda x: torch.normal(x, torch.ones_like(x)).sum()), (torch.zeros(3),))


def test_what_stands_for_a_draw_is_its_mean() -> None:
    names = {"rand": 0.5, "randn_like": 0.0, "uniform_": 0.5, "normal_": 0.0, "exponential_": 1.0}
    assert {name: middle(name, ()) for name in names} == names
    assert (middle("uniform_", (-2.0, 1.0)), middle("normal_", [3.0, 0.5])) == (-0.5, 3.0)


@pytest.mark.parametrize("layer", [nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Dropout])
def test_masks_of_whole_channels_are_drawn_anew_in_every_step_of_training(layer: Any) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(5, 4), layer(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(self.linear(x)).square().sum()

    x = torch.randn(4, 3, 5)
    model = from_torch(Dropping(), (x,))
    loop = TrainLoop(model, model.params, (x,), optimizer=Sgd(0.0), precision="fp32.32", engine="direct", key=2)
    assert len({loop.train((x,)) for _ in range(6)}) > 4
