// A band of the heatmap as pictures, a pixel for each value, which the browser stretches quickly.
import type { HeatmapBand } from "../models";

const VIRIDIS = [
  0x440154, 0x482878, 0x3e4989, 0x31688e, 0x26828e, 0x1f9e89, 0x35b779, 0x6ece58, 0xb5de2b, 0xfde725,
];
const MOST_PERCENT = 100;

/** The colour of each percentage as a little-endian RGBA word; 0 is transparent. */
const COLOURS = Uint32Array.from({ length: 256 }, (_, percent) => {
  if (percent > MOST_PERCENT) return 0;
  const place = (percent / MOST_PERCENT) * (VIRIDIS.length - 1);
  const low = VIRIDIS[Math.floor(place)]!;
  const high = VIRIDIS[Math.ceil(place)]!;
  const mixed = (shift: number) => {
    const from = (low >> shift) & 255;
    return Math.round(from + (((high >> shift) & 255) - from) * (place % 1));
  };
  return ((255 << 24) | (mixed(0) << 16) | (mixed(8) << 8) | mixed(16)) >>> 0;
});

interface Level {
  columns: number;
  values: Uint8Array;
  picture: HTMLCanvasElement | null; // made when first needed
}

function halved(level: Level, rows: number, pooled: HeatmapBand["pooled"]): Level {
  const columns = Math.ceil(level.columns / 2);
  const values = new Uint8Array(rows * columns);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const at = row * level.columns + column * 2;
      const a = level.values[at]!;
      const b = column * 2 + 1 < level.columns ? level.values[at + 1]! : 255;
      const one = a > MOST_PERCENT ? b : b > MOST_PERCENT ? a : pooled === "min" ? Math.min(a, b) : (a + b) >> 1;
      values[row * columns + column] = one;
    }
  }
  return { columns, values, picture: null };
}

function picture(level: Level, rows: number): HTMLCanvasElement {
  if (level.picture) return level.picture;
  const canvas = document.createElement("canvas");
  canvas.width = level.columns;
  canvas.height = rows;
  const image = new ImageData(level.columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = COLOURS[level.values[i]!]!;
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  level.picture = canvas;
  return canvas;
}

export class HeatmapImage {
  private readonly rows: number;
  private readonly levels: Level[];

  constructor(private readonly band: HeatmapBand, columns: number) {
    this.rows = band.rows.length;
    const values = Uint8Array.from(band.values, (value) => (value <= MOST_PERCENT ? Math.round(value) : 255));
    this.levels = [{ columns, values, picture: null }];
  }

  /** Draws the columns between two canvas positions, of which those inside `area` are seen. */
  paint(
    context: CanvasRenderingContext2D,
    area: { left: number; width: number },
    [from, to]: readonly [number, number],
    top: number,
    height: number,
  ): void {
    const left = Math.max(from, area.left);
    const right = Math.min(to, area.left + area.width);
    if (this.rows === 0 || right <= left) return;
    const share = (right - left) / (to - from);
    const level = this.level(right - left, share);
    const begin = ((left - from) / (to - from)) * level.columns;
    context.imageSmoothingEnabled = false;
    context.drawImage(
      picture(level, this.rows), begin, 0, share * level.columns, this.rows, left, top, right - left, height,
    );
  }

  /** Returns the finest level that needs no more columns than there are pixels, so that none is left out. */
  private level(pixels: number, share: number): Level {
    for (let place = 0; ; place++) {
      const last = this.levels[place - 1];
      const level = (this.levels[place] ??= halved(last!, this.rows, this.band.pooled));
      if (level.columns * share <= pixels || level.columns <= 1) return level;
    }
  }
}
