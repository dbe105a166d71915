// What charts draw: the types of all models, once they are read and found to be complete.
import type { Numbers } from "./numbers";
import type { Span } from "./time_span";

export interface HeatmapBand {
  title: string;
  host: string;
  rows: string[];
  values: Numbers; // rows times columns, 0 to 100 percent busy, 255 unknown
  pooled: "mean" | "min"; // how neighbouring columns become one
}

export interface HeatmapModel {
  kind: "heatmap";
  span: Span;
  limits: Span;
  first: Span | null; // shown before the reader chooses a span
  beganUnixS: number; // NaN: unknown
  columns: number;
  bands: HeatmapBand[];
}

export interface Phase {
  name: string;
  colour: string;
}

export interface StepRow {
  name: string;
  starts: Numbers;
  ends: Numbers;
  counts: Numbers;
  wallMs: Numbers;
  parts: Numbers[]; // of each phase, ms
}

export interface StepsModel {
  kind: "steps";
  span: Span;
  limits: Span;
  first: Span | null; // shown before the reader chooses a span
  phases: Phase[];
  rows: StepRow[];
  topMs: number;
  shades: Span[];
}

export interface BarsModel {
  kind: "bars";
  xTitle: string;
  unit: string;
  rows: string[];
  parts: { name: string; colour: string; values: Numbers; labels: string[] }[];
}

export interface ColumnsModel {
  kind: "columns";
  xTitle: string;
  yTitle: string;
  unit: string;
  ticks: { at: number; text: string }[];
  series: { name: string; colour: string; values: Numbers; texts: string[] }[];
}

export interface FlameNode {
  name: string;
  value: number;
  role: string;
  place: string;
  text: string;
  below: FlameNode[];
}

export interface FlameModel {
  kind: "flame";
  root: FlameNode;
}

export interface Line {
  name: string;
  colour: string;
  dash: number[];
  x: Numbers;
  y: Numbers;
  low: Numbers | null;
  high: Numbers | null;
}

export interface LinesModel {
  kind: "lines";
  limits: Span | null;
  xTitle: string;
  yTitle: string;
  unit: string;
  overTime: boolean;
  series: Line[];
  stacked: boolean;
}

export interface ScatterPoint {
  x: number;
  y: number;
  text: string;
  strong: boolean;
}

export interface ScatterGroup {
  name: string;
  colour: string;
  symbol: string;
  points: ScatterPoint[];
}

export interface ScatterModel {
  kind: "scatter";
  xTitle: string;
  yTitle: string;
  groups: ScatterGroup[];
  front: Span[];
  frontName: string;
  chosen: Span | null;
  chosenName: string;
}

export type Model =
  | HeatmapModel | StepsModel | BarsModel | ColumnsModel | FlameModel | LinesModel | ScatterModel;
