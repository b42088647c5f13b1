// Puts the drawings in their places on the page.

const data = JSON.parse(document.getElementById("drawn").textContent);
const view = new View(data.end);
const part = (name) => document.getElementById(name);
const MANY = 64;

readColours();
const spans = new Spans(part("timeline"), view, data);
const memory = part("memory") ? new Memory(part("memory"), view, data) : null;
const matrix = part("matrix") ? new Matrix(part("matrix"), data) : null;

function drawAll() {
  readColours();
  spans.later();
  if (memory) memory.later();
  if (matrix) matrix.draw();
}

function button(parent, text, label, does) {
  const made = element("button", parent, text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.title = label;
  made.addEventListener("click", does);
  return made;
}

// Of many ranks one for each stage, unless all are wanted.
function rowsShown(all) {
  const wanted = data.rows.map((row, index) => index).filter((index) => all || data.rows[index].lead);
  spans.place(wanted);
  if (memory) memory.place(wanted);
}

function tools(box) {
  button(box, "+", "zoom in", () => view.zoom(0.5));
  button(box, "−", "zoom out", () => view.zoom(2));
  button(box, "◀", "earlier", () => view.pan(-0.25));
  button(box, "▶", "later", () => view.pan(0.25));
  button(box, "whole step", "show the whole step", () => view.all());
  if (data.rows.length > MANY && data.rows.some((row) => !row.lead)) {
    const label = element("label", box, " all ranks, instead of one of each stage ");
    const tick = document.createElement("input");
    tick.type = "checkbox";
    label.prepend(tick);
    tick.addEventListener("change", () => rowsShown(tick.checked));
    rowsShown(false);
  }
  element("span", box, "wheel: zoom · drag: move · hover, or arrow keys: what a bar is");
}

function marks(list) {
  for (const mark of data.marks) {
    const text = `${mark.what === "first" ? "first: " : "differs most: "}${mark.text}`;
    button(element("li", list), text, `show: ${text}`, () => {
      const item = spans.items.find((one) => one.row === mark.row);
      if (!item) rowsShown(true);
      spans.reveal(item || spans.items.find((one) => one.row === mark.row));
      view.show(Math.min(...mark.times.map(([low]) => low)), Math.max(...mark.times.map(([, high]) => high)));
    });
  }
}

tools(document.querySelector(".tools"));
const list = document.querySelector(".marks");
if (list) marks(list);
addEventListener("resize", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
drawAll();
window.timelinePage = { data, view, spans, memory, matrix };
