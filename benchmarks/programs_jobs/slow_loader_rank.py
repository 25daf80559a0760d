#OPTS world=3 stack=1 op=VisionKernel
from torch.utils.data import DataLoader, Dataset


class ImageFolder(Dataset):
    def __init__(self, rank, degraded):
        self.read_s = 0.008 if (degraded and rank == 1) else 0.0015  # rank 1's disk is nearly full / remote

    def __len__(self):
        return 10000

    def __getitem__(self, i):
        time.sleep(self.read_s)
        return torch.full((3, 6, 6), float(i % 7)), i % 4


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.fc = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1), nn.Linear(24, 4)

    def forward(self, x):
        x = VisionKernel.apply(F.relu(self.c1(x)), 0.015, 0.030)
        x = VisionKernel.apply(F.relu(self.c2(x)), 0.015, 0.030)
        return self.fc(x.mean((2, 3)))


def train(rank, world, args):
    loader = DataLoader(ImageFolder(rank, args.fault), batch_size=6, num_workers=0)
    model = DDP(SmallCNN())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    with recording(args, rank) as prof:
        for step, (images, labels) in enumerate(loader):
            if step >= args.steps:
                break
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            prof.step()
