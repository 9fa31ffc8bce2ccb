// The package that `npm pack` makes: everything it needs, nothing else, and types for every export.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as tidegate from "../tidegate-js/tidegate.js";

const home = fileURLToPath(new URL("../tidegate-js/", import.meta.url));

test("every export is declared, and every declared value is exported", () => {
  const types = readFileSync(`${home}tidegate.d.ts`, "utf8");
  const declared = [...types.matchAll(/^export (?:function|class|const) (\w+)/gm)].map(([, name]) => name);
  assert.deepEqual(declared.sort(), Object.keys(tidegate).sort());
});

test("npm pack holds the module, its parts, types and README", { skip: !hasNpm() }, () => {
  const [{ files }] = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json"], { cwd: home, encoding: "utf8" }));
  const names = files.map(({ path }) => path).sort();
  const parts = ["advice", "clouds", "cooldown", "durations", "events", "fetch", "structured"].map((part) => `lib/${part}.js`);
  assert.deepEqual(names, ["README.md", ...parts, "package.json", "tidegate.d.ts", "tidegate.js"].sort());
});

function hasNpm() {
  try {
    execFileSync("npm", ["--version"], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}
