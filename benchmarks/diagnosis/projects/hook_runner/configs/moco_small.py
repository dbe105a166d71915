work = dict(images=1600, size=48, crop=32)

data = dict(batch_size=16, workers=2)

model = dict(type="QueueEncoder", dim=128, queue_size=16384, device_seconds=0.03)

optimizer = dict(type="SGD", lr=0.03, momentum=0.9)

runner = dict(type="EpochRunner", max_epochs=4)

hooks = [
    dict(type="CosineLrHook", min_lr=1e-4),
    dict(type="QueueHook"),
    dict(type="CheckpointHook", interval=10, keep=2, level=6),
    dict(type="IterTimerHook"),
    dict(type="TextLoggerHook", interval=25),
]
