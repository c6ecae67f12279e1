"use strict";
// app puts the page together: tabs, the run that the closer tabs are of, the connection, and what is drawn again when
// runs change.
const app = (() => {
  const tabs = [
    { id: "curves", name: "Curves", view: curves },
    { id: "settings", name: "Settings", view: settings },
    { id: "machine", name: "Time and memory", view: machine, isOfOne: true },
    { id: "samples", name: "Samples", view: samples, isOfOne: true },
    { id: "tokens", name: "Rows and tokens", view: tokens, isOfOne: true, isOffered: () => Boolean(store.documentOf(view.current(), "rows")?.rows) },
    { id: "controls", name: "Controls", view: controls, isOfOne: true },
  ];

  const connections = {
    connecting: "Connecting",
    live: "Live",
    lost: "Connection lost. Trying again",
    locked: "The token is needed",
    saved: "Saved page",
  };

  const tabNow = () => tabs.find((t) => t.id === view.tab()) ?? tabs[0];

  const picker = dom.make("select", { id: "current", onchange: (e) => view.look(e.target.value) });
  const pickerRow = dom.make("div", { class: "toolbar of-one" }, dom.make("label", { for: "current", text: "Run" }), picker);
  const body = dom.make("div", { id: "tab-body", role: "tabpanel" });

  function buildTabs() {
    const row = dom.byId("tabs");
    for (const t of tabs) {
      row.append(dom.make("button", { type: "button", role: "tab", id: "tab-" + t.id, "aria-controls": "tab-body", text: t.name, onclick: () => view.setTab(t.id) }));
    }
    row.addEventListener("keydown", (e) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (by) {
        const offered = tabs.filter((t) => !dom.byId("tab-" + t.id).hidden);
        const next = offered[(offered.indexOf(tabNow()) + by + offered.length) % offered.length];
        view.setTab(next.id);
        dom.byId("tab-" + next.id).focus();
        e.preventDefault();
      }
    });
    dom.byId("view").append(pickerRow, body);
  }

  // offer hides the tabs for which the run has nothing.
  function offer() {
    for (const t of tabs.filter((t) => t.isOffered)) {
      dom.byId("tab-" + t.id).hidden = t !== tabNow() && !t.isOffered();
    }
  }

  function showTab() {
    const now = tabNow();
    offer();
    for (const t of tabs) {
      const e = dom.byId("tab-" + t.id);
      e.setAttribute("aria-selected", t === now);
      e.tabIndex = t === now ? 0 : -1;
    }
    body.setAttribute("aria-labelledby", "tab-" + now.id);
    now.view.show(body);
  }

  // showPicker offers the runs for the tabs that are of one run.
  function showPicker() {
    const list = store.runs();
    pickerRow.hidden = !tabNow().isOfOne || list.length < 2;
    dom.keyed(picker, list, (r) => r.id, (r) => dom.make("option", { value: r.id }), (e, r) => dom.say(e, dom.clean(store.nameOf(r), 100)));
    picker.value = view.current();
  }

  function showConnection(state) {
    const e = dom.byId("connection");
    e.dataset.state = state;
    dom.say(e, connections[state] ?? "");
  }

  function showColors() {
    const names = { system: "Auto", light: "Light", dark: "Dark" };
    dom.say(dom.byId("theme"), "◐ " + names[view.colors()]);
    dom.byId("theme").setAttribute("aria-label", `Colors: ${names[view.colors()]}. Press for others.`);
  }

  function showTitle() {
    const drawn = view.drawn().map(store.run);
    const first = drawn[0];
    const loss = first && !units.isMissing(first.summary?.smoothed_loss) ? ` · loss ${first.summary.smoothed_loss.toFixed(3)}` : "";
    document.title = first ? dom.clean(drawn.length === 1 ? store.nameOf(first) + loss : `${drawn.length} runs`, 80) + " · Millrace" : "Millrace";
  }

  function showRuns(list) {
    if (list.length > 3 && !dom.byId("run-list").firstChild && matchMedia("(max-width: 860px)").matches) {
      fold(); // the curves come first on a small screen
    }
    view.meet(list);
    dom.say(dom.byId("version"), store.facts().version ?? "");
    runs.update();
    showPicker();
    showTitle();
    offer();
    if (!body.firstChild) {
      showTab();
    } else {
      tabNow().view.update("list");
    }
  }

  function react(what) {
    if (what === "tab") {
      showPicker();
      showTab();
      return;
    }
    if (what === "runs" || what === "current") {
      runs.update();
      showPicker();
      showTitle();
    }
    if (what === "colors") {
      showColors();
      setTimeout(() => tabNow().view.update(what)); // after the styles
      return;
    }
    tabNow().view.update(what);
  }

  let frame = 0;
  const stale = new Set();

  // drawSoon draws the charts of a run soon, once for all answers that come together.
  function drawSoon(id) {
    stale.add(id);
    frame ||= setTimeout(() => {
      frame = 0;
      const ids = [...stale];
      stale.clear();
      if (ids.some(view.isDrawn)) {
        curves.updateRun(ids.find(view.isDrawn));
      }
    }, 60);
  }

  function fold() {
    const button = dom.byId("side-fold");
    const isOpen = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", isOpen);
    dom.byId("side").classList.toggle("folded", !isOpen);
  }

  function start() {
    buildTabs();
    showColors();
    showConnection(store.connection());
    dom.byId("theme").addEventListener("click", () => view.nextColors());
    dom.byId("help-open").addEventListener("click", keys.help);
    dom.byId("side-fold").addEventListener("click", fold);
    dom.byId("skip").addEventListener("click", (e) => {
      e.preventDefault();
      dom.byId("main").focus();
    });
    store.on("runs", showRuns);
    store.on("columns", drawSoon);
    store.on("documents", (id) => {
      offer();
      tabNow().view.update("documents");
      drawSoon(id);
    });
    store.on("connection", (state) => {
      showConnection(state);
      controls.lock(state === "locked");
      runs.update();
    });
    view.on(react);
    store.refresh();
    store.listen();
  }

  if (document.readyState === "loading") {
    document.addEventListener("DOMContentLoaded", start);
  } else {
    start();
  }

  return { tabs };
})();
