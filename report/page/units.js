"use strict";
// units writes numbers for people, with the units of docs/metrics.md. A number that is missing is a dash.
const units = (() => {
  const none = "–";
  const isMissing = (x) => x === null || x === undefined || !Number.isFinite(x);

  // significant writes x with n significant digits, and very small and very large numbers with an exponent.
  function significant(x, n = 4) {
    if (isMissing(x)) {
      return none;
    }
    const size = Math.abs(x);
    if (x !== 0 && (size < 1e-3 || size >= 1e7)) {
      return x.toExponential(Math.max(0, n - 2)).replace(/\.?0*e/, "e").replace("e+", "e");
    }
    const whole = x === 0 ? 1 : Math.floor(Math.log10(size)) + 1; // digits before the point; below 0.1 it is negative
    return x.toLocaleString("en", { maximumFractionDigits: Math.max(0, n - whole) });
  }

  // loss has four decimals, as at the end of train.
  function loss(x) {
    if (isMissing(x)) {
      return none;
    }
    return Math.abs(x) > 1e6 ? significant(x) : x.toFixed(4);
  }

  // scaled writes x with one of the names that stand for powers of a base.
  function scaled(x, base, names) {
    if (isMissing(x)) {
      return none;
    }
    let i = 0;
    while (Math.abs(x) >= 0.9995 * base && i < names.length - 1) {
      x /= base;
      i++;
    }
    return i === 0 ? significant(x, 4) + names[0] : significant(x, 3) + names[i];
  }

  const count = (x) => scaled(x, 1000, ["", "k", "M", "B", "T"]);
  const bytes = (x) => scaled(x, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
  const written = (x) => scaled(x, 1000, [" B", " kB", " MB", " GB", " TB", " PB"]);
  const whole = (x) => (isMissing(x) ? none : Math.round(x).toLocaleString("en"));

  function percent(share, n = 3) {
    return isMissing(share) ? none : significant(100 * share, n) + "%";
  }

  // duration writes seconds with the two greatest units that they fill.
  function duration(seconds) {
    if (isMissing(seconds)) {
      return none;
    }
    if (seconds < 1) {
      return seconds === 0 ? "0 s" : significant(1000 * seconds, 3) + " ms";
    }
    if (seconds < 60) {
      return significant(seconds, 3) + " s";
    }
    const minutes = Math.round(seconds / 60);
    if (minutes < 60) {
      return minutes + " min";
    }
    const hours = Math.floor(minutes / 60);
    if (hours < 48) {
      return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
    }
    const days = Math.floor(hours / 24);
    return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
  }

  // when writes the clock of a time, with its date unless that is today's.
  function when(text) {
    const at = new Date(text);
    if (Number.isNaN(at.getTime())) {
      return none;
    }
    const clock = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    return at.toDateString() === new Date().toDateString() ? clock : at.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) + ", " + clock;
  }

  return { none, isMissing, significant, loss, count, bytes, written, whole, percent, duration, when };
})();
