// What every drawing shares: the stretch of time that is shown, how numbers read, colours, the tip.

const GUTTER = 190, AXIS = 24, LEAST_SPAN = 50;

class View {
  constructor(end) {
    this.end = Math.max(end, 1);
    this.low = 0;
    this.high = this.end;
    this.listeners = [];
  }
  set(low, high) {
    const length = Math.min(Math.max(high - low, Math.min(LEAST_SPAN, this.end)), this.end);
    this.low = Math.min(Math.max(low, 0), this.end - length);
    this.high = this.low + length;
    for (const listener of this.listeners) listener();
  }
  zoom(factor, at = (this.low + this.high) / 2) {
    this.set(at - (at - this.low) * factor, at + (this.high - at) * factor);
  }
  pan(fraction) {
    const by = (this.high - this.low) * fraction;
    this.set(this.low + by, this.high + by);
  }
  all() { this.set(0, this.end); }
  show(low, high) {
    const room = Math.max(high - low, LEAST_SPAN) * 1.5;
    this.set(low - room, high + room);
  }
}

function digits(number) {
  const size = Math.abs(number);
  return number.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

function timeText(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]])
    if (Math.abs(ns) >= size * 0.9995) return `${digits(ns / size)} ${unit}`;
  return `${Math.round(ns)} ns`;
}

function bytesText(bytes) {
  for (const [size, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]])
    if (bytes >= size * 0.9995) return `${digits(bytes / size)} ${unit}`;
  return `${bytes} bytes`;
}

// Times at the axis: a round step, and as many digits as it needs.
function ticks(low, high, most) {
  const rough = (high - low) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([one]) => one <= high) || [1, "ns"];
  const decimals = Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step)
    found.push([at, at === 0 ? "0" : `${(at / size).toFixed(decimals)} ${unit}`]);
  return found;
}

let colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["back", "text", "faint", "line", "head", "wait", "hatch", "mark", "focus", "heat", "held"];
  colours = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function element(tag, parent, text = "", name = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  parent.append(made);
  return made;
}

// A canvas as sharp as the screen, in CSS pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.setTransform(ratio, 0, 0, ratio, 0, 0);
  ink.clearRect(0, 0, width, height);
  ink.font = '12px system-ui, "DejaVu Sans", sans-serif';
  ink.textBaseline = "middle";
  return ink;
}

function fitted(ink, text, width) {
  if (ink.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && ink.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return `${text.slice(0, length)}…`;
}

const tip = {
  box: null,
  show(text, x, y) {
    this.box ||= element("div", document.body, "", "tip");
    this.box.hidden = false;
    this.box.textContent = text;
    const { width, height } = this.box.getBoundingClientRect();
    this.box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    this.box.style.top = `${y + 16 + height > innerHeight ? Math.max(4, y - height - 10) : y + 16}px`;
  },
  hide() { if (this.box) this.box.hidden = true; },
};
