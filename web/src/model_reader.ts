// Reads models from JSON, and says in a sentence what is wrong with one that cannot be drawn.
import type { FlameNode, Line, Model } from "./models";
import { decodeNumbers, type Numbers } from "./numbers";
import { seriesColour } from "./theme";
import type { Span } from "./time_span";

/** A model that cannot be drawn; its message is for people. */
export class ModelFault extends Error {}

class Fields {
  constructor(
    private readonly raw: Record<string, unknown>,
    private readonly where: string,
  ) {}

  static of(raw: unknown, where: string): Fields {
    if (typeof raw !== "object" || raw === null || Array.isArray(raw)) throw new ModelFault(`${where} is missing`);
    return new Fields(raw as Record<string, unknown>, where);
  }

  text(name: string, otherwise = ""): string {
    const value = this.raw[name];
    return typeof value === "string" ? value : otherwise;
  }

  flag(name: string): boolean {
    return this.raw[name] === true;
  }

  has(name: string): boolean {
    return this.raw[name] !== undefined && this.raw[name] !== null;
  }

  number(name: string, otherwise?: number): number {
    const value = this.raw[name];
    if (typeof value === "number") return value;
    if (otherwise === undefined) throw this.fault(name);
    return otherwise;
  }

  items(name: string): unknown[] {
    const value = this.raw[name];
    if (!Array.isArray(value)) throw this.fault(name);
    return value;
  }

  texts(name: string): string[] {
    return this.has(name) ? this.items(name).map(String) : [];
  }

  each<T>(name: string, read: (fields: Fields, place: number) => T): T[] {
    return this.items(name).map((item, place) => read(Fields.of(item, `${name} ${place} of ${this.where}`), place));
  }

  inside(name: string): Fields {
    return Fields.of(this.raw[name], `${name} of ${this.where}`);
  }

  numbers(name: string, count?: number): Numbers {
    return this.readNumbers(this.raw[name], name, count);
  }

  readNumbers(raw: unknown, name: string, count?: number): Numbers {
    const values = decodeNumbers(raw);
    if (!values || (count !== undefined && values.length !== count)) throw this.fault(name);
    return values;
  }

  span(name: string): Span {
    return this.pair(this.raw[name], name);
  }

  pair(raw: unknown, name: string): Span {
    if (!Array.isArray(raw) || typeof raw[0] !== "number" || typeof raw[1] !== "number") throw this.fault(name);
    return [raw[0], raw[1]];
  }

  private fault(name: string): ModelFault {
    return new ModelFault(`"${name}" of ${this.where} is missing or has the wrong length`);
  }
}

function readHeatmap(model: Fields): Model {
  const columns = model.number("columns");
  return {
    kind: "heatmap",
    span: model.span("span"),
    limits: model.span("limits"),
    first: model.has("first_span") ? model.span("first_span") : null,
    beganUnixS: model.number("began_unix_s", NaN),
    columns,
    bands: model.each("bands", (band) => {
      const rows = band.texts("rows");
      return {
        title: band.text("title"),
        host: band.text("host"),
        rows,
        values: band.numbers("values", rows.length * columns),
        pooled: band.text("pooled") === "min" ? "min" : "mean",
      };
    }),
  };
}

function readSteps(model: Fields): Model {
  const phases = model.each("phases", (phase, place) => ({
    name: phase.text("name"),
    colour: phase.text("colour", seriesColour(place)),
  }));
  return {
    kind: "steps",
    span: model.span("span"),
    limits: model.span("limits"),
    first: model.has("first_span") ? model.span("first_span") : null,
    phases,
    rows: model.each("rows", (row) => {
      const starts = row.numbers("start_s");
      const parts = row.items("parts").map((part) => row.readNumbers(part, "parts", starts.length));
      if (parts.length !== phases.length) throw new ModelFault("a rank has more or fewer parts than there are phases");
      return {
        name: row.text("name"),
        starts,
        ends: row.numbers("end_s", starts.length),
        counts: row.numbers("count", starts.length),
        wallMs: row.numbers("wall_ms", starts.length),
        parts,
      };
    }),
    topMs: model.number("top_ms"),
    shades: model.has("shades") ? model.items("shades").map((shade) => model.pair(shade, "shades")) : [],
  };
}

