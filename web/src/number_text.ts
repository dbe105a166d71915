// Numbers in words: digits that fit their size, with thousands separated.

export const UNKNOWN = "unknown";

const MOST_DIGITS_BELOW = 1e16; // numbers from here on are written by powers of ten

/** Returns a number with about three digits, such as 0.123, 12.3 or 12,345. */
export function numberText(value: number): string {
  if (!Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= MOST_DIGITS_BELOW)) return value.toExponential(1);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Returns a number with its unit; a percent sign stands close to it. */
export function withUnit(value: number, unit: string): string {
  if (!Number.isFinite(value) || unit === "") return numberText(value);
  return `${numberText(value)}${unit === "%" ? "" : " "}${unit}`;
}

/** Returns how long something took, in the unit that fits. */
export function durationText(seconds: number): string {
  if (!Number.isFinite(seconds)) return UNKNOWN;
  if (seconds < 1) return `${numberText(seconds * 1e3)} ms`;
  if (seconds < 120) return `${numberText(seconds)} s`;
  if (seconds < 7200) return `${numberText(seconds / 60)} min`;
  return seconds < 172_800 ? `${numberText(seconds / 3600)} h` : `${numberText(seconds / 86_400)} days`;
}

export function bytesText(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (bytes >= 1024 && place < units.length - 1) {
    bytes /= 1024;
    place++;
  }
  return `${numberText(bytes)} ${units[place]}`;
}

/** Returns a moment as a date and time of day in UTC, so named. */
export function momentText(unixSeconds: number): string {
  const moment = new Date(unixSeconds * 1e3);
  if (Number.isNaN(moment.getTime())) return UNKNOWN;
  return `${moment.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Returns a moment's time of day in UTC, so named. */
export function clockText(unixSeconds: number): string {
  return momentText(unixSeconds).slice(-12);
}

/** Returns places for marks on an axis, at most about `most`, in steps of 1, 2 or 5. */
export function roundTicks(low: number, high: number, most: number): number[] {
  const length = high - low;
  if (!(length > 0)) return [low];
  const rough = length / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => (first + i) * step);
}

/** Returns the texts of an axis's marks, all with as many decimals as their step needs. */
export function tickTexts(ticks: readonly number[]): string[] {
  const step = ticks.length > 1 ? Math.abs(ticks[1]! - ticks[0]!) : Math.abs(ticks[0] ?? 1);
  if (step > 0 && (step < 1e-6 || step >= MOST_DIGITS_BELOW)) return ticks.map((tick) => tick.toExponential(1));
  const digits = step > 0 ? Math.min(Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), 6) : 0;
  const format = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return ticks.map((tick) => (tick === 0 ? "0" : tick.toLocaleString("en", format)));
}
