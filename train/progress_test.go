package train

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// lateClock says that any time has passed as soon as it is asked for: each look at it is some minutes later.
type lateClock struct {
	mu sync.Mutex
	at time.Time
}

func (c *lateClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(5 * time.Minute)
	return c.at
}

func (c *lateClock) After(time.Duration) (<-chan time.Time, func()) {
	due := make(chan time.Time, 1)
	due <- time.Time{}
	return due, func() {}
}

// A step that takes minutes says how far it is, by a line in a log and by a bar on a terminal, while it is under way.
// That changes no bit.
func TestStepsShowProgress(t *testing.T) {
	c := smallConfig(t)
	c.MaxSteps, c.Numerics.MicroBatch, c.WarmupSteps = 2, 1, 0
	o := &operations{}
	env := countedEnv(t, o)
	var ends []int64
	env.Progress = lines(func(line string) {
		if strings.HasPrefix(line, "step ") {
			ends = append(ends, o.done.Load())
		}
	})
	want, err := Train(context.Background(), c, Options{Env: env})
	if err != nil || len(ends) != 2 {
		t.Fatalf("%v, error %v", ends, err)
	}
	for onTerminal, shape := range map[bool]string{
		false: `^step 2/2: \d+%(, \S+ left)?: ((for|back)ward, layer \d of 2|head)\n$`,
		true:  `^\r\x1b\[Kstep 2/2 \[[# ]{30}\] +\d+%(, \S+ left)?: ((for|back)ward, layer \d of 2|head)$`,
	} {
		slow := *c
		slow.OutputDir = fmt.Sprintf("%s-%v", c.OutputDir, onTerminal)
		shown := make(chan struct{})
		var once sync.Once
		o := &operations{at: ends[0] + (ends[1]-ends[0])*3/4, f: func() { <-shown }} // the step waits for its progress
		env := countedEnv(t, o)
		is := regexp.MustCompile(shape)
		env.Progress = lines(func(line string) {
			if strings.Contains(line, "step 2/2") && is.MatchString(line) {
				once.Do(func() { close(shown) })
			}
		})
		env.Terminal, env.Tests.Watch = onTerminal, &lateClock{}
		sum, err := Train(context.Background(), &slow, Options{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		sameModel(t, sum.Model, want.Model)
	}
}
