from measure.fix.proposing import proposals, proposed

EDIT = "evaluation-mode"
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout()

    def forward(self, x):
        return self.drop(self.fc(x))
"""


def test_a_model_of_a_script_is_switched_where_it_is_made():
    before = f"{NET}\nnet = Net().to('cpu')\nfor x in torch.randn(100, 1, 4):\n    y = net(x)\n"
    (after,) = proposed(before, "y = net", "CFG042", EDIT)
    assert "net = Net().to('cpu').eval()\n" in after
    assert not proposed(after, "y = net", "CFG042", EDIT)
    assert proposals(before, "y = net", "CFG042", EDIT)[0].changes


def test_a_model_of_an_object_is_switched_where_it_is_made():
    before = f"""{NET}
class Scorer:
    def __init__(self, device):
        self.net = Net().to(device)

    @torch.no_grad()
    def score(self, batches):
        return [self.net(x) for x in batches]
"""
    (after,) = proposed(before, "return [self.net", "CFG042", EDIT)
    assert "self.net = Net().to(device).eval()\n" in after


def test_a_training_program_goes_back_to_training():
    before = f"""{NET}
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x in torch.randn(10, 8, 4):
        model(x).mean().backward()
        opt.step()
    with torch.no_grad():
        for x in torch.randn(10, 8, 4):
            y = model(x)
"""
    (after,) = proposed(before, "y = model", "CFG042", EDIT)
    rows = ["model.eval()", "for x in torch.randn(10, 8, 4):", "    y = model(x)", "model.train()"]
    assert after.endswith("".join(f"        {row}\n" for row in rows))
    assert not proposed(before, "model(x).mean().backward()", "CFG042", EDIT)
