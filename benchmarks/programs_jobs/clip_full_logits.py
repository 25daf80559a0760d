#OPTS world=4 stack=0 op=ClipKernel
import torch.distributed.nn.functional as distF

PAIR_SECONDS = 2.2e-5  # similarity and softmax of one image with one text


class Tower(nn.Module):
    def __init__(self, inputs, fwd):
        super().__init__()
        self.inp, self.out, self.fwd = nn.Linear(inputs, 96), nn.Linear(96, 32), fwd

    def forward(self, x):
        h = ClipKernel.apply(F.gelu(self.inp(x)), self.fwd, 2 * self.fwd)
        return F.normalize(self.out(h), dim=-1)


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = Tower(48, 0.018)
        self.text = Tower(24, 0.008)
        self.logit_scale = nn.Parameter(torch.tensor(2.65))

    def forward(self, image, text):
        return self.visual(image), self.text(text), self.logit_scale.exp()


def similarity(a, b, scale):
    seconds = PAIR_SECONDS * len(a) * len(b)
    return ClipKernel.apply(scale * a @ b.T, seconds, 2 * seconds)


class ContrastiveLoss(nn.Module):
    def __init__(self, rank, world, local_loss):
        super().__init__()
        self.rank, self.world, self.local_loss = rank, world, local_loss

    def gather(self, features):
        return torch.cat(distF.all_gather(features))

    def forward(self, img, txt, scale):
        all_img, all_txt = self.gather(img), self.gather(txt)
        n = len(img)
        if self.local_loss:  # our rows against everybody's columns
            per_image = similarity(img, all_txt, scale)
            per_text = similarity(txt, all_img, scale)
            labels = torch.arange(n) + self.rank * n
        else:
            per_image = similarity(all_img, all_txt, scale)
            per_text = per_image.T
            labels = torch.arange(n * self.world)
        return (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2


def train(rank, world, args):
    model = DDP(Clip())
    criterion = ContrastiveLoss(rank, world, local_loss=not args.fault)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
    with recording(args, rank) as prof:
        for _ in range(args.steps):
            image, text = torch.randn(8, 48), torch.randn(8, 24)
            loss = criterion(*model(image, text))
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
