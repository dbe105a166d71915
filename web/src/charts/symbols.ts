// Symbols of points, told apart by their shape as well as by their colour.

type Corner = readonly [number, number];

function corners(count: number, inner: number): Corner[] {
  return Array.from({ length: count }, (_, i) => {
    const angle = (i / count) * 2 * Math.PI - Math.PI / 2;
    const far = i % 2 ? inner : 1;
    return [Math.cos(angle) * far, Math.sin(angle) * far] as const;
  });
}

const ARM = 0.36;
const SHAPES: Record<string, Corner[]> = {
  square: [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
  diamond: [[0, -1.15], [1.15, 0], [0, 1.15], [-1.15, 0]],
  triangle: [[0, -1.1], [1.05, 0.8], [-1.05, 0.8]],
  star: corners(10, 0.45),
  cross: [
    [-ARM, -1], [ARM, -1], [ARM, -ARM], [1, -ARM], [1, ARM], [ARM, ARM],
    [ARM, 1], [-ARM, 1], [-ARM, ARM], [-1, ARM], [-1, -ARM], [-ARM, -ARM],
  ],
};

/** Fills and outlines a symbol around a place; unknown ones are circles. */
export function drawSymbol(context: CanvasRenderingContext2D, name: string, x: number, y: number, size: number): void {
  context.beginPath();
  const shape = Object.hasOwn(SHAPES, name) ? SHAPES[name] : undefined;
  if (shape) for (const [right, down] of shape) context.lineTo(x + right * size, y + down * size);
  else context.arc(x, y, size, 0, 2 * Math.PI);
  context.closePath();
  context.fill();
  context.stroke();
}

/** Returns a small canvas with a symbol, for a legend. */
export function symbolElement(name: string, colour: string): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const ratio = devicePixelRatio;
  canvas.className = "symbol";
  canvas.ariaHidden = "true";
  canvas.width = canvas.height = 16 * ratio;
  const context = canvas.getContext("2d")!;
  context.fillStyle = colour;
  context.strokeStyle = "transparent";
  drawSymbol(context, name, 8 * ratio, 8 * ratio, 6 * ratio);
  return canvas;
}
