import os

from PIL import Image, ImageDraw

from engine.dist import main_only


class PanelWriter:
    """A contact sheet of the batch with the predictions, as PNG."""

    def __init__(self, folder, every, tile=128, columns=4, keep=16):
        self.folder, self.every = folder, every
        self.tile, self.columns, self.keep = tile, columns, keep

    @main_only
    def add(self, step, images, labels, logits):
        if self.every <= 0 or step % self.every:
            return
        sheet = self.draw(images, labels, logits.detach().argmax(1))
        sheet.save(os.path.join(self.folder, f"panel_{step % self.keep:02d}.png"))

    def draw(self, images, labels, predicted):
        pixels = images.mul(255).byte().permute(0, 2, 3, 1).numpy()
        rows = -(-len(pixels) // self.columns)
        sheet = Image.new("RGB", (self.columns * self.tile, rows * self.tile))
        pen = ImageDraw.Draw(sheet)
        for k, (array, label, guess) in enumerate(zip(pixels, labels.tolist(), predicted.tolist())):
            at = (k % self.columns * self.tile, k // self.columns * self.tile)
            sheet.paste(Image.fromarray(array).resize((self.tile, self.tile), Image.Resampling.LANCZOS), at)
            pen.text((at[0] + 4, at[1] + 4), f"{label}/{guess}", fill="lime" if label == guess else "red")
        return sheet
