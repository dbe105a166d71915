// All charts of a page: made for places that come, removed with places that go, and drawn together.
import { ChartPlace } from "./chart_place";
import { watchTheme } from "./theme";
import { timeSpan } from "./time_span";

export class ChartsOfPage {
  private readonly charts = new Map<HTMLElement, ChartPlace>();

  constructor() {
    timeSpan.onChange((reason) => this.each((chart) => chart.followSpan(reason)));
    watchTheme(
      () => this.each((chart) => chart.redraw()),
      (on) => this.each((chart) => chart.print(on)),
    );
  }

  /** Takes up the chart places that are in the page now, and lets go of others. */
  update(): void {
    for (const [place, chart] of this.charts) {
      if (place.isConnected) continue;
      chart.remove();
      this.charts.delete(place);
    }
    for (const place of document.querySelectorAll<HTMLElement>('.chart[id^="chart-"]')) {
      if (!this.charts.has(place)) this.charts.set(place, new ChartPlace(place));
    }
  }

  /** Asks the server again for what is shown, if there is one. */
  refresh(): void {
    this.each((chart) => chart.isLive && chart.refresh());
  }

  /** Keeps what is shown from now on, as a page without a server does. */
  freeze(): void {
    this.each((chart) => chart.freeze());
  }

  private each(act: (chart: ChartPlace) => void): void {
    for (const chart of this.charts.values()) act(chart);
  }
}