function readBars(model: Fields): Model {
  const rows = model.texts("rows");
  return {
    kind: "bars",
    xTitle: model.text("x_title"),
    unit: model.text("unit"),
    rows,
    parts: model.each("parts", (part, place) => ({
      name: part.text("name"),
      colour: part.text("colour", seriesColour(place)),
      values: part.numbers("values", rows.length),
      labels: part.texts("labels"),
    })),
  };
}

function readColumns(model: Fields): Model {
  return {
    kind: "columns",
    xTitle: model.text("x_title"),
    yTitle: model.text("y_title"),
    unit: model.text("unit"),
    ticks: model.has("ticks")
      ? model.each("ticks", (tick) => ({ at: tick.number("at"), text: tick.text("text") }))
      : [],
    series: model.each("series", (series, place) => ({
      name: series.text("name"),
      colour: series.text("colour", seriesColour(place)),
      values: series.numbers("values"),
      texts: series.texts("texts"),
    })),
  };
}

function readFlameNode(node: Fields): FlameNode {
  return {
    name: node.text("name", "unnamed"),
    value: node.number("value"),
    role: node.text("role", "library"),
    place: node.text("place"),
    text: node.text("text"),
    below: node.has("below") ? node.each("below", readFlameNode) : [],
  };
}

function readLine(line: Fields, place: number): Line {
  const x = line.numbers("x");
  const inBand = (name: string) => (line.has(name) ? line.numbers(name, x.length) : null);
  return {
    name: line.text("name"),
    colour: line.text("colour", seriesColour(place)),
    dash: line.has("dash") ? line.items("dash").filter((length) => typeof length === "number") : [],
    x,
    y: line.numbers("y", x.length),
    low: inBand("low"),
    high: inBand("high"),
  };
}

function readLines(model: Fields): Model {
  const overTime = model.flag("time");
  return {
    kind: "lines",
    limits: overTime && model.has("limits") ? model.span("limits") : null,
    xTitle: model.text("x_title"),
    yTitle: model.text("y_title"),
    unit: model.text("unit"),
    overTime,
    series: model.each("series", readLine),
    stacked: model.flag("stacked"),
  };
}

function readScatter(model: Fields): Model {
  return {
    kind: "scatter",
    xTitle: model.text("x_title"),
    yTitle: model.text("y_title"),
    groups: model.each("groups", (group, place) => ({
      name: group.text("name"),
      colour: group.text("colour", seriesColour(place)),
      symbol: group.text("symbol", "circle"),
      points: group.each("points", (point) => ({
        x: point.number("x"), y: point.number("y"), text: point.text("text"), strong: point.flag("strong"),
      })),
    })),
    front: model.has("front") ? model.items("front").map((place) => model.pair(place, "front")) : [],
    frontName: model.text("front_name"),
    chosen: model.has("chosen") ? model.span("chosen") : null,
    chosenName: model.text("chosen_name"),
  };
}

const READERS: Record<Model["kind"], (model: Fields) => Model> = {
  heatmap: readHeatmap,
  steps: readSteps,
  bars: readBars,
  columns: readColumns,
  flame: (model) => ({ kind: "flame", root: readFlameNode(model.inside("root")) }),
  lines: readLines,
  scatter: readScatter,
};

/** Returns the model that JSON holds. Throws a ModelFault if it cannot be drawn. */
export function readModel(raw: unknown): Model {
  const fields = Fields.of(raw, "the chart's data");
  const kind = fields.text("kind");
  if (!Object.hasOwn(READERS, kind)) throw new ModelFault("this page does not know the chart's kind");
  return READERS[kind as Model["kind"]](fields);
}
