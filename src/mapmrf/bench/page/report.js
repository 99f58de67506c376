"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const column = Object.fromEntries(data.columns.map((name, place) => [name, place]));
  const $ = (id) => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Hues far apart, in an order in which neighbours differ most; line patterns tell apart what is left.
  const HUES = [212, 20, 145, 330, 42, 268, 180, 0, 100, 300, 235, 62, 195];
  const PATTERNS = ["", "7 3", "2 3"];
  const colour = (run) => {
    const place = data.runs.indexOf(run);
    const light = dark.matches ? 66 : 42;
    return `hsl(${HUES[place % HUES.length]} ${place % 2 ? 55 : 70}% ${light}%)`;
  };
  const pattern = (run) => PATTERNS[Math.floor(data.runs.indexOf(run) / HUES.length) % PATTERNS.length];

  // -- drawing ---------------------------------------------------------------------------------------------------
  const svg = (name, attributes = {}, parent = null, text = null) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const short = (x) => {
    if (x === null || x === undefined) return "";
    const size = Math.abs(x);
    if (size !== 0 && (size < 0.001 || size >= 1e6)) return x.toExponential(1).replace("e+", "e").replace(".0e", "e");
    return String(+x.toPrecision(size >= 1000 ? 7 : 5));
  };
  const linear = (low, high, from, to) => {
    const span = high - low || 1;
    const scale = (x) => from + ((x - low) / span) * (to - from);
    const step = 10 ** Math.floor(Math.log10(span / 4));
    const most = Math.max(2, Math.min(6, Math.abs(to - from) / 70));
    const width = [1, 2, 5, 10, 20, 50].map((k) => k * step).find((s) => span / s <= most) ?? span;
    scale.ticks = [];
    for (let x = Math.ceil(low / width) * width; x <= high + 1e-9 * span; x += width) scale.ticks.push(x);
    return scale;
  };
  const logarithmic = (low, high, from, to) => {
    const a = Math.log10(low), b = Math.max(Math.log10(high), a + 1e-3);
    const scale = (x) => from + ((Math.log10(Math.max(x, low)) - a) / (b - a)) * (to - from);
    scale.ticks = [];
    const every = Math.max(1, Math.ceil((b - a) / Math.max(2, Math.min(8, Math.abs(to - from) / 90))));
    for (let k = Math.ceil(a - 1e-9); k <= b + 1e-9; k += every) scale.ticks.push(10 ** k);
    if (scale.ticks.length < 2) scale.ticks = [low, high];
    return scale;
  };
  const tip = $("tip");
  const hover = (node, text) => {
    node.addEventListener("pointermove", (event) => {
      tip.textContent = typeof text === "function" ? text(event) : text;
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
    });
    node.addEventListener("pointerleave", () => { tip.hidden = true; });
  };
  // Drawn at the width of the page, so that letters have the same size on a phone and on a screen.
  const frame = (place, height, left = 76) => {
    place.replaceChildren();
    const width = Math.max(320, Math.min(1150, place.clientWidth || 900));
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, place);
    return { root, left, right: width - 16, top: 20, bottom: height - 40 };
  };
  const axes = (box, x, y, names, format = short) => {
    const group = svg("g", { class: "axis" }, box.root);
    for (const tick of x.ticks) {
      svg("line", { x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }, group);
      svg("text", { x: x(tick), y: box.bottom + 17, "text-anchor": "middle" }, group, format(tick));
    }
    for (const tick of y.ticks) {
      svg("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }, group);
      svg("text", { x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, group, short(tick));
    }
    svg("text", { x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, group, names[0]);
    if (names[1]) svg("text", { x: box.left, y: box.top - 6, "text-anchor": "start" }, group, names[1]);
  };
  const empty = (place, text) => {
    place.replaceChildren();
    const line = document.createElement("p");
    line.className = "empty";
    line.textContent = text;
    place.append(line);
  };
  const swatch = (tone, dashed = false) => {
    const mark = document.createElement("span");
    mark.className = "swatch";
    mark.style.borderColor = tone;
    mark.style.borderTopStyle = dashed ? "dashed" : "solid";
    return mark;
  };
  const legend = (place, runs, hidden, draw) => {
    const list = document.createElement("div");
    list.className = "legend";
    for (const run of runs) {
      const button = document.createElement("button");
      button.append(swatch(colour(run), Boolean(pattern(run))), run);
      button.setAttribute("aria-pressed", String(!hidden.has(run)));
      button.addEventListener("click", () => {
        if (!hidden.delete(run)) hidden.add(run);
        draw();
      });
      list.append(button);
    }
    place.append(list);
  };
  const path = (points, x, y, steps) => {
    let text = "";
    points.forEach(([a, b], k) => {
      if (k && steps) text += `H${x(a).toFixed(1)}`;
      text += `${k ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`;
    });
    return text;
  };
  const choices = (select, names) => {
    names.forEach((name, place) => select.append(new Option(name, String(place))));
  };
  const hiddenIn = {};
  const hiddenOf = (chart) => (hiddenIn[chart] ||= new Set());

  // -- profiles --------------------------------------------------------------------------------------------------
  const every = { name: "All sets", models: data.sets.flatMap((set) => set.models) };
  const pools = data.sets.length > 1 ? [every, ...data.sets] : data.sets;
  const FLOOR = 1e-6;
  // Step functions that Python has computed: shares over times or ratios of times.
  const drawShares = (id, family, low, name, text) => {
    const draw = () => {
      const place = $(`${id}-chart`);
      const curves = data.curves[+$(`${id}-set`).value][+$(`${id}-target`).value][family];
      const runs = data.runs.filter((run) => curves[run]);
      if (!runs.length) return empty(place, "No run reaches this target.");
      const hidden = hiddenOf(id);
      const box = frame(place, 380);
      const ends = runs.flatMap((run) => curves[run].map((point) => point[0]));
      const most = Math.max(2 * low, ...ends) * 1.05;
      const x = logarithmic(low, most, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
      axes(box, x, y, [name, "share of the models"]);
      for (const run of runs.filter((one) => !hidden.has(one))) {
        const points = [...curves[run], [most, curves[run].at(-1)[1]]];
        const line = svg("path", { class: "line", d: path(points, x, y, true), stroke: colour(run), "stroke-dasharray": pattern(run) }, box.root);
        hover(line, `${run}\n${text(curves[run])}`);
      }
      legend(place, runs, hidden, draw);
    };
    return draw;
  };
  const share = (points, limit) => points.filter((point) => point[0] <= limit).at(-1)?.[1] ?? 0;
  const percentage = (x) => `${(100 * x).toFixed(0)} %`;
  const drawProfile = drawShares("profile", "profile", 1, "times the fastest run",
    (points) => `fastest: ${percentage(share(points, 1))}\nreached at all: ${percentage(points.at(-1)[1])}`);
  const drawTarget = drawShares("target", "target", 1e-3, "seconds",
    (points) => `within 1 s: ${percentage(share(points, 1))}\nreached at all: ${percentage(points.at(-1)[1])}`);
  const drawAccuracy = () => {
    const place = $("accuracy-chart");
    const models = pools[+$("accuracy-set").value].models.filter((model) => model.best !== null);
    const runs = data.runs.filter((run) => models.some((model) => model.runs[run]));
    if (!models.length || !runs.length) return empty(place, "No run has a value here.");
    const hidden = hiddenOf("accuracy");
    const box = frame(place, 380);
    const x = logarithmic(FLOOR, 1, box.left, box.right), y = linear(0, 1, box.bottom, box.top);
    const percent = (tick) => (tick <= FLOOR * 1.01 ? "best" : `${short(100 * tick)} %`);
    axes(box, x, y, ["relative distance to the best known", "share of the models"], percent);
    for (const run of runs.filter((name) => !hidden.has(name))) {
      const losses = models.map((model) => model.runs[run]?.loss ?? Infinity).sort((a, b) => a - b);
      const within = (limit) => losses.filter((loss) => loss <= limit).length / models.length;
      const places = [FLOOR, ...losses.filter((loss) => loss > FLOOR && loss <= 1), 1];
      const points = places.map((limit) => [limit, within(limit)]);
      const line = svg("path", { class: "line", d: path(points, x, y, true), stroke: colour(run), "stroke-dasharray": pattern(run) }, box.root);
      hover(line, `${run}\nat the best: ${(100 * within(FLOOR)).toFixed(0)} %\nwithin 1 %: ${(100 * within(0.01)).toFixed(0)} %`);
    }
    legend(place, runs, hidden, drawAccuracy);
  };

  // -- distance to the best --------------------------------------------------------------------------------------
  const drawLoss = () => {
    const place = $("loss-chart");
    const models = pools[+$("loss-set").value].models.filter((model) => model.best !== null);
    const runs = data.runs.filter((run) => models.some((model) => model.runs[run]));
    if (!models.length || !runs.length) return empty(place, "No run has a value here.");
    const row = 24, left = 22 + 7 * Math.max(...runs.map((run) => run.length));
    const box = frame(place, 54 + row * runs.length, Math.min(left, 170));
    const x = logarithmic(FLOOR, 1, box.left + 26, box.right);
    const y = (k) => box.top + row * (k + 0.5);
    y.ticks = [];
    axes(box, x, y, ["relative distance to the best known", ""], (tick) => (tick <= FLOOR * 1.01 ? "" : `${short(100 * tick)} %`));
    svg("text", { x: box.left + 8, y: box.bottom + 17, "text-anchor": "middle" }, box.root, "best");
    runs.forEach((run, k) => {
      svg("text", { x: box.left - 12, y: y(k) + 4, "text-anchor": "end" }, box.root, run);
      svg("line", { class: "axis", x1: box.left, x2: box.right, y1: y(k), y2: y(k), stroke: "var(--rule)" }, box.root);
      const losses = [];
      models.forEach((model, m) => {
        const mine = model.runs[run];
        if (!mine || mine.loss === null) return;
        losses.push(mine.loss);
        const shift = ((m * 7) % 11 - 5) * 0.9;
        const at = mine.loss <= FLOOR ? box.left + 8 + ((m * 5) % 9 - 4) : x(Math.min(1, mine.loss));
        const dot = svg("circle", { cx: at, cy: y(k) + shift, r: 3.5, fill: colour(run), "fill-opacity": 0.55 }, box.root);
        hover(dot, `${run} on ${model.name}\nvalue ${short(mine.value)}, best known ${short(model.best)}\ndistance ${short(100 * mine.loss)} %, ${mine.status}`);
      });
      losses.sort((a, b) => a - b);
      const median = losses[Math.floor(losses.length / 2)];
      const at = median <= FLOOR ? box.left + 8 : x(Math.min(1, median));
      svg("line", { x1: at, x2: at, y1: y(k) - 9, y2: y(k) + 9, stroke: "var(--ink)", "stroke-width": 2, "pointer-events": "none" }, box.root);
    });
  };

  // -- curves ----------------------------------------------------------------------------------------------------
  const traced = data.sets.flatMap((set) => set.models
    .filter((model) => Object.values(model.runs).some((run) => run.trace.length))
    .map((model) => ({ ...model, label: `${set.name}: ${model.name}` })));
  const series = (trace, name) => trace
    .map((row) => [Math.max(1e-4, row[column.time]), row[column[name]], row[column.phase]])
    .filter((point) => point[1] !== null);
  // Where a method goes over to another of its parts.
  const turns = (points) => points.filter((point, k) => point[2] && point[2] !== points[k - 1]?.[2]);
  const drawAnytime = () => {
    const place = $("anytime-chart"), model = traced[+$("anytime-model").value];
    if (!model) return empty(place, "No run has a trace.");
    const hidden = hiddenOf("anytime"), runs = data.runs.filter((run) => model.runs[run]?.trace.length);
    const shown = runs.filter((run) => !hidden.has(run));
    const lines = [];
    for (const run of shown) {
      const mine = model.runs[run], end = Math.max(1e-4, mine.seconds ?? 1e-4);
      const values = mine.band ? mine.band.map((row) => [row[0], row[2], "", row[1], row[3]]) : series(mine.trace, "value");
      if (values.length && mine.band) lines.push({ run, points: values, kind: "value", band: true });
      else if (values.length) lines.push({ run, points: [...values, [Math.max(end, values.at(-1)[0]), mine.value]], kind: "value" });
      const bounds = $("anytime-bounds").checked ? series(mine.trace, "bound") : [];
      if (bounds.length) lines.push({ run, points: bounds, kind: "bound" });
    }
    if (!lines.length) {
      empty(place, "Every run is hidden.");
      return legend(place, runs, hidden, drawAnytime);
    }
    const box = frame(place, 420);
    const times = lines.flatMap((line) => line.points.map((point) => point[0]));
    const finals = lines.map((line) => line.points.at(-1)[1]).concat(model.best ?? []);
    // Runs far below the rest must not press the others into one line.
    const sorted = [...finals].sort((a, b) => a - b), middle = sorted[Math.floor(sorted.length / 2)];
    const high = sorted.at(-1), least = 1e-3 * Math.max(1, Math.abs(high));
    const low = Math.max(sorted[0], middle - 2 * Math.max(high - middle, least));
    const margin = 0.35 * Math.max(high - low, least);
    const x = logarithmic(Math.min(...times), Math.max(...times), box.left, box.right);
    const y = linear(low - margin, high + margin, box.bottom, box.top);
    axes(box, x, y, ["seconds", "log potential"]);
    const clip = svg("clipPath", { id: "anytime-clip" }, box.root);
    svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top }, clip);
    const inside = svg("g", { "clip-path": "url(#anytime-clip)" }, box.root);
    if (model.best !== null) svg("line", { class: "reference", x1: box.left, x2: box.right, y1: y(model.best), y2: y(model.best) }, inside);
    for (const { run, points } of lines.filter((line) => line.band)) {
      const above = points.map((point) => [point[0], point[4]]), below = points.map((point) => [point[0], point[3]]).reverse();
      const around = path(above, x, y, true) + path(below, x, y, false).replace("M", "L") + "Z";
      hover(svg("path", { class: "band", d: around, fill: colour(run), "fill-opacity": 0.18 }, inside), `${run}: from the 10 % to the 90 % quantile over the seeds`);
    }
    for (const { run, points, kind } of lines) {
      const dash = kind === "bound" ? "5 4" : pattern(run);
      const line = svg("path", { class: "line", d: path(points, x, y, true), stroke: colour(run), "stroke-dasharray": dash }, inside);
      const text = `${run}: ${kind}\nends at ${short(points.at(-1)[1])} after ${short(points.at(-1)[0])} s`;
      hover(line, text);
      if (kind !== "value") continue;
      const begun = turns(points);
      for (const [when, value, phase] of begun.length > 1 ? begun : []) {
        const mark = svg("circle", { class: "turn", cx: x(when), cy: y(value), r: 3.5, stroke: colour(run) }, inside);
        hover(mark, `${run}: begins ${phase}\nat ${short(value)} after ${short(when)} s`);
      }
      hover(svg("circle", { cx: x(points.at(-1)[0]), cy: y(points.at(-1)[1]), r: 4, fill: colour(run) }, inside), text);
    }
    legend(place, runs, hidden, drawAnytime);
  };
  const measured = (trace) => trace.some((row) => ["primal", "sphere", "rho"].every((name) => row[column[name]] != null));
  const spherical = traced.flatMap((model) => Object.entries(model.runs)
    .filter(([, mine]) => measured(mine.trace))
    .map(([run, mine]) => ({ ...model, run, trace: mine.trace, label: `${model.label}, ${run}` })));
  spherical.sort((a, b) => b.run.startsWith("lslp") - a.run.startsWith("lslp"));
  const PARTS = { primal: "consistency", sphere: "sphere", rho: "penalty ρ" };
  const TONES = { primal: 205, sphere: 24, rho: 140 };
  const drawConvergence = () => {
    const place = $("convergence-chart"), model = spherical[+$("convergence-model").value];
    if (!model) return empty(place, "No run of LS-LP, or of a method like it, has a trace.");
    const box = frame(place, 360);
    const tone = (name) => `hsl(${TONES[name]} 65% ${dark.matches ? 66 : 42}%)`;
    const lines = Object.keys(PARTS).map((name) => ({
      name,
      points: model.trace.filter((row) => row[column[name]] > 0).map((row) => [row[column.iterations], row[column[name]]]),
    })).filter((line) => line.points.length);
    const all = lines.flatMap((line) => line.points);
    const x = linear(0, Math.max(...all.map((point) => point[0])), box.left, box.right);
    const y = logarithmic(Math.max(1e-12, Math.min(...all.map((point) => point[1]))), Math.max(...all.map((point) => point[1])), box.bottom, box.top);
    axes(box, x, y, ["iterations", model.run]);
    const names = document.createElement("div");
    names.className = "legend";
    for (const { name, points } of lines) {
      const line = svg("path", { class: "line", d: path(points, x, y, false), stroke: tone(name) }, box.root);
      hover(line, `${PARTS[name]}\nends at ${short(points.at(-1)[1])}`);
      const entry = document.createElement("span");
      entry.append(swatch(tone(name)), PARTS[name]);
      names.append(entry);
    }
    place.append(names);
  };

  // -- sorting ---------------------------------------------------------------------------------------------------
  const sortBy = (table, place, head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[place];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const missing = (value) => value === "" || Number.isNaN(value);
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
      return down ? -order : order;
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  };
  for (const table of document.querySelectorAll("table")) {
    for (const head of table.querySelectorAll("th[data-place]")) {
      head.querySelector("button").addEventListener("click", () => sortBy(table, +head.dataset.place, head));
    }
  }
  const spans = [...document.querySelectorAll("th.group")].map((head) => {
    const below = [...head.closest("table").querySelectorAll("th[data-of]")].filter((one) => one.dataset.of === head.textContent);
    return [head, head.colSpan, below.filter((one) => !one.classList.contains("p")).length];
  });
  const showPaper = (shown) => {
    $("tables").classList.toggle("without-paper", !shown);
    for (const [head, span, own] of spans) if (head.closest("#tables")) head.colSpan = shown ? span : own;
  };

  // -- printing: a table that is too wide for a sheet is printed as several ---------------------------------------
  const SHEET = 130; // letters of a line, with the space between columns
  const widthOf = (table, place) => Math.max(
    ...[...table.tBodies[0].rows].map((row) => row.cells[place].textContent.length * (row.cells[place].className.includes("best") ? 1.12 : 1)),
    table.querySelector(`th[data-place="${place}"]`).textContent.length * 1.12, // bold
  ) + 1.6;
  const partsOf = (table) => {
    const heads = [...table.querySelectorAll("th[data-place]")].sort((a, b) => a.dataset.place - b.dataset.place)
      .filter((head) => !($("tables").classList.contains("without-paper") && head.classList.contains("p") && head.closest("#tables")));
    const keys = heads.filter((head) => head.dataset.key !== undefined).map((head) => +head.dataset.place);
    const blocks = new Map();
    for (const head of heads.filter((one) => one.dataset.key === undefined)) {
      const of = head.dataset.of ?? `#${head.dataset.place}`;
      blocks.set(of, [...(blocks.get(of) ?? []), +head.dataset.place]);
    }
    const size = (places) => places.reduce((sum, place) => sum + widthOf(table, place), 0);
    const parts = [];
    let room = 0;
    for (const block of blocks.values()) {
      if (!parts.length || size(block) > room) {
        parts.push([...keys]);
        room = SHEET - size(keys);
      }
      parts.at(-1).push(...block);
      room -= size(block);
    }
    return parts;
  };
  const excerpt = (table, places) => {
    const copy = table.cloneNode(true), kept = new Set(places);
    copy.removeAttribute("id");
    copy.classList.add("excerpt");
    for (const row of [...copy.tBodies, copy.tFoot].filter(Boolean).flatMap((part) => [...part.rows])) {
      [...row.cells].forEach((cell, place) => { if (!kept.has(place)) cell.remove(); });
    }
    for (const head of copy.querySelectorAll("th[data-place]")) if (!kept.has(+head.dataset.place)) head.remove();
    for (const head of copy.querySelectorAll("th.group")) {
      const count = [...copy.querySelectorAll("th[data-of]")].filter((one) => one.dataset.of === head.textContent).length;
      if (count) head.colSpan = count; else head.remove();
    }
    return copy;
  };
  const beforePrint = () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
    for (const table of document.querySelectorAll(".scroll > table")) {
      const parts = partsOf(table);
      if (parts.length < 2) continue;
      table.after(...parts.map((places) => excerpt(table, places)));
      table.classList.add("too-wide");
    }
  };
  const afterPrint = () => {
    document.querySelectorAll("table.excerpt").forEach((copy) => copy.remove());
    document.querySelectorAll("table.too-wide").forEach((table) => table.classList.remove("too-wide"));
  };

  // -- wiring ----------------------------------------------------------------------------------------------------
  for (const id of ["profile", "target", "accuracy", "loss"]) if ($(`${id}-set`)) choices($(`${id}-set`), pools.map((pool) => pool.name));
  for (const id of ["profile", "target"]) if ($(`${id}-target`)) choices($(`${id}-target`), data.targets);
  if ($("anytime-model")) choices($("anytime-model"), traced.map((model) => model.label));
  if ($("convergence-model")) choices($("convergence-model"), spherical.map((model) => model.label));
  // Begin with the model on which most runs stay below the best.
  const spread = (model) => Object.values(model.runs).filter((run) => run.loss > 1e-3).length;
  const hardest = (models) => models.reduce((best, model, k) => (spread(model) > spread(models[best]) ? k : best), 0);
  if (traced.length && $("anytime-model")) $("anytime-model").value = String(hardest(traced));
  const alike = spherical.filter((model) => model.run === spherical[0].run);
  const longest = alike.reduce((best, model, k) => (model.trace.length > alike[best].trace.length ? k : best), 0);
  if (spherical.length && $("convergence-model")) $("convergence-model").value = String(longest);
  // A section without data is not on the page.
  const draws = { profile: drawProfile, target: drawTarget, accuracy: drawAccuracy, loss: drawLoss, anytime: drawAnytime, convergence: drawConvergence };
  const shown = Object.entries(draws).filter(([id]) => $(`${id}-chart`));
  for (const [id, draw] of shown) {
    for (const control of $(id).querySelectorAll(".controls select, .controls input")) control.addEventListener("change", draw);
  }
  const drawAll = () => { for (const [, draw] of shown) draw(); };
  dark.addEventListener("change", drawAll);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  $("maps-differences")?.addEventListener("change", (event) => {
    $("maps").classList.toggle("show-differences", event.target.checked);
  });
  if (!document.querySelector("#tables th.p")) $("tables-paper").closest(".controls").remove();
  else $("tables-paper").addEventListener("change", (event) => showPaper(event.target.checked));
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  drawAll();
})();
