package data

import "errors"

// EvalSet is the part of a dataset whose sources have one label: what an evaluation has a loss of its own for.
type EvalSet struct {
	Label string // empty: no source of the dataset has one, and the set is all of it
	*Dataset
}

// DefaultSet is the label of sources without one, in a dataset with others that have one.
const DefaultSet = "default"

// maxSetLabel bounds labels, which are parts of names in charts and records.
const maxSetLabel = 40

// SetLabels are the labels of entries, each once, in the order in which they first come; nil if no entry has one.
func SetLabels(entries []Source) (labels []string) {
	isLabelled := false
	known := map[string]bool{}
	for _, s := range entries {
		isLabelled = isLabelled || s.EvalSet != ""
		if label := s.setLabel(); !known[label] {
			known[label] = true
			labels = append(labels, label)
		}
	}
	if !isLabelled {
		return nil
	}
	return labels
}

// setLabel is the label of the set that the entry belongs to.
func (s Source) setLabel() string {
	if s.EvalSet == "" {
		return DefaultSet
	}
	return s.EvalSet
}

// checkSetLabel refuses labels that a chart or a file could not show.
func (s Source) checkSetLabel() error {
	if len(s.EvalSet) > maxSetLabel {
		return s.fail("eval_set has %d characters: use at most %d", len(s.EvalSet), maxSetLabel)
	}
	for _, r := range s.EvalSet {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.') {
			return s.fail("eval_set is %q: use letters from a to z, digits, and _ - . alone", s.EvalSet)
		}
	}
	return nil
}

// Sets divides the dataset by the labels of its sources, in the order of SetLabels. Without labels there is one set,
// the dataset itself. Other sets have memory of their own, and are closed before the dataset, whose tokens they use;
// CloseSets does that.
func (d *Dataset) Sets() (sets []EvalSet, err error) {
	labels := SetLabels(d.entries)
	if labels == nil {
		return []EvalSet{{"", d}}, nil
	}
	if len(labels) == 1 {
		return []EvalSet{{labels[0], d}}, nil
	}
	for _, label := range labels {
		belongs := func(source int) bool { return d.entries[source].setLabel() == label }
		n := 0
		for i, of := range d.sources {
			if belongs(i) {
				n += of.documents
			}
		}
		source, end := -1, 0 // of the document before
		part, err := d.subset(n, func(document int) bool {
			for document >= end {
				source++
				end += d.sources[source].documents
			}
			return belongs(source)
		}, "evaluation set "+label)
		if err != nil {
			return nil, errors.Join(err, d.CloseSets(sets))
		}
		sets = append(sets, EvalSet{label, part})
	}
	return sets, nil
}

// CloseSets closes the sets that Sets has made, and not the dataset.
func (d *Dataset) CloseSets(sets []EvalSet) (err error) {
	for _, s := range sets {
		if s.Dataset != d {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}
