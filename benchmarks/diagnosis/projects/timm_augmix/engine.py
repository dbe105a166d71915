"""Training for one epoch; after timm's own script."""
import torch
from timm.utils import AverageMeter


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, device, log_interval=8):
    losses_m = AverageMeter()
    model.train()
    last_idx = len(loader) - 1
    for batch_idx, (input, target) in enumerate(loader):
        input, target = input.to(device), target.to(device)
        output = model(input)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses_m.update(loss.item(), input.size(0))
        if batch_idx % log_interval == 0 or batch_idx == last_idx:
            print(f"Train: {epoch} [{batch_idx:>4d}/{len(loader)}]  Loss: {losses_m.avg:#.3g}", flush=True)
    return losses_m.avg
