package data

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/objective"
)

// A rollout is an answer that a policy has sampled, as tokens, with its rewards. Answers to one prompt are a group: a
// step has all of them, since each is compared with the others.

// rolloutKeys are the keys of a row.
const rolloutKeys = "group sample ids start logprobs version finish mask rewards reward advantage old ref values"

// Numbers that a rollout has by itself: these, and then its rewards by name.
const (
	rolloutGroup = iota
	rolloutSample
	rolloutStart // the first token of the answer
	rolloutEnds  // objective.Ending
	rolloutReward
	rolloutAdvantage
	rolloutFields
)

// noNumber stands for null among the numbers of a rollout, whose others are 1e12 at most.
const (
	noNumber   = math.MaxFloat64
	mostReward = 1e12
)

// Bounds of the names of rewards: a row has no more, and none is longer.
const (
	mostRewards      = 16
	mostRewardsBytes = 64
)

// rolloutNumbers are the numbers of a rollout, and the names of its rewards.
type rolloutNumbers struct {
	numbers []float64
	names   []string // sorted
}

// rollout reads a row of type rollouts.
func (f *fields) rollout(_ Source, out *Record) {
	f.onlyKnown()
	row := &tokenRow{key: "ids", ids: f.tokens("ids", f.numbers("ids")), rollout: &rolloutNumbers{}}
	group, sample, start := f.whole("group", true), f.whole("sample", true), f.whole("start", true)
	f.whole("version", false)
	ends := f.ending()
	reward, advantage := f.bounded("reward"), f.bounded("advantage")
	rewards := f.rewards(row)
	if f.err != nil {
		return
	}
	if start < 1 || int(start) >= len(row.ids) {
		f.fail(`field "start" is %v, and "ids" has %d tokens: an answer begins after the first token, and has one at least`,
			start, len(row.ids))
		return
	}
	f.answer(row, int(start))
	row.rollout.numbers = append([]float64{group, sample, start, ends, reward, advantage}, rewards...)
	out.tokens = row
}

// answer reads what each token of the answer has.
func (f *fields) answer(row *tokenRow, start int) {
	n := len(row.ids) - start
	row.counts = make([]bool, len(row.ids))
	for t := start; t < len(row.ids); t++ {
		row.counts[t] = true
	}
	if _, ok := f.value("mask"); ok {
		for i, v := range f.ofAnswer("mask", n) {
			if v != 0 && v != 1 {
				f.fail(`field "mask" has %v: a token counts (1) or not (0)`, v)
			}
			row.counts[start+i] = v == 1
		}
	}
	for _, of := range []struct {
		key    string
		column TokenColumn
	}{{"logprobs", TokenLogProbs}, {"ref", TokenReferences}, {"old", TokenOld}, {"values", TokenValues}} {
		if _, ok := f.value(of.key); !ok {
			continue
		}
		column := make([]float32, len(row.ids))
		for i, v := range f.ofAnswer(of.key, n) {
			switch {
			case math.IsNaN(v) && of.column == TokenLogProbs:
				column[start+i] = objective.UnknownLogProb
				continue
			case math.IsNaN(v):
				f.fail("field %q has null at %d: only logprobs may", of.key, i)
			case of.column == TokenValues:
				if column[start+i] = float32(v); math.IsInf(float64(column[start+i]), 0) {
					f.fail("field %q has %v at %d: it must fit into 32 bits", of.key, v, i)
				}
				continue
			case v > mostMass-1:
				f.fail("field %q has %v at %d: a log-probability is not above 0", of.key, v, i)
			}
			column[start+i] = float32(max(min(v, 0), -math.MaxFloat32))
		}
		row.columns[of.column] = column
	}
}

// ofAnswer reads a number for each token of the answer; NaN is null.
func (f *fields) ofAnswer(key string, n int) []float64 {
	items := f.items(key, "numbers")
	if f.err == nil && len(items) != n {
		f.fail("field %q has %d numbers for %d tokens of the answer, which are those of ids from start on", key, len(items),
			n)
	}
	if f.err != nil {
		return nil
	}
	all := make([]float64, n)
	for i := range items {
		switch items[i].(type) {
		case nil, template.None:
			all[i] = math.NaN()
		default:
			all[i] = f.numbersOf(key, items[i:i+1])[0]
		}
	}
	return all
}

