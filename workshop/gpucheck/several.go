package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// twoGPUs shows that two GPUs that share each step have the bits of one, whichever way rows pass between them, and says
// how much faster they are.
func twoGPUs(c *check) (string, error) {
	number, err := strconv.Atoi(strings.TrimPrefix(c.gpu, "cuda:"))
	if err != nil {
		return "", leftOut("--gpu names no GPU by number")
	}
	other := 0
	if number == 0 {
		other = 1
	}
	both := fmt.Sprintf("cuda:%d,cuda:%d", number, other)
	p, err := c.plan("device=" + both)
	switch {
	case isStatus(err, exitRequest): // there is one, or they are of two kinds
		return "", leftOut(oneLine(err.Error()))
	case err != nil:
		return "", err
	case len(p.Placement.Deal) == 0:
		return "", errors.New("the plan gives the second GPU no visits")
	}
	if err := errors.Join(c.train("one-gpu"), c.train("two-gpus", "device="+both),
		c.sameBits("one-gpu", "two-gpus")); err != nil {
		return "", err
	}
	bits := "the bits of one GPU, with rows through host memory, since these GPUs do not copy from each other"
	if p.Placement.PeerCopies {
		bits = "the bits of one GPU, with rows directly and through host memory"
		if err := errors.Join(c.trainWith([]string{"MILLRACE_PEER_COPIES=0"}, "two-gpus-host", "device="+both),
			c.sameBits("one-gpu", "two-gpus-host")); err != nil {
			return "", err
		}
	}
	note, err := benchmark{name: "two-gpus", devices: both, steps: 3}.run(c)
	if err != nil {
		return note, fmt.Errorf("%s; the benchmark: %w", bits, err)
	}
	var one, two benchResult
	if one.read(c, "bench") && two.read(c, "two-gpus") && two.StepSec > 0 {
		note = fmt.Sprintf("%.2f times as fast as the row bench; %s", one.StepSec/two.StepSec, note)
	}
	return bits + "; " + note, nil
}

// read takes the result of a benchmark; false if it is not there.
func (r *benchResult) read(c *check, name string) bool {
	text, ok := c.report.Output[name]
	return ok && json.Unmarshal(text, r) == nil
}
