// The entry: starts what the page at hand has places for.
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { ChartsOfPage } from "./charts_of_page";
import { ComparisonPage } from "./comparison_page";
import { serveCopyButtons } from "./copy";
import { LivePage } from "./live_page";
import { RunList } from "./run_list";
import { liveAddress } from "./server";
import { addSpanButtons, keepSpanInAddress } from "./span_buttons";

function start(): void {
  addSpanButtons();
  keepSpanInAddress();
  serveCopyButtons();
  const charts = new ChartsOfPage();
  charts.update();
  const address = liveAddress();
  if (address) new LivePage(address, charts);
  const runs = document.getElementById("run-list");
  if (runs) new RunList(runs);
  if (document.body.classList.contains("compare")) new ComparisonPage(charts);
}

start();
