"""Images augmented by fixed parameters, warped, filtered; a homography found by the descent of a photometric loss."""

import torch
from job import numbers, say
from kornia import augmentation, color, filters, geometry, losses, metrics
from torch import nn

PACKAGES = ("kornia",)

images = numbers(2, 3, 24, 32).sigmoid()
batch = images.clone().requires_grad_()
say("gray", color.rgb_to_grayscale(batch), color.rgb_to_hsv(batch), color.rgb_to_lab(batch))
say("filters", filters.gaussian_blur2d(batch, (5, 5), (1.2, 1.2)), filters.sobel(batch), filters.median_blur(batch, 3))
turned = geometry.rotate(batch, torch.tensor([20.0, -35.0]))
moved = geometry.warp_affine(turned, torch.tensor([[[1.0, 0.1, -2.0], [0.0, 0.9, 1.5]]]).repeat(2, 1, 1), (20, 28))
say("warped", turned, moved)
moved.square().sum().backward()
say("gradient", batch.grad)

augment = augmentation.AugmentationSequential(
    augmentation.RandomHorizontalFlip(p=1.0),
    augmentation.RandomVerticalFlip(p=1.0),
    augmentation.CenterCrop((16, 16)),
    augmentation.Normalize(0.5, 0.25),
    data_keys=["input", "mask", "keypoints"],
)
points = torch.tensor([[[4.0, 8.0], [20.0, 10.0]], [[9.0, 5.0], [16.0, 12.0]]])
say("augmented", *augment(images, (images > 0.5).float(), points))
random = augmentation.RandomAffine(30.0, translate=(0.1, 0.2), scale=(0.8, 1.2), p=1.0)
given = random.generate_parameters(images.shape)
given.update(angle=torch.tensor([12.0, -7.0]), scale=torch.full((2, 2), 1.1), translations=torch.full((2, 2), 1.5))
say("affine", random(images, params=given), random.transform_matrix)
corners = torch.tensor([[[0.0, 0.0], [31.0, 0.0], [31.0, 23.0], [0.0, 23.0]]])
toward = corners + numbers(1, 4, 2)
found = geometry.get_perspective_transform(corners, toward)
say("perspective", geometry.transform_points(found, corners), geometry.find_homography_dlt(corners, toward))
say("losses", losses.ssim_loss(images, images.flip(-1), 5), losses.total_variation(images))
say("losses", losses.FocalLoss(0.5, reduction="mean")(numbers(2, 3, 6, 6), torch.ones(2, 6, 6, dtype=torch.long)))
say("psnr", metrics.psnr(images, images * 0.9, 1.0))


class Homography(nn.Module):
    """Eight free entries of a matrix that maps one image onto another."""

    def __init__(self):
        super().__init__()
        self.change = nn.Parameter(torch.zeros(1, 3, 3))

    def forward(self, image):
        """The image, warped by the matrix."""
        return geometry.HomographyWarper(24, 32)(image, torch.eye(3) + 0.1 * self.change)


model, target = Homography(), geometry.rotate(images[:1], torch.tensor([3.0]))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(5):
    found = model(images[:1])
    edges = losses.charbonnier_loss(filters.spatial_gradient(found), filters.spatial_gradient(target), reduction="mean")
    loss = losses.charbonnier_loss(found, target, reduction="mean") + edges
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    say("loss", loss)
say("homography", model.change)
