package checkpoint

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Difference is a key of the configuration that a run and a checkpoint do not agree on. An absent value is nil.
type Difference struct {
	Key           string
	Saved, Wanted *string
}

func (d Difference) String() string {
	show := func(v *string) string {
		if v == nil {
			return "not set"
		}
		return *v
	}
	return fmt.Sprintf("%s: %s in the checkpoint, %s now", d.Key, show(d.Saved), show(d.Wanted))
}

// Differences are the keys that differ, sorted.
type Differences []Difference

// String has a line for each.
func (d Differences) String() string {
	lines := make([]string, len(d))
	for i := range d {
		lines[i] = d[i].String()
	}
	return strings.Join(lines, "\n")
}

// Compare lists how the configuration that a run wants differs from that of a checkpoint in the keys that change the
// mathematics. The run may go on from the checkpoint if there is no difference.
func Compare(m *Manifest, wanted map[string]string) Differences {
	var d Differences
	keys := maps.Clone(m.Mathematics)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, wanted)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		saved, was := m.Mathematics[key]
		want, is := wanted[key]
		if was && is && saved == want {
			continue
		}
		diff := Difference{Key: key}
		if was {
			diff.Saved = &saved
		}
		if is {
			diff.Wanted = &want
		}
		d = append(d, diff)
	}
	return d
}

// Line is all of them in one line.
func (d Differences) Line() string { return strings.ReplaceAll(d.String(), "\n", "; ") }
