package convert

import (
	"maps"
	"slices"
	"strings"
)

// mixture are the data sets of the scripts of the alignment handbook, which several others have: dataset_mixer has
// shares by names, with splits of their own, and dataset_mixture a list, of which test_split_size is held out.
func (c *conversion) mixture(isHeld bool, typed entry) (all entries, from []string) {
	if key, v := c.take("dataset_mixture"); key != "" && !isHeld {
		mixture, _ := v.(map[string]any)
		for _, item := range items(mixture["datasets"]) {
			set, _ := item.(map[string]any)
			e := entry{}
			for _, name := range []string{"id", "path"} {
				e.add("path", textOf(set[name]))
			}
			for _, name := range []string{"config", "name"} {
				if config := textOf(set[name]); config != "default" {
					e.add("name", config)
				}
			}
			if split := textOf(set["split"]); split != "train" {
				e.add("split", split)
			}
			all = append(all, c.shared(append(e, typed...), set["weight"]))
		}
		return all, []string{key}
	}
	key, v := c.take("dataset_mixer")
	sets, _ := v.(map[string]any)
	splitsKey, splits := c.take("dataset_splits")
	configsKey, configs := c.take("dataset_configs")
	names := list(configs)
	for i, path := range slices.Sorted(maps.Keys(sets)) {
		for _, split := range list(splits) {
			if strings.Contains(split, "test") != isHeld {
				continue
			}
			e := entry{{"path", path}}
			if len(sets) == 1 && len(names) == 1 && names[0] != "default" {
				e.add("name", names[0])
			} else if len(names) > 0 && i == 0 && !isHeld && !slices.Equal(names, []string{"default"}) {
				c.decide([]string{configsKey}, "datasets: %s has %s; name them with name in each entry", configsKey,
					plainList(names))
			}
			if split != "train" {
				e.add("split", split)
			}
			e = append(e, typed...)
			if !isHeld {
				e = c.shared(e, sets[path])
			}
			all = append(all, e)
		}
	}
	return all, given(key, splitsKey, configsKey)
}

// shared adds the share of a data set that is taken, as a weight.
func (c *conversion) shared(e entry, share any) entry {
	x, ok := number(share)
	if !ok || x == 1 {
		return e
	}
	if x <= 0 {
		c.decide(nil, "datasets: of %s a share of %s is taken; leave the entry out", plainWord(e.value("path")), shown(share))
		return e
	}
	e.add("weight", numeral(x))
	c.decide(nil, "datasets: of %s the same share of %s is taken in each epoch there; weight draws another one here",
		plainWord(e.value("path")), numeral(x))
	return e
}
