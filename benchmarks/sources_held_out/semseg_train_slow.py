import time

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from model.pspnet import PSPNet
from util import config, dataset, transform
from util.util import AverageMeter, get_logger, poly_learning_rate

logger = get_logger()


def intersection_union(pred, target, k, ignore=255):
    valid = target != ignore
    pred = torch.where(valid, pred, torch.full_like(pred, k))
    target = torch.where(valid, target, torch.full_like(target, k))
    hist = torch.bincount((target * (k + 1) + pred).flatten(), minlength=(k + 1) ** 2).view(k + 1, k + 1)[:k, :k]
    inter = hist.diag()
    return inter, hist.sum(0) + hist.sum(1) - inter, hist.sum(1)


def train(loader, model, opt, scaler, epoch, args):
    model.train()
    data_time, end = AverageMeter(), time.time()
    max_iter = args.epochs * len(loader)
    for i, (image, target) in enumerate(loader):
        data_time.update(time.time() - end)
        image = image.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        with torch.autocast("cuda"):
            main_out, aux_out = model(image)
            loss = F.cross_entropy(main_out, target, ignore_index=255)
            loss = loss + args.aux_weight * F.cross_entropy(aux_out, target, ignore_index=255)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        lr = poly_learning_rate(args.base_lr, epoch * len(loader) + i, max_iter, power=args.power)
        for g, group in enumerate(opt.param_groups):
            group["lr"] = lr if g < args.index_split else lr * 10
        if i % args.print_freq == 0:
            logger.info("[%d][%d/%d] data %.3f loss %.4f", epoch, i, len(loader), data_time.avg, loss.item())
        torch.cuda.empty_cache()
        end = time.time()


def validate(loader, model, args):
    model.eval()
    k = args.classes
    inter = torch.zeros(k, device="cuda")
    union = torch.zeros(k, device="cuda")
    total = torch.zeros((), device="cuda")
    for image, target in loader:
        image = image.cuda(non_blocking=True)
        target = target.cuda(non_blocking=True)
        output = model(image)
        if output.shape[2:] != target.shape[1:]:
            output = F.interpolate(output, size=target.shape[1:], mode="bilinear", align_corners=True)
        loss = F.cross_entropy(output, target, ignore_index=255)
        i, u, _ = intersection_union(output.argmax(dim=1), target, k)
        inter += i
        union += u
        total += loss.detach()
    iou = (inter / (union + 1e-10)).cpu()
    logger.info("val loss %.4f mIoU %.4f", total.item() / len(loader), iou.mean().item())
    return iou.mean().item()


def main():
    args = config.get_parser()
    model = PSPNet(layers=args.layers, classes=args.classes, zoom_factor=8).cuda()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model) if args.sync_bn else model
    opt = torch.optim.SGD(model.param_groups(args.base_lr), momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    kw = dict(num_workers=args.workers, pin_memory=True, persistent_workers=True)
    train_loader = DataLoader(dataset.SemData("train", args.data_root, args.train_list, transform.train(args)),
                              batch_size=args.batch_size, shuffle=True, drop_last=True, **kw)
    val_loader = DataLoader(dataset.SemData("val", args.data_root, args.val_list, transform.val(args)),
                            batch_size=args.batch_size_val, **kw)
    best = 0.0
    for epoch in range(args.epochs):
        train(train_loader, model, opt, scaler, epoch, args)
        if (epoch + 1) % args.eval_freq == 0:
            torch.cuda.empty_cache()  # training and validation shapes differ
            best = max(best, validate(val_loader, model, args))
    logger.info("best mIoU %.4f", best)


if __name__ == "__main__":
    main()
