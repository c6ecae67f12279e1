"use strict";
// settings is the tab with the runs' settings next to each other: those that differ, or all.
const settings = (() => {
  let element = null;
  let isAll = false;
  let filter = "";
  let table = null;
  let note = null;
  let all = null;
  let drawn = ""; // what the table has

  function show(parent) {
    if (!element) {
      all = dom.make("input", { type: "checkbox", id: "settings-all", onchange: (e) => { isAll = e.target.checked; update(); } });
      const find = dom.make("input", { type: "search", id: "settings-find", placeholder: "name or value", oninput: (e) => { filter = e.target.value.toLowerCase(); update(); } });
      note = dom.make("p", { class: "note" });
      table = dom.make("table", { class: "settings" });
      element = dom.make("div", {}, dom.make("div", { class: "toolbar" }, dom.make("label", {}, all, "also those that are equal"), dom.make("label", { for: "settings-find", text: "Find" }), find), note, table);
    }
    parent.replaceChildren(element);
    update();
  }

  function update() {
    if (!element?.isConnected) {
      return;
    }
    const ids = view.drawn();
    const docs = ids.map((id) => store.documentOf(id, "settings"));
    const isOne = ids.length === 1;
    all.parentElement.hidden = isOne;
    if (!ids.length || docs.some((d) => d === undefined)) {
      dom.say(note, ids.length ? "Loading" : "Choose runs in the list to compare their settings.");
      table.replaceChildren();
      drawn = "";
      return;
    }
    const of = docs.map((d) => d?.settings ?? {});
    const names = [...new Set(of.flatMap(Object.keys))].sort();
    const differ = new Set(names.filter((name) => of.some((s) => s[name] !== of[0][name])));
    const isFound = (name) => !filter || name.toLowerCase().includes(filter) || of.some((s) => String(s[name] ?? "").toLowerCase().includes(filter));
    const shown = names.filter((name) => (isAll || isOne || differ.has(name)) && isFound(name));
    const missing = ids.filter((_, i) => docs[i] === null).map((id) => store.nameOf(store.run(id)));
    dom.say(note, [
      isOne ? `${names.length} settings. Choose another run to see what differs.` : `${differ.size} of ${names.length} settings differ.`,
      missing.length ? `The settings of ${missing.join(", ")} could not be read.` : "",
    ].join(" "));
    const now = JSON.stringify([shown, of, ids.map((id) => [view.style(id), store.nameOf(store.run(id))])]);
    if (now === drawn) {
      return; // a selected text stays selected
    }
    drawn = now;
    const head = dom.make("tr", {}, dom.make("th", { scope: "col", text: "setting" }), ...ids.map((id) => dom.make("th", { scope: "col" }, dom.swatch(view.style(id)), dom.clean(store.nameOf(store.run(id)), 120))));
    const rows = shown.map((name) => {
      const cells = ids.map((id, i) => dom.make("td", { text: dom.clean(of[i][name] ?? "not set", 600), class: of[i][name] === undefined ? "unset" : "", "data-run": dom.clean(store.nameOf(store.run(id)), 60) }));
      return dom.make("tr", { class: !isOne && differ.has(name) ? "differs" : "" }, dom.make("th", { scope: "row", text: dom.clean(name, 120) }), ...cells);
    });
    table.replaceChildren(dom.make("thead", {}, head), dom.make("tbody", {}, ...rows));
  }

  return { show, update };
})();
