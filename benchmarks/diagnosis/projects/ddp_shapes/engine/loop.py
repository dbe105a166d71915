import torch.nn.functional as F

from engine.dist import main_only


@main_only
def say(*args):
    print(*args, flush=True)


def train_one_epoch(model, loader, optimizer, epoch, panels, step):
    model.train()
    samples = 0
    for images, labels in loader:
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        samples += len(labels)
        step += 1
        panels.add(step, images, labels, logits)
    say(f"epoch {epoch}: loss {loss.item():.4f}")
    return samples, step
