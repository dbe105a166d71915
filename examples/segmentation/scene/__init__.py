"""What a rendered street scene is made of; `streets.py` writes scenes in Cityscapes' layout."""
