"""Images made small first."""

from __future__ import annotations

from tests.measure.fix.proposing import proposals, proposed

HEAD = """
import random
import cv2
from PIL import Image, ImageFilter
from torch.utils.data import Dataset

class Leaves(Dataset):
    def __init__(self, paths, size):
        self.paths, self.size = paths, size

"""


def test_a_pipeline_with_a_line_for_each() -> None:
    text = """
        from torchvision import transforms as T

        train = T.Compose([
            T.RandomHorizontalFlip(),
            T.ColorJitter(0.2),
            T.GaussianBlur(3),
            T.Resize((96, 96)),
            T.ToTensor(),
        ])
    """
    (new,) = proposed(text, "ColorJitter", "DAT101", "resize-first")
    assert [line.strip() for line in new.splitlines()[3:8]] == [
        "T.RandomHorizontalFlip(),",
        "T.Resize((96, 96)),",
        "T.ColorJitter(0.2),",
        "T.GaussianBlur(3),",
        "T.ToTensor(),",
    ]
    assert proposals(text, "ColorJitter", "DAT101", "resize-first")[0].changes
    assert proposed(new, "ColorJitter", "DAT101", "resize-first") == []


def test_a_pipeline_on_one_line() -> None:
    text = "import albumentations as A\nt = A.Compose([A.Rotate(10), A.CenterCrop(64, 64)])\n"
    (new,) = proposed(text, 2, "DAT101", "resize-first")
    assert new.endswith("t = A.Compose([A.CenterCrop(64, 64), A.Rotate(10)])\n")


def test_the_code_of_a_sample() -> None:
    text = f"""{HEAD}    def augment(self, img):
        return img.rotate(random.uniform(-9, 9))

    def __getitem__(self, i):
        img = Image.open(self.paths[i]).convert("RGB")
        img = self.augment(img)
        img = img.filter(ImageFilter.BLUR)
        img = img.resize((self.size, self.size))
        return img
"""
    for line in ("return img.rotate", "img.filter"):
        moved, drafted = proposed(text, line, "DAT101", "resize-first")
        assert "        img = img.resize((self.size, self.size))\n        img = self.augment(img)\n" in moved
        assert "        img = img.filter(ImageFilter.BLUR)\n        return img\n" in moved
        assert (
            '        img = Image.open(self.paths[i])\n        img.draft("RGB", (2 * self.size, 2 * self.size))\n'
            in drafted
        )


def test_opencv() -> None:
    text = f"""{HEAD}    def __getitem__(self, i):
        image = cv2.imread(self.paths[i])
        image = cv2.GaussianBlur(image, (5, 5), 0)
        image = cv2.resize(image, (64, 64))
        return image
"""
    (new,) = proposed(text, "GaussianBlur", "DAT101", "resize-first")
    assert "image = cv2.resize(image, (64, 64))\n        image = cv2.GaussianBlur(image, (5, 5), 0)\n" in new


def test_nothing_where_the_size_depends_on_the_work_before() -> None:
    text = f"""{HEAD}    def __getitem__(self, i):
        image = cv2.imread(self.paths[i])
        image, scale = blurred(image)
        image = cv2.resize(image, (scale, scale))
        return image
"""
    assert proposed(text, "blurred", "DAT101", "resize-first") == []
    assert proposed("t = T.Compose([T.Resize(9), T.ColorJitter(1)])\n", 1, "DAT101", "resize-first") == []
