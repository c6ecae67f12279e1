package checkpoint

import (
	"maps"
	"slices"
)

// Difference is a key of the configuration that a run and a checkpoint do not agree on. An absent value is nil.
type Difference struct {
	Key           string
	Saved, Wanted *string
}

// Differences are the keys that differ, sorted.
type Differences []Difference

// Compare lists how the configuration that a run wants differs from that of a checkpoint in the keys that change the
// mathematics.
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
