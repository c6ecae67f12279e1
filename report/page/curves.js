"use strict";
// curves is the first tab: the charts of the drawn runs in groups, with the tools that all of them share. Numbers by
// layer and by expert come on request, since they are many.
const curves = (() => {
  const plotOf = new Map(); // from a chart's id to its Plot
  let element = null;
  let tools = {};
  let groups = null;
  let isMoreOpen = false;

  function show(parent) {
    if (!element) {
      build();
    }
    parent.replaceChildren(element);
    update("runs");
  }

  function build() {
    const { windows } = view;
    tools.average = dom.make("input", { type: "range", id: "average", min: 0, max: windows.length - 1, step: 1, oninput: (e) => view.setSmoothing(Number(e.target.value)) });
    tools.averageText = dom.make("output", { for: "average" });
    tools.logX = dom.make("input", { type: "checkbox", id: "log-x", onchange: (e) => view.setLogX(e.target.checked) });
    tools.from = stepField("zoom-from", "from step");
    tools.to = stepField("zoom-to", "to step");
    tools.reset = dom.make("button", { type: "button", class: "small", id: "zoom-reset", text: "All steps", onclick: () => view.setZoom(null) });
    const bar = dom.make("div", { class: "toolbar", role: "group", "aria-label": "Tools of all charts" },
      dom.make("label", { for: "average" }, "Average over ", tools.averageText), tools.average,
      dom.make("label", {}, tools.logX, "log of steps"),
      dom.make("span", { class: "range" }, dom.make("label", { for: "zoom-from", text: "Steps" }), tools.from, dom.make("label", { for: "zoom-to", text: "to" }), tools.to, tools.reset));
    groups = dom.make("div");
    element = dom.make("div", {}, bar, groups);
  }

  function stepField(id, label) {
    return dom.make("input", { type: "number", id, min: 0, step: 1, "aria-label": label, onchange: zoomToFields, onkeydown: (e) => e.key === "Enter" && zoomToFields() });
  }

  function zoomToFields() {
    const all = view.span();
    const from = tools.from.value === "" ? all.from : Number(tools.from.value);
    const to = tools.to.value === "" ? all.to : Number(tools.to.value);
    if (to > from) {
      view.setZoom({ from, to });
    }
  }

  // update draws what changed: "runs" is the list of charts and all else, the others the charts alone.
  function update(what) {
    if (!element?.isConnected) {
      return;
    }
    updateTools();
    if (what === "runs" || what === "list") {
      arrange();
    }
    if (what === "colors" || what === "axes") {
      plotOf.forEach((plot) => plot.destroy());
    }
    plotOf.forEach((plot) => plot.update());
    heat.update(what);
  }

  function updateTools() {
    tools.average.value = view.smoothing();
    const n = view.average();
    const text = n === 1 ? "1 step: none" : `${n} steps`;
    dom.say(tools.averageText, text);
    tools.average.setAttribute("aria-valuetext", text);
    tools.logX.checked = view.isLogX();
    const zoom = view.zoom();
    const all = view.span();
    for (const [field, value, whole] of [[tools.from, zoom && Math.floor(zoom.from), all.from], [tools.to, zoom && Math.ceil(zoom.to), all.to]]) {
      if (document.activeElement !== field) {
        field.value = value ?? "";
      }
      field.placeholder = whole;
    }
    tools.reset.disabled = !zoom;
  }

  // arrange makes the groups and the charts that the drawn runs need, and keeps those that are there.
  function arrange() {
    const runs = view.drawn().map(store.run).filter(Boolean);
    const { drawn, others } = charts.list(runs);
    const parts = charts.groups.map((name) => ({ name, list: drawn.filter((c) => c.group === name) })).filter((p) => p.list.length);
    if (heat.has(runs)) {
      parts.push({ name: "Layers and experts", isHeat: true });
    }
    if (others.length) {
      parts.push({ name: charts.more, list: others, isMore: true });
    }
    dom.keyed(groups, parts, (p) => p.name, (p) => groupOf(p), (e, p) => fill(e, p));
    const needed = new Set(parts.flatMap((p) => (p.isMore && !isMoreOpen ? [] : p.list ?? [])).map((c) => c.id));
    for (const [id, plot] of plotOf) {
      if (!needed.has(id)) {
        plot.remove();
        plotOf.delete(id);
      }
    }
  }

  function groupOf(part) {
    const grid = dom.make("div", { class: part.isHeat ? "" : "grid", "data-body": "" });
    if (part.isMore || part.isHeat) {
      const details = dom.make("details", { class: "group" }, dom.make("summary", {}, dom.make("h2", { text: part.name })), grid);
      details.open = part.isMore && isMoreOpen;
      details.addEventListener("toggle", () => {
        if (part.isMore) {
          isMoreOpen = details.open;
        }
        update("runs");
      });
      return details;
    }
    return dom.make("section", { class: "group", "aria-label": part.name }, dom.make("h2", { text: part.name }), grid);
  }

  function fill(e, part) {
    const grid = e.querySelector("[data-body]");
    if (part.isHeat) {
      heat.show(grid, e.open);
    } else if (!part.isMore || e.open) {
      dom.keyed(grid, part.list, (c) => c.id, (c) => plotFor(c).element);
    } else {
      grid.replaceChildren();
    }
  }

  function plotFor(chart) {
    if (!plotOf.has(chart.id)) {
      plotOf.set(chart.id, new plots.Plot(chart));
    }
    return plotOf.get(chart.id);
  }

  // updateRun draws the charts again that a run is in.
  function updateRun(id) {
    if (element?.isConnected && view.isDrawn(id)) {
      plotOf.forEach((plot) => plot.update());
      heat.update("columns");
    }
  }

  return { show, update, updateRun };
})();
