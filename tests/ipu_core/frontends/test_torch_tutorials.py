"""Three of PopTorch's tutorials with scripts of our own: a classifier, loading of data, half precision."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ipu_core import poptorch

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")


class Classifier(nn.Module):
    """Two convolutions, a norm of groups and two layers; the loss is the model's own while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.GroupNorm(3, 6)
        )
        self.scores = nn.Sequential(nn.Flatten(), nn.Linear(54, 16), nn.ReLU(), nn.Linear(16, 4), nn.LogSoftmax(1))
        self.loss = nn.NLLLoss()

    def forward(self, images: Any, labels: Any = None) -> Any:
        with poptorch.Block("features"):
            made = self.features(images)
        scores = self.scores(made)
        return (scores, self.loss(scores, labels)) if self.training else scores


def bars(count: int, dtype: Any = None) -> Any:
    """Images of 12 x 12 with a bright bar in one of four places."""
    torch.manual_seed(2)
    images, labels = torch.rand(count, 1, 12, 12), torch.randint(0, 4, (count,))
    for image, label in zip(images, labels, strict=True):
        image[0, 3 * label : 3 * label + 2] += 2
    return torch.utils.data.TensorDataset(images.to(dtype or torch.float32), labels)


def accuracy(model: Any, options: Any, data: Any) -> float:
    right, all_of_them = 0, 0
    for images, labels in poptorch.DataLoader(options, data, batch_size=16):
        right += int((model(images).float().max(dim=1).indices == labels).sum())
        all_of_them += len(labels)
    return right / all_of_them


def test_a_classifier_is_trained_kept_and_asked() -> None:
    data, model, options = bars(128), Classifier(), poptorch.Options()
    model.train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    training = poptorch.trainingModel(model, options=options, optimizer=optimizer)
    losses = []
    for _ in range(5):
        for images, labels in poptorch.DataLoader(options, data, batch_size=16, shuffle=True):
            _, loss = training(images, labels)
            losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    training.detachFromDevice()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    inference = poptorch.inferenceModel(model.eval(), options=options)
    assert accuracy(inference, options, data) > 0.9
    inference.detachFromDevice()
    file.seek(0)
    other = Classifier()
    other.load_state_dict(torch.load(file))
    image = data[:1][0]
    again = poptorch.inferenceModel(other.eval(), options=poptorch.Options())
    assert int(again(image).argmax()) == int(other(image).argmax()) == int(data[0][1])


def test_loading_of_data_for_several_iterations() -> None:
    options = poptorch.Options().deviceIterations(4).replicationFactor(1)
    options.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(
        options, dataset=bars(140), batch_size=4, shuffle=True, drop_last=True, mode=poptorch.DataLoaderMode.Async
    )
    model = poptorch.trainingModel(Classifier(), options, poptorch.optim.SGD(Classifier().parameters(), lr=0.05))
    with pytest.raises(ValueError, match="none of its parameters is trained"):
        model.compile(*next(iter(loader)))
    module = Classifier()
    model = poptorch.trainingModel(module, options, poptorch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9))
    assert (len(loader), loader.combinedBatchSize) == (4, 32)
    model.compile(*next(iter(loader)))
    for images, labels in loader:
        assert images.shape == (32, 1, 12, 12)
        scores, loss = model(images, labels)
        assert (scores.shape, loss.shape) == ((4, 4), ())
    assert model.loop.step == 16
    assert model.cycleCount() == 4 * model.profile.cycles


@pytest.mark.parametrize("partials", [torch.half, torch.float])
def test_half_precision_with_a_loss_scale(partials: Any) -> None:
    data, module = bars(96, torch.half), Classifier().half()
    optimizer = poptorch.optim.AdamW(module.parameters(), lr=0.01, accum_type=torch.float16, loss_scaling=1024)
    options = poptorch.Options()
    options.Precision.enableStochasticRounding(True).setPartialsType(partials)
    training = poptorch.trainingModel(module, options=options, optimizer=optimizer)
    losses = []
    for _ in range(5):
        for images, labels in poptorch.DataLoader(options, data, batch_size=12, shuffle=True):
            _, loss = training(images, labels)
            losses.append(float(loss))
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])
    training.detachFromDevice()
    inference = poptorch.inferenceModel(module.eval(), options=options)
    assert accuracy(inference, options, bars(96, torch.half)) > 0.8
