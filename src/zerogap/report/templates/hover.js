"use strict";
(() => {
  const tip = document.getElementById("tip");
  const fields = JSON.parse(tip.dataset.fields);

  const line = (label, value, style) => {
    const row = document.createElement("div");
    const name = document.createElement("span");
    if (style) {
      const swatch = document.createElement("i");
      swatch.className = "swatch " + style;
      name.append(swatch);
    }
    name.append(label);
    const shown = document.createElement("span");
    shown.textContent = value;
    row.append(name, shown);
    return row;
  };

  const show = (event, title, rows) => {
    const heading = document.createElement("b");
    heading.textContent = title;
    tip.replaceChildren(heading, ...rows);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 14 + width < innerWidth;
    const below = event.clientY + 16 + height < innerHeight;
    tip.style.left = Math.max(4, right ? event.clientX + 14 : event.clientX - width - 14) + "px";
    tip.style.top = Math.max(4, below ? event.clientY + 16 : event.clientY - height - 12) + "px";
  };
  const hide = () => { tip.hidden = true; };

  for (const figure of document.querySelectorAll("figure.chart")) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const svg = figure.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const dots = cursor.querySelectorAll("circle");
    const target = svg.querySelector(".target");
    target.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      let near = 0;
      data.x.forEach((at, i) => { if (Math.abs(at - x) < Math.abs(data.x[near] - x)) near = i; });
      cursor.setAttribute("visibility", "visible");
      const rule = cursor.querySelector("line");
      rule.setAttribute("x1", data.x[near]);
      rule.setAttribute("x2", data.x[near]);
      const rows = [];
      data.rows.forEach((row, i) => {
        const measured = row.y[near] !== null;
        dots[i].setAttribute("visibility", measured ? "inherit" : "hidden");
        if (measured) {
          dots[i].setAttribute("cx", data.x[near]);
          dots[i].setAttribute("cy", row.y[near]);
          rows.push(line(row.label, row.text[near], row.style));
        }
      });
      show(event, "step " + data.steps[near], rows);
    });
    target.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); hide(); });
  }

  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest("[data-t]");
    if (!token) {
      if (!event.target.closest(".target")) hide();
      return;
    }
    const values = token.dataset.t.split("|");
    const rows = fields.map((field, i) => values[i] && line(field, values[i])).filter(Boolean);
    show(event, JSON.stringify(token.textContent), rows);
  });
})();
