import random

from PIL import Image


def random_view(photo, size):
    side = random.randint(size, photo.width)
    left, top = random.randint(0, photo.width - side), random.randint(0, photo.height - side)
    view = photo.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.NEAREST)
    return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else view


def five_crops(photo, side):
    w, h = photo.size
    middle = ((w - side) // 2, (h - side) // 2)
    for left, top in ((0, 0), (w - side, 0), (0, h - side), (w - side, h - side), middle):
        yield photo.crop((left, top, left + side, top + side))


def scaled_views(photo, size, scales=(1.15, 1.4)):
    """Test-time views: five crops of each scale, down to the input's size."""
    views = []
    for scale in scales:
        side = int(photo.width * scale)
        large = photo.resize((side, side), Image.Resampling.LANCZOS)
        for crop in five_crops(large, int(side * 0.875)):
            views.append(crop.resize((size, size), Image.Resampling.LANCZOS))
    return views
