"use strict";
// view has what the user chose: which runs are drawn and in which color, the run that is looked at closely, the steps
// that are zoomed to, smoothing, axes, the tab and the colors of the page. The address keeps it, so a page that is
// loaded again or sent to a colleague shows the same.
const view = (() => {
  const colors = 8; // --c0 to --c7 in app.css
  const dashes = [[], [9, 4], [3, 3], [12, 3, 3, 3], [6, 2], [2, 5], [14, 5], [5, 3, 1, 3]];
  const mostRuns = 12; // drawn at once
  const windows = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]; // steps of an average

  const listeners = [];
  const slots = new Map(); // from a run that is drawn to the number of its color and dashes
  const logs = new Map(); // from a chart to whether its values have a logarithmic axis; without: the chart's own choice
  let current = ""; // the run of the other tabs
  let zoom = null; // {from, to} in steps
  let smoothing = 3; // index of windows
  let isLogX = false;
  let tab = "curves";
  let isChosen = false; // the user has chosen runs
  const wanted = readAddress();

  // readAddress takes the state out of the address. A token in it goes to this tab's storage, and the address loses it.
  function readAddress() {
    const said = new URLSearchParams(location.hash.slice(1));
    const token = said.get("token");
    if (token) {
      store.setToken(token);
      said.delete("token");
      history.replaceState(null, "", said.size ? "#" + said : location.pathname + location.search);
    }
    const [from, to] = (said.get("steps") ?? "").split("-").map(Number);
    if (to > from && from >= 0) {
      zoom = { from, to };
      store.setZoom(zoom);
    }
    const steps = windows.indexOf(Number(said.get("average")));
    smoothing = steps >= 0 ? steps : smoothing;
    isLogX = said.get("x") === "log";
    tab = said.get("tab") ?? tab;
    return (said.get("runs") ?? "").split(",").filter(Boolean);
  }

  let later = 0;

  function writeAddress() {
    clearTimeout(later);
    later = setTimeout(() => {
      const said = new URLSearchParams();
      if (isChosen) {
        said.set("runs", drawn().join(","));
      }
      if (zoom) {
        said.set("steps", `${Math.floor(zoom.from)}-${Math.ceil(zoom.to)}`);
      }
      if (smoothing !== 3) {
        said.set("average", windows[smoothing]);
      }
      if (isLogX) {
        said.set("x", "log");
      }
      if (tab !== "curves") {
        said.set("tab", tab);
      }
      const text = said.toString().replaceAll("%2C", ",");
      history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
    }, 300);
  }

  function on(listener) {
    listeners.push(listener);
  }

  function changed(what) {
    writeAddress();
    for (const listener of listeners) {
      listener(what);
    }
  }

  // meet is told of the list of runs. The first time it draws those that the address names, else up to four that run or
  // the newest one; later it drops runs that are gone.
  function meet(runs) {
    const known = new Set(runs.map((r) => r.id));
    for (const id of slots.keys()) {
      if (!known.has(id)) {
        slots.delete(id);
      }
    }
    if (!slots.size && runs.length && !isChosen) {
      const named = wanted.filter((id) => known.has(id));
      const busy = runs.filter((r) => r.state === "running");
      const newest = [...runs].sort((a, b) => String(b.updated).localeCompare(String(a.updated)));
      const first = named.length ? named : (runs.length <= 4 ? runs : busy.length ? busy.slice(0, 4) : newest.slice(0, 1)).map((r) => r.id);
      isChosen = named.length > 0;
      first.slice(0, mostRuns).forEach(take);
    }
    if (!known.has(current)) {
      current = drawn()[0] ?? runs[0]?.id ?? "";
    }
  }

  function take(id) {
    const used = new Set(slots.values());
    let slot = 0;
    while (used.has(slot)) {
      slot++;
    }
    slots.set(id, slot);
  }

  // drawn are the runs of the charts, in the order of the list.
  const drawn = () => store.runs().map((r) => r.id).filter((id) => slots.has(id));

  // toggle draws a run or takes it away. It returns false where there are as many as can be told apart.
  function toggle(id) {
    if (slots.has(id)) {
      slots.delete(id);
    } else if (slots.size >= mostRuns) {
      return false;
    } else {
      take(id);
    }
    isChosen = true;
    if (!slots.has(current) && slots.size) {
      current = drawn()[0];
    }
    changed("runs");
    return true;
  }

  function only(id) {
    slots.clear();
    take(id);
    isChosen = true;
    current = id;
    changed("runs");
  }

  function look(id) {
    current = id;
    changed("current");
  }

  // style is the color and the dashes of a run, or of any other list's nth line.
  const styleOf = (n) => ({ color: n % colors, dash: dashes[(n + Math.floor(n / colors)) % dashes.length] });
  const style = (id) => styleOf(slots.get(id) ?? 0);

  function setZoom(range) {
    if (range) {
      const all = span();
      const from = Math.max(all.from, range.from);
      const to = Math.min(all.to, range.to);
      range = to - from >= 1 && (from > all.from || to < all.to) ? { from, to } : null;
    }
    zoom = range;
    store.setZoom(zoom);
    changed("zoom");
  }

  // span is the range of steps of the drawn runs.
  function span() {
    const runs = drawn().map(store.run).filter((r) => r && r.last_step > 0);
    if (!runs.length) {
      return { from: 0, to: 1 };
    }
    return { from: Math.min(...runs.map((r) => r.first_step)), to: Math.max(...runs.map((r) => r.last_step)) };
  }

  // range is what the charts' axis of steps shows.
  function range() {
    let { from, to } = zoom ?? span();
    if (isLogX) {
      from = Math.max(1, from);
    }
    return to > from ? [from, to] : [Math.max(isLogX ? 0.5 : 0, from - 1), from + 1];
  }

  function setSmoothing(index) {
    smoothing = Math.min(windows.length - 1, Math.max(0, index));
    changed("smoothing");
  }

  function setLogX(is) {
    isLogX = is;
    changed("axes");
  }

  const isLog = (chart) => logs.get(chart.id) ?? chart.log ?? false;

  function toggleLog(chart) {
    logs.set(chart.id, !isLog(chart));
    changed("axes");
  }

  function setTab(name) {
    tab = name;
    changed("tab");
  }

  // --- light and dark ---

  const kept = store.keep("localStorage", "millrace-colors");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let colorScheme = kept === "light" || kept === "dark" ? kept : "system";
  applyColors();
  system.addEventListener("change", () => changed("colors"));

  function applyColors() {
    if (colorScheme === "system") {
      delete document.documentElement.dataset.colors;
    } else {
      document.documentElement.dataset.colors = colorScheme;
    }
  }

  function nextColors() {
    const all = ["system", "light", "dark"];
    colorScheme = all[(all.indexOf(colorScheme) + 1) % all.length];
    store.keep("localStorage", "millrace-colors", colorScheme);
    applyColors();
    changed("colors");
  }

  return {
    on, meet, drawn, toggle, only, look, style, styleOf, setZoom, range, span, setSmoothing, setLogX, isLog, toggleLog,
    setTab, nextColors, mostRuns, windows,
    isDrawn: (id) => slots.has(id),
    current: () => current,
    zoom: () => zoom,
    smoothing: () => smoothing,
    average: () => windows[smoothing],
    isLogX: () => isLogX,
    tab: () => tab,
    colors: () => colorScheme,
  };
})();
