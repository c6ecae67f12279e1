package main

import (
	"context"
	"fmt"
	"io"
	"math"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/objective"
	"github.com/millrace/millrace/runfile"
)

// focal is the loss -(1-p)^2 log p of each token, by which the tokens that a model knows count little (Lin et al. 2017,
// arXiv:1708.02002).
type focal struct{}

func (focal) Name() string           { return "focal" }
func (focal) Needs() objective.Needs { return objective.Needs{} }

func (focal) Weigh(s *objective.Step) (objective.Result, error) { return weighTokens(s), nil }

// weighTokens gives each position the weight -dL/d(log p) * Targets. An evaluation asks for no weights.
func weighTokens(s *objective.Step) (res objective.Result) {
	known := objective.Part{Name: "known"}
	for _, document := range s.Sequences {
		for t, target := range document.Targets {
			if target < 0 {
				continue
			}
			logP := float64(document.LogProbs[t])
			p := math.Exp(logP)
			res.Loss -= (1 - p) * (1 - p) * logP / float64(s.Whole.Targets)
			if document.Weights != nil {
				document.Weights[t] = float32((1-p)*(1-p) - 2*p*(1-p)*logP)
			}
			if known.Of++; p > 0.5 {
				known.Sum++
			}
		}
	}
	res.Parts = []objective.Part{known}
	return res
}

// trainFocal takes some steps of it, and returns the first loss and the last one.
func trainFocal(ctx context.Context, config *runfile.Config, out io.Writer) (first, last float64, err error) {
	run, err := millrace.Open(ctx, config, millrace.OpenOptions{Objective: focal{}})
	if err != nil {
		return 0, 0, err
	}
	defer run.Close()
	for run.Steps() < 12 {
		batch, err := run.Next(ctx)
		if err != nil {
			return 0, 0, err
		}
		result, err := run.Step(ctx, batch, run.Update(1e-2))
		if err != nil {
			return 0, 0, err
		}
		if last = result.Loss(); run.Steps() == 1 {
			first = last
		}
		fmt.Fprintf(out, "step %d: loss %.2f, %.0f%% of the tokens are known\n", run.Steps(), last,
			100*result.Objective.Metrics()["known"])
	}
	return first, last, nil
}
