package train

import (
	"testing"

	"github.com/millrace/millrace/runfile"
)

func TestSavesText(t *testing.T) {
	for want, c := range map[string]runfile.Save{
		"saves every 30 minutes and at the end":                                             runfile.Defaults().Save,
		"saves every 500 steps, every 1.5 minutes and at the end":                           {Every: 500, Minutes: 1.5, AtEnd: true},
		"saves after every step and every minute":                                           {Every: 1, Minutes: 1},
		"saves after each evaluation that is the best so far":                               {Best: true},
		"saves only when it is interrupted or fails":                                        {},
		"saves every 2 steps, after each evaluation that is the best so far and at the end": {Every: 2, Best: true, AtEnd: true},
	} {
		if got := savesText(c); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
