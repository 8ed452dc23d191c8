"""Writes golden_transforms.json: what torchvision (0.29) makes of a small image, for the tests of src/transforms.

Run by hand where PyTorch is installed: python golden_transforms.py > golden_transforms.json
"""

import json

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

image = torch.tensor([(i * i * 7 + i * 13) % 256 / 255 for i in range(3 * 4 * 5)]).reshape(3, 4, 5)
flat = torch.tensor([(i * i) % 40 / 255 + 0.3 for i in range(400)]).reshape(1, 20, 20)
results = {
    "affine": F.affine(
        image, angle=20, translate=[1, -0.5], scale=1.2, shear=[10, 5], interpolation=InterpolationMode.BILINEAR
    ),
    "resized_crop": F.resized_crop(image, 1, 1, 2, 3, [4, 7], antialias=False),
    "brightness": F.adjust_brightness(image, 1.4),
    "contrast": F.adjust_contrast(image, 0.6),
    "more_contrast": F.adjust_contrast(image, 1.7),
    "saturation": F.adjust_saturation(image, 1.8),
    "hue": F.adjust_hue(image, 0.2),
    "hue_back": F.adjust_hue(image, -0.35),
    "blur": F.gaussian_blur(image, [5, 5], [1.1, 1.1]),
    "sharpness": F.adjust_sharpness(image, 1.9),
    "posterize": F.posterize(image, 3),
    "solarize": F.solarize(image, 0.6),
    "autocontrast": F.autocontrast(image * 0.5 + 0.2),
    "equalize": F.equalize(flat),
}
print(json.dumps({name: [round(x, 7) for x in result.flatten().tolist()] for name, result in results.items()}))
