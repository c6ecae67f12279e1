package session

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/drive"
)

// A drive near its warning has workers rest, one at its warning more so, and a line says so once, and once when it has
// cooled. Thermometers are read now and then, and one that fails is passed over.
func TestCooling(t *testing.T) {
	at, reads := time.Unix(1e9, 0), 0
	celsius := map[string]float64{"nvme0n1": 60, "nvme1n1": 60}
	var said []string
	c := &cooling{now: func() time.Time { return at }}
	s := &Session{Env: &Env{Progress: io.Discard, Events: func(e Event) { said = append(said, e.String()) }},
		cooling: []*cooling{c}}
	for _, name := range []string{"nvme0n1", "nvme1n1", "nvme2n1"} {
		c.thermometers = append(c.thermometers, thermometer{name, func() (drive.Reading, error) {
			reads++
			if now, ok := celsius[name]; ok {
				return drive.Reading{Celsius: now, WarnCelsius: 80}, nil
			}
			return drive.Reading{Celsius: 1000}, errors.New("no answer")
		}})
	}
	for _, step := range []struct {
		first, second float64 // degrees
		want          time.Duration
		says          string
	}{
		{60, 60, 0, ""},
		{74.9, 60, 0, ""},
		{60, 75, time.Second, "drive nvme1n1 is at 75 degrees Celsius and warns from 80 on"},
		{76, 75, time.Second, ""},
		{60, 80, 3 * time.Second, ""},
		{60, 90, 3 * time.Second, ""},
		{60, 70, time.Second, ""},
		{60, 68, time.Second, ""},
		{60, 67.9, 0, "drive nvme1n1 has cooled"},
		{60, 74, 0, ""},
		{81, 74, 3 * time.Second, "drive nvme0n1 is at 81"},
	} {
		celsius["nvme0n1"], celsius["nvme1n1"] = step.first, step.second
		said = nil
		at = at.Add(readEach)
		for range 3 { // of which the first reads
			if got := c.restAfter(time.Second); got != step.want {
				t.Errorf("%+v: a worker rests for %v", step, got)
			}
		}
		s.TellOfDrives()
		if text := strings.Join(said, "; "); (step.says == "") != (text == "") || !strings.Contains(text, step.says) ||
			len(said) > 1 {
			t.Errorf("%+v: it says %q", step, text)
		}
	}
	celsius, said = nil, nil
	at = at.Add(readEach)
	if got := c.restAfter(time.Second); got != 3*time.Second {
		t.Errorf("where no thermometer answers, a worker rests for %v", got)
	}
	if s.TellOfDrives(); said != nil {
		t.Errorf("where no thermometer answers, it says %q", said)
	}
	if want := 3 * 12; reads != want {
		t.Errorf("%d readings, want %d", reads, want)
	}
	if got := c.restAfter(time.Hour); got != longestRest {
		t.Errorf("after an hour a worker rests for %v", got)
	}
}
