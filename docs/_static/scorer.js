// Sphinx's values, but for `score`: of pages with the same words, the page of questions and answers comes first.
var Scorer = {
  score: (result) => {
    const [page, _title, anchor, _description, score] = result;
    return page === "explanation/questions" ? score + (anchor ? 3 : 2) : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
