"use strict";
// heat draws numbers that each layer has, as a map: steps from left to right, layers from top to bottom, the value as
// brightness. It is of the run that is looked at, and its columns are fetched when it is opened. The numbers of a layer
// that the user chooses are curves, of all drawn runs.
const heat = (() => {
  const mostLayers = 160;
  const stripe = 12; // pixels of a layer, at most
  // Brightness rises evenly from dark blue to yellow, also for people who tell few colors apart (the map "cividis":
  // Nunez, Anderton and Renslow 2018, https://doi.org/10.1371/journal.pone.0199239).
  const scale = [[0, 34, 78], [34, 56, 108], [74, 80, 109], [105, 104, 112], [138, 129, 120], [174, 156, 114], [212, 186, 97], [254, 232, 56]];

  const kinds = [
    { title: "Gradient norm by layer", of: /^layers\/(.+)\/grad_norm$/, isLog: true },
    { title: "Update to weight by layer", of: /^layers\/(.+)\/update_ratio$/, isLog: true, isHeld: true },
    { title: "Norm of weights by layer", of: /^layers\/(.+)\/weight_norm$/, isHeld: true },
    { title: "Busiest expert by layer", of: /^experts\/(.+)\/busiest$/, isPercent: true },
    { title: "Entropy of experts' loads by layer", of: /^experts\/(.+)\/entropy$/ },
    { title: "Experts without a token by layer", of: /^experts\/(.+)\/unused$/ },
  ];

  let maps = [];
  let parent = null;
  let isOpen = false;
  const picker = dom.make("p", { class: "note" });
  const chooser = dom.make("select", { id: "layer", onchange: () => choose(chooser.value) });
  const curvesGrid = dom.make("div", { class: "grid" });
  const plotOf = new Map(); // of the chosen layer, from a column to its Plot

  // layersOf lists the layers of one kind, in the order of the model.
  function layersOf(run, kind) {
    const all = run.columns.map((column) => ({ column, match: kind.of.exec(column) })).filter((l) => l.match);
    const layers = all.map((l) => ({ column: l.column, name: l.match[1] }));
    const place = (name) => (name === "embedding" ? -1 : name === "head" ? 1 : 0);
    layers.sort((a, b) => place(a.name) - place(b.name) || a.name.localeCompare(b.name, "en", { numeric: true }));
    return layers.slice(0, mostLayers);
  }

  const has = (runs) => runs.some((r) => kinds.some((k) => r.columns.some((c) => k.of.test(c))));

  function show(grid, open) {
    parent = grid;
    isOpen = open;
    if (!open) {
      maps = [];
      choose("");
      grid.replaceChildren();
      return;
    }
    if (!maps.length) {
      maps = kinds.map((kind) => mapOf(kind));
      grid.replaceChildren(picker, ...maps.map((m) => m.element),
        dom.make("p", { class: "toolbar" }, dom.make("label", { for: "layer", text: "Curves of layer" }), chooser), curvesGrid);
    }
  }

  function mapOf(kind) {
    const canvas = dom.make("canvas", { role: "img" });
    const text = dom.make("p", { class: "note", "aria-live": "off" });
    const key = dom.make("small");
    const element = dom.make("article", { class: "chart heat" }, dom.make("header", {}, dom.make("h3", { text: kind.title }), key), canvas, text);
    const m = { kind, canvas, text, key, element };
    canvas.addEventListener("pointermove", (e) => tell(m, e));
    return m;
  }

  function update() {
    if (!isOpen || !parent?.isConnected) {
      return;
    }
    const drawn = view.drawn();
    const run = store.run(drawn.includes(view.current()) && has([store.run(view.current())]) ? view.current() : drawn.find((id) => has([store.run(id)])));
    if (!run) {
      return;
    }
    dom.say(picker, `Of ${store.nameOf(run)}. Brighter is more.`);
    maps.forEach((m) => draw(m, run));
    offer([...new Set(kinds.flatMap((kind) => layersOf(run, kind).map((l) => l.name)))]);
    arrange(drawn.map(store.run));
  }

  // offer lists the layers that curves can be drawn of.
  function offer(names) {
    if ([...chooser.options].slice(1).map((o) => o.value).join() !== names.join()) {
      const chosen = chooser.value;
      chooser.replaceChildren(dom.make("option", { value: "", text: "none" }), ...names.map((name) => dom.make("option", { value: name, text: name })));
      chooser.value = names.includes(chosen) ? chosen : "";
    }
  }

  function choose(name) {
    chooser.value = name;
    update();
    if (!name) {
      arrange([]);
    }
  }

  // arrange makes a chart of each number that runs have of the chosen layer, and keeps those that are there.
  function arrange(runs) {
    const wanted = new Map();
    for (const kind of chooser.value ? kinds : []) {
      const column = runs.flatMap((r) => r?.columns ?? []).find((c) => kind.of.exec(c)?.[1] === chooser.value);
      if (column) {
        wanted.set(column, kind);
      }
    }
    for (const [column, plot] of plotOf) {
      if (!wanted.has(column)) {
        plot.remove();
        plotOf.delete(column);
      }
    }
    for (const [column, kind] of wanted) {
      if (!plotOf.has(column)) {
        const title = kind.title.replace("by layer", "of " + chooser.value);
        const line = { column, name: "", isLinked: true };
        plotOf.set(column, new plots.Plot({ id: column, title, unit: "", log: kind.isLog, times: kind.isPercent ? 100 : 1, lines: () => [line] }));
        curvesGrid.append(plotOf.get(column).element);
      }
      plotOf.get(column).update();
    }
  }

  function draw(m, run) {
    m.layers = layersOf(run, m.kind);
    m.element.hidden = !m.layers.length;
    m.rows = m.layers.map((l) => known(store.column(run.id, l.column), m.kind.isHeld));
    const values = m.rows.flatMap((c) => (c ? c.mean : [])).filter((v) => v !== null && (!m.kind.isLog || v > 0));
    const width = Math.max(200, m.element.clientWidth - 24);
    const row = Math.max(3, Math.min(stripe, Math.floor(320 / Math.max(1, m.layers.length))));
    const unit = devicePixelRatio;
    m.canvas.width = width * unit;
    m.canvas.height = row * m.layers.length * unit;
    m.canvas.style.width = width + "px";
    m.canvas.style.height = row * m.layers.length + "px";
    if (!values.length) {
      dom.say(m.text, m.layers.length ? "Loading" : "");
      return;
    }
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    dom.say(m.key, `${write(m, low)} to ${write(m, high)}`);
    m.canvas.setAttribute("aria-label", `${m.kind.title}: ${m.layers.length} layers, from ${write(m, low)} to ${write(m, high)}`);
    const place = m.kind.isLog ? (v) => Math.log(v / low) / Math.log(high / low || 1) : (v) => (v - low) / (high - low);
    const ctx = m.canvas.getContext("2d");
    ctx.clearRect(0, 0, m.canvas.width, m.canvas.height);
    const [from, to] = view.range();
    m.rows.forEach((c, i) => {
      for (let k = 0; c && k < c.steps.length; k++) {
        const begin = Math.max(from, k ? c.steps[k - 1] : c.steps[k] - 1);
        const end = Math.min(to, c.steps[k]);
        if (end > begin && c.mean[k] !== null && (!m.kind.isLog || c.mean[k] > 0)) {
          ctx.fillStyle = colorAt(high > low ? place(c.mean[k]) : 0.5);
          const x = ((begin - from) / (to - from)) * m.canvas.width;
          ctx.fillRect(x, i * row * unit, ((end - begin) / (to - from)) * m.canvas.width + 0.6, row * unit - (row > 5 ? unit : 0));
        }
      }
    });
    if (!m.isTold) {
      dom.say(m.text, `${m.layers[0].name} (top) to ${m.layers.at(-1).name} (bottom), steps ${units.whole(from)} to ${units.whole(to)}`);
    }
  }

  // known has the steps of a column and its values. One that only steps after a save have holds since the one before.
  function known(c, isHeld) {
    const all = c?.isSparse ? { steps: c.at, mean: c.values } : c;
    const has = all && isHeld ? all.mean.map((v) => v !== null) : [];
    return has.includes(false) ? { steps: all.steps.filter((_, i) => has[i]), mean: all.mean.filter((_, i) => has[i]) } : all;
  }

  const write = (m, v) => (m.kind.isPercent ? units.percent(v) : units.significant(v, 3));

  function colorAt(share) {
    const at = Math.min(scale.length - 1.001, Math.max(0, share * (scale.length - 1)));
    const i = Math.floor(at);
    const mix = (k) => Math.round(scale[i][k] + (at - i) * (scale[i + 1][k] - scale[i][k]));
    return `rgb(${mix(0)}, ${mix(1)}, ${mix(2)})`;
  }

  // tell says the value where the pointer is.
  function tell(m, e) {
    const box = m.canvas.getBoundingClientRect();
    const [from, to] = view.range();
    const step = from + ((e.clientX - box.left) / box.width) * (to - from);
    const i = Math.min(m.layers.length - 1, Math.max(0, Math.floor(((e.clientY - box.top) / box.height) * m.layers.length)));
    const c = m.rows[i];
    if (c) {
      const k = c.steps.findIndex((s) => s >= step);
      m.isTold = true;
      dom.say(m.text, `${m.layers[i].name}, step ${units.whole(c.steps[k] ?? c.steps.at(-1))}: ${write(m, c.mean[k] ?? c.mean.at(-1))}`);
    }
  }

  return { has, show, update };
})();
