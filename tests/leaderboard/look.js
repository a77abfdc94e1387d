// What a reader cannot read or hit on a page: small letters, texts on each other, broken words.
(limits) => {
  const seen = (part) => part.checkVisibility() && part.getBoundingClientRect().width > 1;
  const found = [], say = (what, part, more) => found.push(`${what}: ${part.textContent.trim().slice(0, 40)} ${more}`);
  for (const text of document.querySelectorAll("svg text")) {
    if (!seen(text)) continue;
    const scale = text.getScreenCTM().d || text.getScreenCTM().b, size = parseFloat(getComputedStyle(text).fontSize) * Math.abs(scale);
    if (size < limits.letters) say("small text", text, size);
  }
  for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].filter((text) => seen(text) && text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i += 1) {
      for (let j = i + 1; j < boxes.length; j += 1) {
        const wide = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
        const high = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
        if (wide > 2 && high > 3) say("texts overlap", texts[i], texts[j].textContent);
      }
    }
  }
  for (const box of document.querySelectorAll("input[type=checkbox]")) {
    if (seen(box) && box.getBoundingClientRect().width < limits.box) say("small box", box.parentElement, "");
  }
  for (const name of document.querySelectorAll("table.data tbody th, table.ranking tbody th")) {
    if (!seen(name)) continue;
    if (name.getBoundingClientRect().width < limits.name) say("narrow name", name, name.getBoundingClientRect().width);
    const walk = document.createTreeWalker(name, NodeFilter.SHOW_TEXT), range = document.createRange();
    while (walk.nextNode()) {
      range.selectNodeContents(walk.currentNode);
      if (walk.currentNode.data.trim() && !/[ -]/.test(walk.currentNode.data.trim()) && new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size > 1) say("broken word", name, walk.currentNode.data);
    }
  }
  for (const area of document.querySelectorAll(".scroll")) {
    if (seen(area) && area.querySelector("table") && area.scrollWidth > area.clientWidth + 1) say("scrolls", area, area.ariaLabel);
  }
  return found;
}
