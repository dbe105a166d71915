// How the page's one script and one stylesheet are built into the Python package.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { defineConfig } from "vite";

/** Files beside `src` that decide what is built. */
const SETTINGS = ["package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

/** Returns a checksum of all sources, by which a test sees whether the built files are theirs. */
function sourceChecksum(): string {
  const sources = readdirSync("src", { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`);
  const sum = createHash("sha256");
  for (const file of [...SETTINGS, ...sources].sort()) sum.update(`${file}\0`).update(readFileSync(file)).update("\0");
  return sum.digest("hex");
}

function banner(): string {
  const license = readFileSync("node_modules/uplot/LICENSE", "utf8").trim();
  return `/*! Built by web/ of Headrace from sources with checksum ${sourceChecksum()}.\nContains uPlot:\n${license}\n*/`;
}

export default defineConfig({
  publicDir: false,
  build: {
    target: "es2022",
    outDir: "../src/headrace/report/static",
    emptyOutDir: false, // the folder is the Python package's; only the two files are ours
    sourcemap: false,
    minify: true,
    reportCompressedSize: false,
    lib: {
      entry: "src/main.ts",
      formats: ["iife"], // a classic script, so that a page opened from a disk may run it
      name: "headrace",
      fileName: () => "page.js",
      cssFileName: "page",
    },
    rolldownOptions: { output: { postBanner: banner() } },
  },
});