// onlyKnown refuses keys that are not read: one that is spelled in another way would be left out in silence.
func (f *fields) onlyKnown() {
	known := strings.Fields(rolloutKeys)
	for _, name := range slices.Sorted(maps.Keys(f.object)) {
		if !slices.Contains(known, name) {
			f.fail("the row has %s, which type %s does not read%s: remove it, or list it under ignore in the entry", shown(name),
				Rollouts, spelling.Question(name, known))
			return
		}
	}
}

// whole reads a number that counts something.
func (f *fields) whole(key string, required bool) float64 {
	n, ok := f.number(key)
	switch {
	case f.err != nil:
	case !ok && required:
		f.missing(key)
	case n != math.Trunc(n) || n < 0 || n > 1<<53:
		f.fail("field %q is %v: it must be a whole number, and not negative", key, n)
	}
	return n
}

// bounded reads a number that may be null.
func (f *fields) bounded(key string) float64 {
	n, ok := f.number(key)
	switch {
	case f.err != nil || !ok:
		return noNumber
	case math.Abs(n) > mostReward:
		f.fail("field %q is %v: it must be between -1e12 and 1e12", key, n)
	}
	return n
}

// ending reads how the answer ends.
func (f *fields) ending() float64 {
	v, ok := f.value("finish")
	if !ok {
		return float64(objective.UnknownEnding)
	}
	switch text, isText := v.(template.String); {
	case !isText:
		f.fail("field %q is %s: write why the answer ends as a text, length where it was cut off", "finish", kindOf(v))
	case text == "length":
		return float64(objective.CutOff)
	}
	return float64(objective.Stopped)
}

// rewards reads rewards by name, sorted by these.
func (f *fields) rewards(row *tokenRow) (all []float64) {
	v, ok := f.value("rewards")
	if !ok {
		return nil
	}
	d, err := objectOf(v)
	switch {
	case err != nil:
		f.fail("field %q %w: write {\"name\": number or null}", "rewards", err)
		return nil
	case d == nil:
		return nil
	case d.Len() > mostRewards:
		f.fail("field %q has %d names: %d at most", "rewards", d.Len(), mostRewards)
		return nil
	}
	for _, key := range d.Keys() {
		row.rollout.names = append(row.rollout.names, string(key.(template.String)))
	}
	slices.Sort(row.rollout.names)
	for _, name := range row.rollout.names {
		if name == "" || len(name) > mostRewardsBytes {
			f.fail("field %q has a name of %d bytes: 1 to %d", "rewards", len(name), mostRewardsBytes)
			return nil
		}
		x := noNumber
		switch v, _ := d.Get(name); v := v.(type) {
		case nil, template.None:
		case template.Int:
			x = float64(v)
		case template.Float:
			x = float64(v)
		case template.Bool:
			if x = 0; v {
				x = 1
			}
		default:
			f.fail("field %q: %s is %s, and must be a number or null", "rewards", shown(name), kindOf(v))
		}
		if x != noNumber && !(math.Abs(x) <= mostReward) {
			f.fail("field %q: %s is %v: it must be between -1e12 and 1e12", "rewards", shown(name), x)
		}
		all = append(all, x)
	}
	return all
}

