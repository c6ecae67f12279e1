package data

import "fmt"

// Part is the documents of one source: all of them, in the order of its files, however a dataset divides and weighs
// them. It is good until the dataset is closed.
type Part struct {
	run        *tokenRun
	mismatched bool // of each document the prompt, with the answer of the other one of the two
}

// Parts returns the parts of the sources, in their order.
func (d *Dataset) Parts() (all []Part) {
	for i := range d.runs {
		all = append(all, Part{run: &d.runs[i]})
	}
	return all
}

// Origin returns where document i of the dataset comes from: the number of its part, and its own number there.
func (d *Dataset) Origin(i int) (part, document int) {
	run, document := d.documentRun(i)
	for part = range d.runs {
		if &d.runs[part] == run {
			break
		}
	}
	return part, document
}

// Mismatched is the part with the mismatched documents in place of its own, of a dataset in twos.
func (p Part) Mismatched() Part { return Part{p.run, true} }

// Sum is a checksum of the tokens, of what counts in them, and of the documents' ends.
func (p Part) Sum() string {
	sum := fmt.Sprintf("%x", p.run.sum)
	if p.mismatched {
		sum += " mismatched"
	}
	return sum
}

// Len is the number of documents.
func (p Part) Len() int { return len(p.run.lengths) }

// Length is the number of tokens of a document.
func (p Part) Length(document int) int {
	if p.mismatched {
		return int(p.run.mismatchedLength(document))
	}
	return int(p.run.lengths[document])
}

// Tokens reads the first tokens of a document.
func (p Part) Tokens(dst []int32, document int) error {
	if p.mismatched {
		return p.run.readMismatched(dst, document)
	}
	start, _ := p.run.bounds(document)
	return p.run.readTokens(dst, start)
}
