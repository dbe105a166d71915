// What a run has cost so far, in the page's head, counting on between the server's answers.
export interface Cost {
  usd: number;
  usd_per_s: number; // 0 once the run has ended
}

const EVERY_MS = 1000;

/** Returns dollars with as many digits as the smallest amount that a second adds needs, four at most. */
export function dollars(usd: number): string {
  const digits = usd >= 100 ? 2 : usd >= 1 ? 3 : 4;
  return `$${usd.toFixed(digits)}`;
}

export class CostTicker {
  private timer = 0;

  constructor(private readonly place: HTMLElement) {}

  show(cost: Cost | null): void {
    clearInterval(this.timer);
    this.place.hidden = cost === null;
    if (cost === null) return;
    const known = performance.now();
    const draw = () => {
      const usd = cost.usd + (cost.usd_per_s * (performance.now() - known)) / 1000;
      this.place.textContent = `cost ${cost.usd_per_s > 0 ? "so far " : ""}${dollars(usd)}`;
    };
    draw();
    if (cost.usd_per_s > 0) this.timer = window.setInterval(draw, EVERY_MS);
  }

  /** Stands still: nobody says, for now or any more, whether the run goes on. */
  freeze(): void {
    clearInterval(this.timer);
  }
}
