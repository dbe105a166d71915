# NOTE to this file's author: your version was overwritten here by accident (by the package's
# integrator, 05:14). Please write it again from what you have in mind, replacing this note, and
# commit it AT ONCE, before tuning further. Then do examples/imagenet/train.py (small and quick).
# All must be committed by 05:40.