// inRolloutGroups has the answers of a group follow each other, by their numbers. Those of one group are of one entry.
func (d *Dataset) inRolloutGroups() error {
	region, err := reserve(d.accounts, 4*int64(2*d.documents+1))
	if err != nil {
		return err
	}
	d.owned = append(d.owned, region.Close)
	all := hostmem.I32(region.Bytes())
	d.chosen, d.groupFirst = all[:d.documents:d.documents], all[d.documents:d.documents]
	for i := range d.chosen {
		d.chosen[i] = int32(i)
	}
	for n := range d.runs {
		r := &d.runs[n]
		of := d.chosen[r.first:][:len(r.lengths)]
		number := func(i int32, which int) float64 { return r.numbers[(int(i)-r.first)*r.wide+which] }
		slices.SortStableFunc(of, func(a, b int32) int {
			return cmp.Or(cmp.Compare(number(a, rolloutGroup), number(b, rolloutGroup)),
				cmp.Compare(number(a, rolloutSample), number(b, rolloutSample)))
		})
		for i, document := range of {
			isNext := i > 0 && number(document, rolloutGroup) == number(of[i-1], rolloutGroup)
			if isNext && number(document, rolloutSample) == number(of[i-1], rolloutSample) {
				return fmt.Errorf("dataset %s: group %v has sample %v twice: each answer of an entry needs numbers of its own; "+
					"give files of several steps an entry each", d.entries[n].Path, number(document, rolloutGroup),
					number(document, rolloutSample))
			}
			if !isNext {
				d.groupFirst = append(d.groupFirst, int32(r.first+i))
			}
		}
	}
	d.groupFirst = append(d.groupFirst, int32(d.documents))
	return nil
}

// HasRollouts reports whether documents are answers that were sampled, those to one prompt next to each other.
func (d *Dataset) HasRollouts() bool { return d.groupFirst != nil }

// RewardNames are the names of the rewards that answers have, sorted.
func (d *Dataset) RewardNames() (names []string) {
	for i := range d.runs {
		names = append(names, d.runs[i].rewards...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Scored returns what is known of the answer that document i is, with rewards in the order of names, and with the
// number of its group in its source.
func (d *Dataset) Scored(i int, names []string) objective.Scored {
	r, at := d.documentRun(i)
	own := r.numbers[at*r.wide:][:r.wide]
	known := func(x float64) float64 {
		if x == noNumber {
			return math.NaN()
		}
		return x
	}
	s := objective.Scored{Group: int(own[rolloutGroup]), Advantage: known(own[rolloutAdvantage]),
		Reward: known(own[rolloutReward]), Tokens: int(r.lengths[at]) - int(own[rolloutStart]),
		Ends: objective.Ending(own[rolloutEnds])}
	for _, name := range names {
		x := math.NaN()
		if k, found := slices.BinarySearch(r.rewards, name); found {
			x = known(own[rolloutFields+k])
		}
		s.Rewards = append(s.Rewards, x)
	}
	return s
}

// HasColumn reports whether the tokens of all documents have a column, and whether those of any have.
func (d *Dataset) HasColumn(c TokenColumn) (all, any bool) {
	all = true
	for i := range d.runs {
		has := d.runs[i].columns[c] != nil
		all, any = all && has, any || has
	}
	return all, any
}

// Following reads the numbers of a column for the first tokens of document i after its first one.
func (d *Dataset) Following(i int, c TokenColumn, dst []float32) error {
	r, start, end := d.locate(i)
	if r.columns[c] == nil || start+1+int64(len(dst)) > end {
		return errors.New("the document has no such numbers")
	}
	return r.readColumn(int(c), dst, start+1)
}

// groupCount counts the groups of a dataset, and groupDocuments are the documents of one: the first, and the one after
// the last.
func (d *Dataset) groupCount() int {
	if d.groupFirst != nil {
		return len(d.groupFirst) - 1
	}
	return d.Len() / d.groupSize()
}

func (d *Dataset) groupDocuments(i int) (first, end int) {
	if d.groupFirst != nil {
		return int(d.groupFirst[i]), int(d.groupFirst[i+1])
	}
	return i * d.groupSize(), (i + 1) * d.groupSize()
}

// isGrouped reports whether documents belong together, such as the sides of a pair, so that a step has all of a group.
func (d *Dataset) isGrouped() bool { return d.groupSize() > 1 || d.HasRollouts() }

// groupWord names a group for people.
func (d *Dataset) groupWord() string {
	if d.HasRollouts() {
		return "group"
	}
	return "pair"
}
