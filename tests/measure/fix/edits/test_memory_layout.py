from measure.fix.proposing import proposed

EDIT = "memory-layout"
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(8, 8)

    def forward(self, x):
        x = self.conv(x)
        x = x.contiguous()
        y = self.fc(x.permute(0, 2, 3, 1).contiguous())
        return y.contiguous().view(len(y), -1)
"""


def test_copies_of_layers_are_taken_out():
    (after,) = proposed(NET, "x = x.contiguous()", "CPY011", EDIT)
    assert "        x = self.conv(x)\n        y = self.fc(x.permute(0, 2, 3, 1))\n" in after
    assert "y.contiguous().view(" in after


def test_a_model_of_a_script_and_its_input_get_another_layout():
    before = f"""{NET}
net = Net().to("cpu")
for image in images:
    out = net(image)
"""
    (after,) = proposed(before, "out = net", "HST114", EDIT)
    assert 'net = Net().to("cpu").to(memory_format=torch.channels_last)\n' in after
    assert "out = net(image.to(memory_format=torch.channels_last))\n" in after
    assert not proposed(after, "out = net", "HST114", EDIT)


def test_a_model_of_a_trainer():
    before = f"""{NET}
class Trainer:
    def __init__(self):
        self.net = Net()

    def fit(self, loader):
        for x, y in loader:
            loss = (self.net(x) - y).mean()
            loss.backward()
"""
    (after,) = proposed(before, "x = self.conv", "HST114", EDIT)
    assert "self.net = Net().to(memory_format=torch.channels_last)" in after
    assert "self.net(x.to(memory_format=torch.channels_last))" in after
