// Returns the least contrast of texts on the page against the opaque ground they stand on.
() => {
  const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = parts(colour).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (colour.startsWith("rgb(")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = document.querySelectorAll("p, a, td, th, time, summary, label, button, .fact, .badge, .hint, pre span");
  const contrasts = [...texts].filter((one) => one.textContent.trim() && !one.disabled).map((one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  });
  return Math.min(...contrasts);
}
