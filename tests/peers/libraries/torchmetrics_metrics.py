"""torchmetrics: metrics of classification, regression and images over batches, and their values."""

import torch
import torchmetrics
from job import numbers, say
from torchmetrics import classification, image, regression

PACKAGES = ("torchmetrics",)
TOLERANCE = 1e-4  # the similarity of noise is a small difference of variances

target = torch.tensor([0, 1, 2, 1, 0, 2, 2, 1])
metrics = torchmetrics.MetricCollection(
    [
        classification.MulticlassAccuracy(3),
        classification.MulticlassF1Score(3),
        classification.MulticlassAUROC(3),
        classification.MulticlassConfusionMatrix(3),
        classification.MulticlassCalibrationError(3),
    ]
)
for seed in range(3):
    step = metrics(numbers(8, 3, seed=seed).softmax(1), target)
    say("step", *step.values())
say("classification", *metrics.compute().values())
for metric in (
    regression.MeanSquaredError(),
    regression.PearsonCorrCoef(),
    regression.R2Score(),
    regression.SpearmanCorrCoef(),
):
    for seed in range(2):
        metric.update(numbers(16, seed=seed), numbers(16, seed=seed) * 0.5 + numbers(16, seed=seed + 9))
    say(type(metric).__name__, metric.compute())
pictures = [numbers(2, 3, 32, 32, seed=seed).sigmoid() for seed in (1, 2)]
say("ssim", image.StructuralSimilarityIndexMeasure(data_range=1.0)(*pictures))
say("psnr", image.PeakSignalNoiseRatio(data_range=1.0)(*pictures))
mean = torchmetrics.MeanMetric()
for seed in range(3):
    mean.update(numbers(4, seed=seed))
say("mean", mean.compute(), torchmetrics.functional.pairwise_cosine_similarity(numbers(3, 4)))
