def adjust_learning_rate(optimizer, epoch, step, len_epoch, base_lr):
    factor = epoch // 30
    lr = base_lr * (0.1 ** factor)
    if epoch < 1:
        lr = lr * float(1 + step) / len_epoch
    for group in optimizer.param_groups:
        group["lr"] = lr


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean().item() * 100.0
