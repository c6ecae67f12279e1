"use strict";
// tokens is the tab with the rows that the model finds hardest, and the tokens of any row: how much each one cost, and
// which ones the model did not learn from. A pair has both of its completions.
const tokens = (() => {
  const levels = [0.5, 1, 2, 3, 4.5, 6.5, 9]; // nats; the colors --l0 to --l7 are below, between and above them
  const mostTokens = 3000; // that are shown before "more"
  const pageRows = 50;
  let element = null;
  const parts = {};
  let rows = null; // of the run; null: not known
  let shownRows = pageRows;
  let of = "";
  let isLoading = false;

  function show(parent) {
    if (!element) {
      build();
    }
    parent.replaceChildren(element);
    update();
  }

  function build() {
    parts.index = dom.make("input", { type: "number", id: "row-index", min: 0, step: 1, onkeydown: (e) => e.key === "Enter" && open(parts.index.value) });
    const go = dom.make("button", { type: "button", class: "small", text: "Show", onclick: () => open(parts.index.value) });
    parts.note = dom.make("p", { class: "note" });
    parts.table = dom.make("table", { class: "rows" });
    parts.more = dom.make("button", { type: "button", class: "small", text: "More rows", onclick: () => { shownRows += pageRows; drawRows(); } });
    parts.row = dom.make("section", { class: "row", "aria-label": "Tokens of a row" });
    element = dom.make("div", {}, dom.make("div", { class: "toolbar" }, dom.make("label", { for: "row-index", text: "Row number" }), parts.index, go), parts.row, parts.note, parts.table, parts.more);
  }

  // update fetches the list when the tab opens and for another run, and not with every step.
  async function update(what) {
    const id = view.current();
    if (!element?.isConnected || !store.run(id) || isLoading || (what === "list" && of === id)) {
      return;
    }
    if (of !== id) {
      of = id;
      rows = null;
      shownRows = pageRows;
      parts.table.replaceChildren();
      parts.row.replaceChildren();
    }
    isLoading = true;
    try {
      const doc = await store.get(`${store.urlOf(id)}/rows`);
      rows = doc.rows ?? null;
      dom.say(parts.note, rows ? "The rows with the greatest loss first." : "There is no list of this run's rows by loss yet. Any row can be opened by its number.");
    } catch (error) {
      dom.say(parts.note, `The rows did not arrive: ${error.message}`);
    }
    isLoading = false;
    if (of !== view.current()) {
      update();
    } else {
      drawRows();
    }
  }

  function drawRows() {
    parts.more.hidden = !(rows?.length > shownRows);
    parts.table.hidden = !rows?.length;
    if (!rows?.length) {
      return;
    }
    if (!parts.table.tHead) {
      parts.table.append(dom.make("thead", {}, dom.make("tr", {}, ...["row", "loss", "tokens", "source"].map((t) => dom.make("th", { scope: "col", text: t })))), dom.make("tbody"));
    }
    dom.keyed(parts.table.tBodies[0], rows.slice(0, shownRows), (r) => r.index, (r) => dom.make("tr", {},
      dom.make("td", {}, dom.make("button", { type: "button", class: "link", text: r.index, "aria-label": `Show the tokens of row ${r.index}`, onclick: () => open(r.index) })),
      dom.make("td"), dom.make("td"), dom.make("td")), (e, r) => {
      dom.say(e.cells[1], units.loss(r.loss));
      dom.say(e.cells[2], units.whole(r.tokens));
      dom.say(e.cells[3], dom.clean(r.source, 200));
    });
  }

  // open shows the tokens of a row.
  async function open(index) {
    if (index === "" || !(Number(index) >= 0)) {
      return;
    }
    const id = of;
    parts.index.value = index;
    parts.row.replaceChildren(dom.make("p", { class: "note", text: "Loading" }));
    let doc;
    try {
      doc = await store.get(`${store.urlOf(id)}/rows/${Math.floor(Number(index))}`);
    } catch (error) {
      parts.row.replaceChildren(dom.make("p", { class: "note", text: `Row ${index} did not arrive: ${error.message}` }));
      return;
    }
    if (id === of) {
      const title = dom.make("h3", { text: `Row ${units.whole(Number(index))}`, tabindex: "-1" });
      parts.row.replaceChildren(dom.make("div", { class: "chart wide" }, dom.make("header", {}, title), legend(), dom.make("div", { class: "sides" }, ...(doc.sides ?? []).map(sideOf))));
      title.focus({ preventScroll: false });
    }
  }

  function legend() {
    const steps = ["0", ...levels.map((l) => units.significant(l, 2))].map((text, i) => dom.make("span", { class: "token l" + i, text: (i ? "≥ " : "") + text }));
    return dom.make("p", { class: "note scale" }, "Loss in nats: ", ...steps, " ", dom.make("span", { class: "token masked", text: "not learned from" }));
  }

  function sideOf(side) {
    const all = side.tokens ?? [];
    const losses = all.filter((t) => t.learned && !units.isMissing(t.loss)).map((t) => t.loss);
    const mean = losses.length ? losses.reduce((a, b) => a + b, 0) / losses.length : null;
    const told = dom.make("p", { class: "note told", text: "Point at a token, or use left and right, to read its loss." });
    const body = dom.make("p", { class: "tokens", tabindex: "0", role: "group", dir: "auto", "aria-label": `Tokens of ${side.name}` });
    let shown = 0;
    let at = -1;
    const more = dom.make("button", { type: "button", class: "small", text: "More tokens", onclick: add });
    function add() {
      const next = all.slice(shown, shown + mostTokens);
      body.append(...next.flatMap((t, i) => elementsOf(t, shown + i)));
      shown += next.length;
      more.hidden = shown >= all.length;
    }
    function tell(i) {
      body.querySelector(".here")?.classList.remove("here");
      at = i;
      body.querySelector(`[data-at="${i}"]`)?.classList.add("here");
      const t = all[i];
      const what = !t.learned ? "not learned from" : `loss ${units.loss(t.loss)}, probability ${units.percent(t.loss === null ? null : Math.exp(-t.loss), 3)}`;
      dom.say(told, `token ${units.whole(i)} of ${units.whole(all.length)}: ${JSON.stringify(dom.clean(t.text, 100))}, id ${t.id}, ${what}`);
    }
    body.addEventListener("pointerover", (e) => e.target.dataset.at && tell(Number(e.target.dataset.at)));
    body.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (by && all.length) {
        tell(Math.min(Math.max(0, at + by), Math.min(shown, all.length) - 1));
        dom.announce(told.textContent);
        e.preventDefault();
      }
    });
    add();
    const head = `${side.name}: ${units.whole(all.length)} tokens, ${units.whole(losses.length)} learned from` + (mean === null ? "" : `, mean loss ${units.loss(mean)}`);
    return dom.make("div", {}, dom.make("h4", { text: dom.clean(head, 200) }), body, told, more);
  }

  // elementsOf shows a token. A line break stays visible as a sign, and breaks the line.
  function elementsOf(t, i) {
    const text = dom.clean(t.text, 400).replaceAll("\n", "↵").replaceAll("\t", "⇥");
    const level = units.isMissing(t.loss) ? "" : " l" + levels.filter((l) => t.loss >= l).length;
    const e = dom.make("span", { class: "token" + (t.learned ? level : " masked"), text: text || "∅", "data-at": i });
    return String(t.text ?? "").endsWith("\n") ? [e, document.createElement("br")] : [e];
  }

  return { show, update };
})();
