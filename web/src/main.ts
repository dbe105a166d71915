// The entry: starts what the page at hand has places for.
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { ChartsOfPage } from "./charts_of_page";
import { serveCopyButtons } from "./copy";
import { EventStream } from "./event_stream";
import { LivePage } from "./live_page";
import { RunList } from "./run_list";
import { liveAddress } from "./server";
import { addSpanButtons } from "./span_buttons";
import { timeSpan } from "./time_span";

function start(): void {
  addSpanButtons();
  serveCopyButtons();
  const charts = new ChartsOfPage();
  charts.update();
  const address = liveAddress();
  if (address) new LivePage(address, charts);
  const runs = document.getElementById("run-list");
  if (runs) new RunList(runs);
  // One stream for all runs of a comparison: a browser keeps few connections to a server.
  if (document.body.classList.contains("compare") && document.querySelector(".chart:not([data-model])")) {
    const refresh = () => timeSpan.touchesEnd && charts.refresh();
    new EventStream("/api/events", { runs: refresh }, refresh);
  }
}

start();
