// How the page's one script and one stylesheet are built into the Python package.
import { defineConfig } from "vite";

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
    rolldownOptions: {
      output: {
        postBanner: "/*! Contains uPlot 1.6.32, Copyright (c) Leon Sorokin, MIT License, https://github.com/leeoniya/uPlot */",
      },
    },
  },
});
