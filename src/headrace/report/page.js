"use strict";
// Draws every chart from the data beside it, in the colours of a light or a dark page.
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return printing
      ? { text: "#000000", quiet: "#444444", line: "#cccccc", card: "#ffffff" }
      : { text: read("--text"), quiet: read("--quiet"), line: read("--line"), card: read("--card") };
  }

  function themed(layout) {
    const c = colours();
    const change = { "font.color": c.text, "hoverlabel.bgcolor": c.card, "hoverlabel.font.color": c.text,
                     "hoverlabel.bordercolor": c.quiet };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        change[key + ".gridcolor"] = c.line;
        change[key + ".linecolor"] = c.quiet;
        change[key + ".tickcolor"] = c.quiet;
      }
    }
    return change;
  }

  function applied(layout, change) {
    for (const [path, value] of Object.entries(change)) {
      const keys = path.split(".");
      const last = keys.pop();
      let at = layout;
      for (const key of keys) { at = at[key] = at[key] || {}; }
      at[last] = value;
    }
    return layout;
  }

  // Called again for a section that was replaced.
  function draw(within) {
    for (const place of within.querySelectorAll("[data-figure]")) {
      const figure = JSON.parse(document.getElementById(place.dataset.figure).textContent);
      const layout = applied(figure.layout, themed(figure.layout));
      Plotly.newPlot(place, figure.data, layout, {
        responsive: true, displayModeBar: false,  // dragging zooms, a double click goes back
      });
    }
  }

  function recolour() {
    for (const place of document.querySelectorAll("[data-figure]")) {
      if (place.layout) { Plotly.relayout(place, themed(place.layout)); }
    }
  }

  function print(on) {
    printing = on;
    recolour();
    for (const place of document.querySelectorAll("[data-figure]")) { Plotly.Plots.resize(place); }
  }

  draw(document);
  dark.addEventListener("change", recolour);
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  window.headraceDraw = draw;
})();
