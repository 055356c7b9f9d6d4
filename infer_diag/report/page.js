(() => {
  const charts = () => [...document.querySelectorAll(".js-plotly-plot")];
  const folded = new Set();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach((each) => { folded.add(each); each.open = true; });
    charts().forEach((chart) => Plotly.relayout(chart, { width: 660 }));
  });
  addEventListener("afterprint", () => {
    folded.forEach((each) => { each.open = false; });
    folded.clear();
    charts().forEach((chart) => Plotly.relayout(chart, { width: null, autosize: true }));
  });
})();
