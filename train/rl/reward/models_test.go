package reward

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/millrace/millrace/runfile"
)

// A model that two rewards name scores the answers once, and another one by itself.
func TestModelsScoreOnce(t *testing.T) {
	asked := map[string]int{}
	o := Options{MaxTokens: 8, Model: func(_ context.Context, name string, answers []Answer) ([]float64, error) {
		asked[name]++
		return make([]float64, len(answers)), nil
	}}
	var specs []runfile.Reward
	for i, dir := range []string{"m", "m", "other"} {
		specs = append(specs, runfile.Reward{Name: fmt.Sprint("r", i), Model: dir,
			Memory: runfile.ModelMemory{Host: runfile.Bytes{N: 1 << 30}}})
	}
	p, err := Open(t.Context(), specs, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for id := range int64(2) {
		if err := p.Judge(Answer{ID: id, Completion: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := p.Wait(t.Context())
	if err != nil || len(r.Scores) != 2 || len(r.Scores[0].Rewards) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if asked["m"] != 1 || asked["other"] != 1 {
		t.Errorf("the models were asked %v times", asked)
	}
}

// A wait for a model that is ended says why, and not that the judge has failed.
func TestWaitForAModelEnds(t *testing.T) {
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := Options{MaxTokens: 8, Model: func(ctx context.Context, _ string, _ []Answer) ([]float64, error) {
		cancel(stopped)
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	p, err := Open(t.Context(), []runfile.Reward{{Name: "r", Model: "m",
		Memory: runfile.ModelMemory{Host: runfile.Bytes{N: 1 << 30}}}}, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Judge(Answer{ID: 1, Completion: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(ctx); !errors.Is(err, stopped) {
		t.Errorf("the wait has the error %v", err)
	}
}
