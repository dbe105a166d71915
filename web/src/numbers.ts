// Lists of numbers as models hold them: plain JSON lists, or typed arrays in base64.

export type Numbers = Float64Array | Float32Array | Int32Array | Uint8Array;

const READERS = {
  float64: (bytes: ArrayBuffer) => new Float64Array(bytes),
  float32: (bytes: ArrayBuffer) => new Float32Array(bytes),
  int32: (bytes: ArrayBuffer) => new Int32Array(bytes),
  uint8: (bytes: ArrayBuffer) => new Uint8Array(bytes),
};

function isKnownType(name: unknown): name is keyof typeof READERS {
  return typeof name === "string" && Object.hasOwn(READERS, name);
}

/** Returns the numbers; unknown ones (null in a list) become NaN. Null if they are none. */
export function decodeNumbers(raw: unknown): Numbers | null {
  if (Array.isArray(raw)) {
    return Float64Array.from(raw, (value: unknown) => (typeof value === "number" ? value : NaN));
  }
  if (typeof raw !== "object" || raw === null) return null;
  const { dtype, data } = raw as { dtype?: unknown; data?: unknown };
  if (!isKnownType(dtype) || typeof data !== "string") return null;
  try {
    // Every machine with a current browser is little-endian, as the data is.
    const text = atob(data);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return READERS[dtype](bytes.buffer);
  } catch {
    return null;
  }
}

/** Returns the place of the last value at or below `wanted` in ascending values, -1 if none is. */
export function placeBelow(values: ArrayLike<number>, wanted: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle]! <= wanted) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Returns the place of the value that is nearest to `wanted` in ascending values, -1 if there is none. */
export function placeNearest(values: ArrayLike<number>, wanted: number): number {
  const below = placeBelow(values, wanted);
  if (below < 0) return values.length ? 0 : -1;
  return below + 1 < values.length && values[below + 1]! - wanted < wanted - values[below]! ? below + 1 : below;
}
