package serve

import (
	"net/http"

	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/terminal"
)

// maxEvery bounds the interval of evaluations: no run has as many steps.
const maxEvery = 1_000_000_000

// asks lists the requests to a run of this process.
var asks = map[string]func(c Control, q *http.Request) error{
	"save": func(c Control, _ *http.Request) error { return c.Save() },
	"stop": func(c Control, _ *http.Request) error { return c.Stop() },
	"evaluate-every": func(c Control, q *http.Request) error {
		n, err := number(q, "steps", 0, 1)
		if err != nil || n == 0 || n > maxEvery {
			return badRequest{"steps: give the number of steps from one evaluation to the next, from 1, as steps=100"}
		}
		return c.EvaluateEvery(int(n))
	},
}

// ask passes on what a user asks of a run.
func (s *Server) ask(w http.ResponseWriter, q *http.Request, ask func(Control, *http.Request) error) {
	r := s.runOf(w, q)
	if r == nil {
		return
	}
	if r.own == nil {
		fail(w, http.StatusConflict, "the run is of another process: start it with train --serve to ask it for something")
		return
	}
	switch err := ask(r.own, q).(type) {
	case nil:
		w.WriteHeader(http.StatusNoContent)
	case badRequest:
		fail(w, http.StatusBadRequest, err.text)
	default:
		fail(w, http.StatusConflict, terminal.Text(console.OneLine(err)))
	}
}
