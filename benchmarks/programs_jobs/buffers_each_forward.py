#OPTS world=2 stack=1 op=ConvOp


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("position_table", torch.randn(1800, 512))
        self.down, self.mid, self.up = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x):
        x = x + self.position_table[:8, :8]
        x = ConvOp.apply(F.relu(self.down(x)), 0.014, 0.028)
        x = ConvOp.apply(F.relu(self.norm(self.mid(x))), 0.014, 0.028)
        return self.up(x)


def train(rank, world, args):
    net = DDP(Unet(), broadcast_buffers=args.fault)
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    with recording(args, rank) as prof:
        for step in range(args.steps):
            noise = torch.randn(2, 1, 8, 8)
            loss = F.mse_loss(net(noise), noise)
            opt.zero_grad()
            loss.backward()
            opt.step()
            prof.step()
