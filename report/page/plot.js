"use strict";
// Plot draws one chart with uPlot: a curve for each run, its average and its spread, marks, and levels of the plan. All
// plots share the range of steps and the cursor. A drag zooms, also with a finger; the keyboard moves the cursor.
const plots = (() => {
  const height = 210;
  const mostDots = 400; // of evaluations in a curve
  const living = new Set(); // plots that are drawn
  let cursorStep = null; // of all plots

  // point moves the cursor of all plots to a step; null takes it away.
  function point(step, by) {
    cursorStep = step;
    for (const plot of living) {
      plot.showCursor(step, plot === by);
    }
  }

  // colorOf reads a color of app.css, as the canvas needs it.
  const probe = dom.make("span", { hidden: true });
  document.documentElement.append(probe);
  const colors = new Map();
  view.on((what) => what === "colors" && colors.clear());

  function colorOf(name) {
    if (!colors.has(name)) {
      probe.style.color = `var(--${name})`;
      colors.set(name, getComputedStyle(probe).color);
    }
    return colors.get(name);
  }

  // average is the exponential average in which each new step counts 1 in n, as on the page of millrace report.
  function average(steps, y, n) {
    const all = new Array(y.length);
    let sum = 0;
    let weight = 0;
    for (let i = 0; i < y.length; i++) {
      if (y[i] !== null) {
        const fresh = 1 - (1 - 1 / n) ** Math.max(1, i ? steps[i] - steps[i - 1] : 1);
        sum += fresh * (y[i] - sum);
        weight += fresh * (1 - weight);
      }
      all[i] = y[i] === null || weight === 0 ? null : sum / weight;
    }
    return all;
  }

  // nearest is the index of the value of x that is closest to a step; -1: x is empty.
  function nearest(x, step) {
    let low = 0;
    let high = x.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < step) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low > 0 && step - x[low - 1] < x[low] - step ? low - 1 : x.length ? low : -1;
  }

  // awaited is a line whose points have not arrived: the key has its name, and nothing is drawn.
  const awaited = (base) => ({ ...base, kind: "awaited", x: [], y: [] });

  class Plot {
    constructor(chart) {
      this.chart = chart;
      this.format = chart.format ?? ((x) => units.significant(x, 4));
      this.lines = [];
      this.u = null;
      this.form = ""; // of the drawn lines; another form needs another uPlot
      this.isSeen = false;
      this.build();
    }

    build() {
      const { chart } = this;
      this.log = dom.make("button", { type: "button", class: "small", text: "log", "aria-pressed": "false", title: "Logarithmic axis (l)", onclick: () => view.toggleLog(chart) });
      this.key = dom.make("ul", { class: "key" });
      this.canvas = dom.make("div", { class: "canvas" });
      this.empty = dom.make("p", { class: "wait", text: "Loading" });
      this.plot = dom.make("div", { class: "plot", tabindex: "0", role: "group", "aria-roledescription": "chart", onkeydown: (e) => this.press(e) }, this.canvas, this.empty);
      this.title = dom.make("h3", { text: chart.title });
      this.unit = dom.make("small", { text: chart.unit });
      this.element = dom.make("article", { class: "chart" }, dom.make("header", {}, this.title, this.unit, this.log), this.key, this.plot);
      this.element.dataset.chart = chart.id;
      this.plot.setAttribute("aria-label", `${chart.title}${chart.unit ? ", " + chart.unit : ""}. Left and right move the cursor; plus, minus and 0 zoom.`);
      this.observer = new IntersectionObserver((entries) => this.see(entries.at(-1).isIntersecting), { rootMargin: "300px" });
      this.observer.observe(this.element);
      this.sizes = new ResizeObserver(() => this.resize());
      this.sizes.observe(this.plot);
      touch(this);
      const ids = view.drawn().slice(0, this.chart.mostRuns);
      this.lines = ids.map(store.run).flatMap((run) => [...this.wanted(run, ids.length).map(({ base }) => base), this.marksOf(run), this.levelOf(run, ids.length)])
        .filter(Boolean).map(awaited);
      this.showKey();
    }

    see(is) {
      this.isSeen = is;
      if (is && this.isStale) {
        this.update();
      }
    }

    resize() {
      const width = this.plot.clientWidth;
      if (this.u && width > 0 && Math.abs(width - this.u.width) > 1) {
        this.u.setSize({ width, height });
      }
    }

    // gather takes the lines to draw out of the store. Of columns that have not arrived it has a line without points, so
    // that the key has its names and its height already, and nothing moves when they arrive.
    gather() {
      const ids = view.drawn().slice(0, this.chart.mostRuns);
      const n = view.average();
      const all = [];
      let isLoading = false;
      for (const id of ids) {
        const run = store.run(id);
        for (const { l, base } of this.wanted(run, ids.length)) {
          const c = store.column(id, l.column);
          const per = l.per && store.column(id, l.per);
          if (c === undefined || (l.per && per === undefined)) {
            isLoading = true;
            all.push(awaited(base));
          } else if (c && !(l.per && !per)) {
            all.push(...this.linesOf(l, base, c, per, n));
          }
        }
        this.addMarks(run, all);
        this.addLevel(run, all, ids.length);
      }
      return { all, isLoading };
    }

    // wanted lists the lines that the chart has of a run, where it draws a number of runs: each with all but its points.
    wanted(run, runs) {
      const lines = this.chart.lines(run).filter((l) => run.columns.includes(l.column));
      const main = lines.filter((l) => !l.isDots).length;
      return lines.map((l, i) => {
        const name = [view.drawn().length > 1 ? store.nameOf(run) : "", l.name].filter(Boolean).join(", ");
        return { l, base: { run: run.id, name, style: this.styleOf(run, runs, main, i), column: l.column } };
      });
    }

    styleOf(run, runs, main, i) {
      if (runs === 1 && main > 1) {
        return view.styleOf(i);
      }
      const style = view.style(run.id);
      return main > 1 ? { color: style.color, dash: view.styleOf(i).dash } : style;
    }

    linesOf(l, base, c, per, n) {
      const times = this.chart.times ?? 1;
      if (c.isSparse) {
        const kind = l.isLinked ? "linked" : "dots";
        return [{ ...base, kind, ...thin(c.at, scale(c.values, times), mostDots) }];
      }
      const of = (y) => scale(y, times, per && per.steps.length === c.steps.length ? per.mean : null);
      const y = of(c.mean);
      const spread = c.bucket > 1 ? { low: of(c.min), high: of(c.max) } : {};
      if (l.isDots || l.isLinked) {
        return [{ ...base, kind: "linked", x: c.steps, y }];
      }
      if (!this.chart.isSmooth || n === 1) {
        return [{ ...base, kind: "curve", x: c.steps, y, ...spread }];
      }
      return [{ ...base, kind: "faint", x: c.steps, y, ...spread }, { ...base, kind: "curve", x: c.steps, y: average(c.steps, y, n) }];
    }

    // marksOf is the row of marks that the chart has of a run, without their steps.
    marksOf(run) {
      const { marks } = this.chart;
      return marks && run.columns.includes(marks.column) ? { run: run.id, name: marks.text, style: view.style(run.id), column: marks.column } : null;
    }

    addMarks(run, all) {
      const base = this.marksOf(run);
      const c = base && store.column(run.id, base.column);
      if (c && !c.isSparse) {
        const x = c.steps.filter((_, i) => c.min[i] !== null && c.min[i] < 1);
        if (x.length) {
          all.push({ ...base, kind: "marks", x, y: x });
        }
      } else if (c === undefined) {
        all.push(awaited(base));
      }
    }

    // levelOf is the line of a run's plan, without its value.
    levelOf(run, runs) {
      return this.chart.level ? { run: run.id, name: runs > 1 ? "plan, " + store.nameOf(run) : "plan", style: view.style(run.id), column: "plan" } : null;
    }

    addLevel(run, all, runs) {
      const base = this.levelOf(run, runs);
      const plan = base && store.documentOf(run.id, "plan");
      const value = plan && this.chart.level(plan);
      if (value > 0) {
        all.push({ ...base, kind: "level", value });
      } else if (plan === undefined) {
        all.push(awaited(base));
      }
    }

    // update draws what the store has now.
    update() {
      this.isStale = !this.isSeen;
      if (this.isStale) {
        return;
      }
      const { all, isLoading } = this.gather();
      const curves = all.filter((l) => l.x && l.kind !== "marks" && l.x.length);
      if (!curves.length) {
        dom.say(this.empty, isLoading ? "Loading" : "No number yet");
        this.empty.hidden = false;
        this.destroy();
        this.lines = all;
        this.showKey();
        return;
      }
      this.empty.hidden = true;
      this.lines = all;
      this.curves = curves;
      const isLog = view.isLog(this.chart);
      this.log.setAttribute("aria-pressed", isLog);
      const form = JSON.stringify([curves.map((l) => [l.run, l.column, l.kind, l.style]), isLog, view.isLogX()]);
      const data = this.tables(curves);
      if (this.u && form === this.form) {
        this.u.setData(data, true);
      } else {
        this.destroy();
        this.form = form;
        this.create(data, curves, isLog);
      }
      this.showKey();
      this.showCursor(cursorStep, false);
    }

    // tables aligns the curves by their steps.
    tables(curves) {
      const byX = new Map(); // lines with the same array of steps share a table
      for (const l of curves) {
        byX.set(l.x, [...(byX.get(l.x) ?? []), l]);
      }
      const groups = [...byX];
      const isLogX = view.isLogX();
      const tables = groups.map(([x, lines]) => {
        const start = isLogX ? x.findIndex((step) => step >= 1) : 0;
        return [x, ...lines.map((l) => l.y)].map((a) => (start > 0 ? a.slice(start) : a));
      });
      const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
      const order = new Map(groups.flatMap(([, lines]) => lines).map((l, i) => [l, i + 1]));
      return [data[0], ...curves.map((l) => data[order.get(l)])];
    }

    create(data, curves, isLog) {
      const text = "12px system-ui, sans-serif";
      const axis = { stroke: () => colorOf("muted"), font: text, grid: { stroke: () => colorOf("grid"), width: 1 }, ticks: { show: false } };
      const options = {
        width: Math.max(200, this.plot.clientWidth), height, legend: { show: false }, padding: [8, 14, 0, 0],
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false, dist: 4 },
          points: { size: 7 },
          dataIdx: (u, s, i) => closeIndex(u.data[s], i),
          bind: { dblclick: () => () => view.setZoom(null) },
        },
        scales: {
          x: { time: false, distr: view.isLogX() ? 3 : 1, range: () => view.range() },
          y: { distr: isLog ? 3 : 1, range: () => this.rangeOfValues(isLog) },
        },
        axes: [
          { ...axis, size: 30, space: 64, values: (u, s) => s.map((v) => (v === null || v % 1 ? "" : units.count(v))) },
          { ...axis, size: 62, space: 32, values: (u, s) => s.map((v) => (v === null ? "" : this.tick(v))), ...this.increments() },
        ],
        series: [{}, ...curves.map((l) => seriesOf(l))],
        hooks: {
          drawAxes: [(u) => this.drawSpread(u)],
          draw: [(u) => this.drawMarks(u), (u) => this.drawLevels(u)],
          setSelect: [(u) => this.select(u)],
        },
      };
      this.u = new uPlot(options, data, this.canvas);
      this.u.over.addEventListener("mousemove", (e) => this.hover(e));
      this.u.over.addEventListener("mouseleave", () => point(null, this));
      living.add(this);
    }

    // increments places the ticks of bytes at powers of two, and of their units.
    increments() {
      if (this.chart.base !== 1024) {
        return {};
      }
      const incrs = [];
      for (let unit = 1; unit < 2 ** 50; unit *= 1024) {
        incrs.push(...[1, 2, 4, 8, 16, 32, 64, 128, 256, 512].map((n) => n * unit));
      }
      return { incrs };
    }

    tick(v) {
      return this.chart.base ? this.format(v) : this.chart.format === units.duration ? units.duration(v) : units.significant(v, 4);
    }

    // rangeOfValues has all that is drawn of the shown steps, spikes as well.
    rangeOfValues(isLog) {
      const [from, to] = view.range();
      let low = Infinity;
      let high = -Infinity;
      const meet = (v) => {
        if (v !== null && v !== undefined && (!isLog || v > 0)) {
          low = Math.min(low, v);
          high = Math.max(high, v);
        }
      };
      for (const l of this.lines) {
        if (l.kind === "level") {
          meet(l.value);
        } else if (l.kind !== "marks") {
          const hasSpread = l.low !== undefined;
          for (let i = 0; i < l.x.length; i++) {
            if (l.x[i] >= from && l.x[i] <= to) {
              meet(hasSpread ? l.low[i] : l.y[i]);
              meet(hasSpread ? l.high[i] : l.y[i]);
            }
          }
        }
      }
      if (low > high) {
        return isLog ? [0.1, 1] : [0, 1];
      }
      if (isLog) {
        const room = Math.max(1.1, (high / low) ** 0.06);
        return [low / room, high * room];
      }
      if (this.chart.hasZero) {
        return [Math.min(0, low), high > 0 ? high * 1.08 : 1];
      }
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      return [low - room, high + room];
    }

    // drawSpread draws the least and the greatest value of each bucket as a line between them.
    drawSpread(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.globalAlpha = 0.28;
      const [from, to] = view.range();
      const isLog = view.isLog(this.chart);
      for (const l of this.lines.filter((l) => l.low)) {
        ctx.strokeStyle = colorOf("c" + l.style.color);
        ctx.lineWidth = Math.max(1, Math.min(6, (0.8 * bbox.width) / l.x.length));
        ctx.beginPath();
        for (let i = 0; i < l.x.length; i++) {
          const low = l.low[i];
          if (low === null || l.high[i] === null || l.x[i] < from || l.x[i] > to || (isLog && low <= 0)) {
            continue;
          }
          const x = u.valToPos(l.x[i], "x", true);
          ctx.moveTo(x, u.valToPos(low, "y", true));
          ctx.lineTo(x, u.valToPos(l.high[i], "y", true));
        }
        ctx.stroke();
      }
      ctx.restore();
    }

    // drawMarks draws a row of marks for each run at the foot of the chart.
    drawMarks(u) {
      const { ctx, bbox } = u;
      const [from, to] = view.range();
      const unit = devicePixelRatio;
      this.lines.filter((l) => l.kind === "marks").forEach((l, row) => {
        ctx.fillStyle = colorOf("c" + l.style.color);
        for (const step of l.x) {
          if (step >= from && step <= to) {
            ctx.fillRect(u.valToPos(step, "x", true) - unit, bbox.top + bbox.height - (row + 1) * 6 * unit, 2 * unit, 5 * unit);
          }
        }
      });
    }

    // drawLevels draws what the plan predicts as a line across the chart.
    drawLevels(u) {
      const { ctx, bbox } = u;
      const unit = devicePixelRatio;
      for (const l of this.lines.filter((l) => l.kind === "level")) {
        const y = u.valToPos(l.value, "y", true);
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = colorOf(view.drawn().length > 1 ? "c" + l.style.color : "muted");
        ctx.lineWidth = 1.5 * unit;
        ctx.setLineDash([2 * unit, 4 * unit]);
        ctx.beginPath();
        ctx.moveTo(bbox.left, y);
        ctx.lineTo(bbox.left + bbox.width, y);
        ctx.stroke();
        ctx.font = `${11 * unit}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        ctx.textBaseline = "top";
        ctx.fillText("plan", bbox.left + bbox.width - 4 * unit, y + 3 * unit);
        ctx.restore();
      }
    }

    hover(e) {
      point(this.u.posToVal(e.clientX - this.u.over.getBoundingClientRect().left, "x"), this);
    }

    select(u) {
      const { left, width } = u.select;
      if (width > 3) {
        const range = { from: u.posToVal(left, "x"), to: u.posToVal(left + width, "x") };
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        view.setZoom(range);
      }
    }

    // showCursor places this plot's cursor, unless it is the one that moved, and writes the values there.
    showCursor(step, isSource) {
      if (this.u && !isSource) {
        const left = step === null ? -10 : this.u.valToPos(step, "x");
        this.u.setCursor({ left: left < 0 || left > this.u.bbox.width / devicePixelRatio ? -10 : left, top: 0 }, false, false);
      }
      for (const { line, value } of this.entries ?? []) {
        dom.say(value, this.valueAt(line, step));
      }
    }

    // valueAt is the value of a line at a step, or its last one that is shown.
    valueAt(line, step) {
      if (line.kind === "level") {
        return this.format(line.value);
      }
      if (line.kind === "marks" || !line.x.length) {
        return "";
      }
      const { x, y } = line;
      const at = step ?? view.range()[1];
      const isSparse = line.kind === "dots" || line.kind === "linked";
      let i = nearest(x, at);
      while (i > 0 && (step === null || isSparse) && (x[i] > at || y[i] === null)) {
        i--; // the latest value until then
      }
      const width = x.length > 1 ? (x.at(-1) - x[0]) / (x.length - 1) : 1;
      const isBeyond = step !== null && !isSparse && Math.abs(x[i] - step) > 1.5 * width + 1;
      return isBeyond ? units.none : this.format(y[i]);
    }

    // showKey lists the lines with their values.
    showKey() {
      const isShort = view.drawn().length > 3; // then the colors say which dots and marks are a run's
      const lines = this.lines.filter((l) => l.kind !== "faint" && !(isShort && (l.kind === "dots" || l.kind === "marks")));
      this.key.classList.toggle("many", lines.length > 6);
      this.entries = [];
      dom.keyed(this.key, lines, (l) => [l.run, l.column, l.kind].join(" "), () => dom.make("li"), (e, line) => {
        const value = dom.make("b", { text: this.valueAt(line, cursorStep) });
        const isDot = line.kind === "dots" || line.kind === "marks";
        const mark = isDot ? dom.make("i", { class: line.kind === "dots" ? "dot" : "tick" }) : line.kind === "level" ? dom.make("i", { class: "dotted" }) : dom.swatch(line.style);
        if (isDot) {
          mark.style.color = `var(--c${line.style.color})`;
        }
        e.title = dom.clean(line.name || this.chart.title, 300);
        e.replaceChildren(mark, dom.make("span", { text: dom.clean(line.name, 80) }), value);
        this.entries.push({ line, value });
      });
    }

    // press moves the cursor and zooms.
    press(e) {
      const x = this.curves?.[0]?.x;
      if (!x || e.ctrlKey || e.metaKey || e.altKey) {
        return;
      }
      const [from, to] = view.range();
      const here = cursorStep ?? to;
      const move = (by) => {
        const i = nearest(x, Math.min(to, Math.max(from, here)));
        this.tell(x[Math.min(x.length - 1, Math.max(0, i + by))]);
      };
      const zoom = (factor) => view.setZoom({ from: here - (here - from) * factor, to: here + (to - here) * factor });
      const far = Math.max(1, Math.round(x.length / 20));
      const actions = {
        ArrowLeft: () => move(e.shiftKey ? -far : -1),
        ArrowRight: () => move(e.shiftKey ? far : 1),
        Home: () => this.tell(Math.max(from, x[0])),
        End: () => this.tell(Math.min(to, x.at(-1))),
        "+": () => zoom(0.5),
        "=": () => zoom(0.5),
        "-": () => zoom(2),
        0: () => view.setZoom(null),
        l: () => view.toggleLog(this.chart),
      };
      if (actions[e.key]) {
        actions[e.key]();
        e.preventDefault();
        e.stopPropagation();
      }
    }

    // tell moves the cursor and says the values there.
    tell(step) {
      point(step, null);
      const said = this.entries.map(({ line, value }) => `${line.name || this.chart.title} ${value.textContent}`);
      dom.announce(`step ${units.whole(step)}: ${said.join("; ")}`);
    }

    destroy() {
      living.delete(this);
      this.u?.destroy();
      this.u = null;
      this.form = "";
    }

    // remove takes the chart from the page.
    remove() {
      this.destroy();
      this.observer.disconnect();
      this.sizes.disconnect();
      this.element.remove();
    }
  }

  // scale multiplies values, and divides them by others.
  function scale(y, times, per) {
    if (!per) {
      return times === 1 ? y : y.map((v) => (v === null ? null : v * times));
    }
    return y.map((v, i) => (v === null || !per[i] ? null : (v * times) / per[i]));
  }

  // thin leaves out values between others where the shown steps have more than a chart can show.
  function thin(x, y, most) {
    const [from, to] = view.range();
    const first = x.findIndex((step) => step >= from);
    const after = x.findIndex((step) => step > to);
    const end = after < 0 ? x.length : after;
    if (first < 0 || end - first <= most) {
      return { x, y };
    }
    const by = Math.ceil((end - first) / most);
    const isKept = (_, i) => i >= first && i < end && (end - 1 - i) % by === 0; // the last one is
    return { x: x.filter(isKept), y: y.filter(isKept) };
  }

  // closeIndex is the index of the next value around i, within a few steps, of curves that have other steps.
  function closeIndex(values, i) {
    for (let by = 0; by < 40; by++) {
      if (values[i + by] !== undefined && values[i + by] !== null) {
        return i + by;
      }
      if (values[i - by] !== undefined && values[i - by] !== null) {
        return i - by;
      }
    }
    return i;
  }

  function seriesOf(l) {
    const stroke = () => colorOf("c" + l.style.color);
    const dash = l.style.dash.map((d) => d * devicePixelRatio);
    switch (l.kind) {
      case "faint":
        return { stroke, width: 1, alpha: 0.35, points: { show: false } };
      case "dots":
        return { stroke, paths: () => null, points: { show: true, size: 7, fill: stroke, width: 0 } };
      case "linked":
        return { stroke, width: 1.5, dash, spanGaps: true, points: { show: l.x.length < 200, size: 6, fill: stroke, width: 0 } };
      default:
        return { stroke, width: 2, dash, points: { show: l.x.length === 1, size: 6, fill: stroke } };
    }
  }

  // touch lets a finger zoom by dragging sideways and read values by tapping; up and down scrolls the page as always.
  function touch(plot) {
    let start = null;
    const leftOf = (e) => Math.min(plot.u.over.clientWidth, Math.max(0, e.clientX - plot.u.over.getBoundingClientRect().left));
    plot.canvas.addEventListener("pointerdown", (e) => {
      start = e.pointerType === "touch" && plot.u ? leftOf(e) : null;
    });
    plot.canvas.addEventListener("pointermove", (e) => {
      if (start !== null && plot.u) {
        const left = leftOf(e);
        plot.u.setSelect({ left: Math.min(start, left), width: Math.abs(left - start), top: 0, height: plot.u.over.clientHeight }, false);
      }
    });
    plot.canvas.addEventListener("pointerup", (e) => {
      if (start === null || !plot.u) {
        return;
      }
      const left = leftOf(e);
      if (Math.abs(left - start) > 12) {
        plot.select(plot.u);
      } else {
        plot.u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        point(plot.u.posToVal(left, "x"), null);
      }
      start = null;
    });
    plot.canvas.addEventListener("pointercancel", () => {
      start = null;
      plot.u?.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    });
  }

  return { Plot, colorOf, living, average };
})();
